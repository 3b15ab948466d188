//! The host's side of calls by fetching: the session's memory, and the state of the call in each
//! slot.
//!
//! A request is copied before it is parsed, so the client cannot change it afterwards. An answer is
//! written to memory. If the client has notified the host, the answer is a message instead. A
//! client sends at most one notification per call. It does not reuse the slot before the host has
//! answered the notification. Each slot therefore has at most one message in flight per direction.
//!
//! # Concurrency
//! Called by the threads of the call server and by threads that give deferred replies. Each slot
//! has a leaf lock.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering, fence},
};

use parking_lot::Mutex;

use super::{
    layout::{self, Head, Kind, RecordState, WORD},
    reply_memory::{ReplyWriter, reply_addr},
};
use crate::{
    mapping::Memory,
    rpc::message::{CALL_SLOTS, memory_error},
    verbs::{Access, MrHandle, ProtectionDomain, RemoteAddr, Sge, VerbsError},
};

/// The state of a slot's call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// No call, or an answered one.
    #[default]
    Idle,
    /// The call is being executed.
    Running,
    /// The call is being executed, and the client waits for a message.
    Notified,
}

#[derive(Debug, Default)]
struct Slot {
    /// Number of the last call, readable without the lock.
    last: AtomicU32,
    state: Mutex<State>,
}

/// The reaction to a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) enum NotificationAction {
    /// Execute the call, whose request has been copied.
    Take,
    /// Do nothing: the answer will be a message.
    Wait,
    /// Send a message that the answer is in memory.
    Answered,
}

/// A session's slots.
#[derive(Debug)]
pub(crate) struct HostSlots {
    pub(super) memory: Arc<Memory>,
    region: MrHandle,
    /// True if aligned words of the client are never seen torn.
    whole_words: bool,
    slots: [Slot; CALL_SLOTS],
    writer: OnceLock<ReplyWriter>,
}

/// The way of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) enum AnswerWay {
    /// Written to memory of the host.
    Memory,
    /// Also WRITTEN to memory of the client.
    Write,
    /// Not given: the client waits for a message.
    Message,
}

