//! The host's side of a session's calls by fetching: its memory, and what has become of the call in each slot.
//!
//! A request is copied out before anything of it is believed, and what the client may write there later changes nothing of
//! the call. An answer, a late one as well, is written into memory, and sent as a message only if the client has asked for that:
//! it rings, at most once for a call, when the host is asleep or takes its time. Each ring is answered with one message,
//! and before that the client does not use the slot again. So the messages of a slot are what they are without fetching, one
//! each way at a time.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering, fence},
};

use parking_lot::Mutex;

use super::layout::{self, Found, Head, Kind, WORD};
use crate::{
    memory::Memory,
    rpc::{CALL_SLOTS, memory_error},
    verbs::{Access, MrHandle, ProtectionDomain, RemoteAddr, VerbsError},
};

/// The call in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// None, or one that has got its answer.
    #[default]
    Over,
    /// It is being carried out.
    Running,
    /// The same, and the client waits for a message.
    Rung,
}

#[derive(Debug, Default)]
struct Slot {
    /// The number of the last call, as `state` has it: to be looked at without the lock.
    last: AtomicU32,
    state: Mutex<State>,
}

/// What a ring asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) enum Rung {
    /// The call is to be carried out: its request has been taken.
    Take,
    /// Nothing: its answer will be a message.
    Wait,
    /// A message that says that the answer is in memory.
    Answered,
}

/// A session's slots.
#[derive(Debug)]
pub(crate) struct HostSlots {
    pub(super) memory: Arc<Memory>,
    region: MrHandle,
    /// What the client writes into an aligned word is seen whole or not at all.
    whole_words: bool,
    slots: [Slot; CALL_SLOTS],
}

impl HostSlots {
    /// Memory that the queue pairs of `pd`, which are the session's own, may reach.
    ///
    /// # Errors
    /// Without memory, or room for another registration at the device.
    pub(crate) fn new(pd: &dyn ProtectionDomain, whole_words: bool) -> Result<HostSlots, VerbsError> {
        let memory = Arc::new(Memory::shared("rdmabox-calls", layout::MEMORY).map_err(memory_error)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.register(&memory, 0, memory.len() as u64, access)?;
        Ok(HostSlots { memory, region, whole_words, slots: Default::default() })
    }

    /// Where the client finds it.
    pub(crate) fn remote_addr(&self) -> RemoteAddr {
        RemoteAddr { addr: self.region.addr(), rkey: self.region.rkey() }
    }

    /// Tells the client whether somebody looks at its requests.
    pub(in crate::rpc) fn mark(&self, awake: bool) {
        let word = if awake { layout::AWAKE } else { layout::ASLEEP };
        for slot in 0..CALL_SLOTS {
            self.memory.store_u64(layout::rest(slot), word);
        }
    }

    /// On which core of this host the client says that it made its last call; `None` for who has not mapped the memory. Any
    /// number.
    pub(in crate::rpc) fn core(&self) -> Option<usize> {
        let word = if self.whole_words { self.memory.load_u64(layout::CORE) } else { 0 };
        word.checked_sub(1).map(|core| core as usize)
    }

    /// Takes the request of a call in `slot`, if there is one that nobody has taken.
    ///
    /// # Errors
    /// What is there is nonsense.
    #[inline]
    pub(in crate::rpc) fn take(&self, slot: usize, request: &mut Vec<u8>) -> Result<bool, String> {
        let last = self.slots[slot].last.load(Ordering::Relaxed);
        if self.memory.load_u64(layout::request(slot)) as u32 == last {
            return Ok(false);
        }
        let mut state = self.slots[slot].state.lock();
        // While one is carried out the client has nothing to write there.
        if *state != State::Over {
            return Ok(false);
        }
        match self.copy(slot, request) {
            Found::Whole(_) => {
                *state = State::Running;
                Ok(true)
            }
            Found::Odd if self.whole_words => Err(nonsense(slot)),
            Found::Nothing | Found::Part(_) | Found::Odd => Ok(false),
        }
    }

    /// The client rings for call `number` in `slot`.
    ///
    /// # Errors
    /// There is no such call.
    pub(in crate::rpc) fn ring(
        &self,
        slot: usize,
        number: u32,
        request: &mut Vec<u8>,
    ) -> Result<Rung, String> {
        let mut state = self.slots[slot].state.lock();
        let last = self.slots[slot].last.load(Ordering::Relaxed);
        match *state {
            State::Running if number == last => {
                *state = State::Rung;
                Ok(Rung::Wait)
            }
            State::Over if number == last && number != 0 => Ok(Rung::Answered),
            // All of a request is written before the client rings for it.
            State::Over if number == layout::next(last) => match self.copy(slot, request) {
                Found::Whole(_) => {
                    *state = State::Rung;
                    Ok(Rung::Take)
                }
                Found::Nothing | Found::Part(_) | Found::Odd => Err(nonsense(slot)),
            },
            State::Running | State::Rung | State::Over => {
                Err(format!("a ring for call {number} in slot {slot}, which is at call {last}"))
            }
        }
    }

    /// Copies the request out, if all of it is there. Held by the slot's lock.
    fn copy(&self, slot: usize, request: &mut Vec<u8>) -> Found {
        let (at, last) = (layout::request(slot), self.slots[slot].last.load(Ordering::Relaxed));
        let awaited = layout::next(last);
        let is_whole = |head: Head| {
            let tail = self.memory.load_u64(at + layout::tail(head.len));
            fence(Ordering::Acquire);
            request.resize(head.len, 0);
            self.memory.read(at + WORD, request);
            head.tail(request) == tail
        };
        let found = layout::look(self.memory.load_u64(at), last, awaited, is_whole);
        match found {
            Found::Whole(Head { kind: Kind::Plain, .. }) => {
                self.slots[slot].last.store(awaited, Ordering::Relaxed);
                found
            }
            Found::Whole(_) => Found::Odd,
            other => other,
        }
    }

    /// Writes the answer to the call in `slot` into memory, unless the client waits for a message: true then.
    pub(in crate::rpc) fn answer(&self, slot: usize, kind: Kind, bytes: &[u8]) -> bool {
        let mut state = self.slots[slot].state.lock();
        let rung = *state == State::Rung;
        if !rung {
            self.write(slot, kind, bytes);
        }
        *state = State::Over;
        rung
    }

    /// The answer to the call in `slot` will take its time: a client that looks for it had better ring now.
    pub(in crate::rpc) fn put_off(&self, slot: usize) {
        let state = self.slots[slot].state.lock();
        if *state == State::Running {
            self.write(slot, Kind::PutOff, &[]);
        }
    }

    /// What a client writes where its request belongs.
    #[cfg(feature = "fuzzing")]
    pub(in crate::rpc) fn client_writes(&self, slot: usize, bytes: &[u8]) {
        self.memory.write(layout::request(slot), bytes);
    }

    /// The record of a request.
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

    /// Head last: who sees it in mapped memory sees the rest.
    fn write(&self, slot: usize, kind: Kind, bytes: &[u8]) {
        let number = self.slots[slot].last.load(Ordering::Relaxed);
        let (at, head) = (layout::answer(slot), Head { number, kind, len: bytes.len() });
        self.memory.write(at + WORD, bytes);
        self.memory.store_u64(at + layout::tail(bytes.len()), head.tail(bytes));
        self.memory.store_u64(at, head.word());
    }
}

fn nonsense(slot: usize) -> String {
    format!("what is in call slot {slot} is no request")
}