impl HostSlots {
    /// Allocates and registers memory for a session. Only the session's queue pairs are in `pd`.
    ///
    /// # Errors
    /// Memory or room for a registration is exhausted.
    pub(crate) fn new(pd: &dyn ProtectionDomain, whole_words: bool) -> Result<HostSlots, VerbsError> {
        let memory = Arc::new(Memory::shared("rdmabox-calls", layout::MEMORY).map_err(memory_error)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.register(&memory, 0, memory.len() as u64, access)?;
        let (slots, writer) = (Default::default(), OnceLock::new());
        Ok(HostSlots { memory, region, whole_words, slots, writer })
    }

    /// Lets answers reach the memory of a client that has published it.
    pub(crate) fn set_writer(&self, writer: ReplyWriter) {
        let _ = self.writer.set(writer);
    }

    /// Returns the memory's address for the client.
    pub(crate) fn remote_addr(&self) -> RemoteAddr {
        RemoteAddr { addr: self.region.addr(), rkey: self.region.rkey() }
    }

    /// Tells the client whether a thread polls its requests.
    pub(in crate::rpc) fn mark(&self, awake: bool) {
        let word = if awake { layout::AWAKE } else { layout::ASLEEP };
        for slot in 0..CALL_SLOTS {
            self.memory.store_u64(layout::sleep_word(slot), word);
        }
    }

    /// Returns the core of this host on which the client made its last call, as the client claims.
    /// Returns `None` if the client has not mapped the memory. The number is not validated.
    pub(in crate::rpc) fn core(&self) -> Option<usize> {
        let word = if self.whole_words { self.memory.load_u64(layout::CORE) } else { 0 };
        word.checked_sub(1).map(|core| core as usize)
    }

    /// Copies a new request in `slot`, if there is one.
    ///
    /// # Errors
    /// The record is malformed.
    #[inline]
    pub(in crate::rpc) fn take(&self, slot: usize, request: &mut Vec<u8>) -> Result<bool, String> {
        let last = self.slots[slot].last.load(Ordering::Relaxed);
        if self.memory.load_u64(layout::request(slot)) as u32 == last {
            return Ok(false);
        }
        let mut state = self.slots[slot].state.lock();
        // A client writes no request while its call is being executed.
        if *state != State::Idle {
            return Ok(false);
        }
        match self.copy(slot, request) {
            RecordState::Complete(_) => {
                *state = State::Running;
                Ok(true)
            }
            RecordState::Malformed if self.whole_words => Err(malformed(slot)),
            RecordState::Nothing | RecordState::Partial(_) | RecordState::Malformed => Ok(false),
        }
    }

    /// Handles a notification of call `number` in `slot`.
    ///
    /// # Errors
    /// There is no such call.
    pub(in crate::rpc) fn handle_notification(
        &self,
        slot: usize,
        number: u32,
        request: &mut Vec<u8>,
    ) -> Result<NotificationAction, String> {
        let mut state = self.slots[slot].state.lock();
        let last = self.slots[slot].last.load(Ordering::Relaxed);
        match *state {
            State::Running if number == last => {
                *state = State::Notified;
                Ok(NotificationAction::Wait)
            }
            State::Idle if number == last && number != 0 => Ok(NotificationAction::Answered),
            // A client writes the whole request before it notifies the host.
            State::Idle if number == layout::next(last) => match self.copy(slot, request) {
                RecordState::Complete(_) => {
                    *state = State::Notified;
                    Ok(NotificationAction::Take)
                }
                RecordState::Nothing | RecordState::Partial(_) | RecordState::Malformed => {
                    Err(malformed(slot))
                }
            },
            State::Running | State::Notified | State::Idle => {
                Err(format!("a notification of call {number} in slot {slot}, which is at call {last}"))
            }
        }
    }

    /// Copies the request if it is complete. The slot's lock is held.
    fn copy(&self, slot: usize, request: &mut Vec<u8>) -> RecordState {
        let (at, last) = (layout::request(slot), self.slots[slot].last.load(Ordering::Relaxed));
        let awaited = layout::next(last);
        let is_whole = |head: Head| {
            let tail = self.memory.load_u64(at + layout::tail(head.len));
            fence(Ordering::Acquire);
            request.resize(head.len, 0);
            self.memory.read(at + WORD, request);
            head.tail(request) == tail
        };
        let found = layout::classify(self.memory.load_u64(at), last, awaited, is_whole);
        match found {
            RecordState::Complete(Head { kind: Kind::Plain, .. }) => {
                self.slots[slot].last.store(awaited, Ordering::Relaxed);
                found
            }
            RecordState::Complete(_) => RecordState::Malformed,
            other => other,
        }
    }

    /// Writes the answer to the call in `slot` to memory, unless the client waits for a message.
    ///
    /// # Errors
    /// The WRITE to the memory of the client failed: the session has to end.
    pub(in crate::rpc) fn answer(&self, slot: usize, kind: Kind, bytes: &[u8]) -> Result<AnswerWay, String> {
        {
            let mut state = self.slots[slot].state.lock();
            let notified = *state == State::Notified;
            if !notified {
                self.write(slot, kind, bytes);
            }
            *state = State::Idle;
            if notified {
                return Ok(AnswerWay::Message);
            }
        }
        self.send(slot, bytes.len())
    }

    /// Marks the reply in `slot` as deferred, so that a polling client notifies the host.
    ///
    /// # Errors
    /// As for [`answer`](Self::answer).
    pub(in crate::rpc) fn defer(&self, slot: usize) -> Result<(), String> {
        {
            let state = self.slots[slot].state.lock();
            if *state != State::Running {
                return Ok(());
            }
            self.write(slot, Kind::Deferred, &[]);
        }
        self.send(slot, 0).map(drop)
    }

    /// Posts a WRITE of an answer of `len` bytes to the memory of the client, if the client has
    /// some.
    fn send(&self, slot: usize, len: usize) -> Result<AnswerWay, String> {
        let Some(writer) = self.writer.get() else { return Ok(AnswerWay::Memory) };
        let words = [layout::REPLY_ADDR, layout::REPLY_KEY].map(|at| self.memory.load_u64(at));
        let Some(remote) = reply_addr(words) else { return Ok(AnswerWay::Memory) };
        let sge = Sge {
            addr: self.region.addr() + layout::answer(slot) as u64,
            length: layout::record(len) as u32,
            lkey: self.region.lkey(),
        };
        writer.write(sge, remote.at(layout::own_answer(slot) as u64))?;
        Ok(AnswerWay::Write)
    }

    /// Writes `bytes` in the place of a client's request.
    #[cfg(feature = "fuzzing")]
    pub(in crate::rpc) fn client_writes(&self, slot: usize, bytes: &[u8]) {
        self.memory.write(layout::request(slot), bytes);
    }

    /// Returns the record of a request.
    #[cfg(feature = "fuzzing")]
    pub(in crate::rpc) fn request(number: u32, bytes: &[u8]) -> Vec<u8> {
        let head = Head { number, kind: Kind::Plain, len: bytes.len() };
        let mut record = [&head.word().to_le_bytes(), bytes].concat();
        record.resize(layout::tail(bytes.len()), 0);
        record.extend(head.tail(bytes).to_le_bytes());
        record
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn begin_at(&self, slot: usize, number: u32) {
        self.slots[slot].last.store(number, Ordering::Relaxed);
        self.memory.store_u64(layout::request(slot), number.into());
    }

    /// Writes a record. The head is written last: a reader that sees it in mapped memory also sees
    /// the rest.
    fn write(&self, slot: usize, kind: Kind, bytes: &[u8]) {
        let number = self.slots[slot].last.load(Ordering::Relaxed);
        let (at, head) = (layout::answer(slot), Head { number, kind, len: bytes.len() });
        self.memory.write(at + WORD, bytes);
        self.memory.store_u64(at + layout::tail(bytes.len()), head.tail(bytes));
        self.memory.store_u64(at, head.word());
    }
}

fn malformed(slot: usize) -> String {
    format!("malformed request in call slot {slot}")
}
