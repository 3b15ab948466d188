//! A client's access to its memory at the host, by mapping or by WRITE and READ, or by WRITEs of
//! both sides.
//!
//! # Concurrency
//! Called from any thread; no locks.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{
    FetchSize,
    layout::{self, Head, Kind, RecordState, WORD},
    reply_memory::ReplyMemory,
};
use crate::{
    error::RequestError,
    mapping::Memory,
    stats::Stats,
    verbs::{Access, RemoteAddr},
};

/// Bytes of the longest answer with its sleep word.
const MAX_READ: usize = WORD + layout::record(crate::MAX_CALL);

/// One-sided requests on a session's memory for calls by fetching.
pub(crate) trait OneSided: Send + Sync + fmt::Debug {
    /// Writes, and returns when all bytes have arrived.
    fn write(&self, to: RemoteAddr, bytes: &[u8]) -> Result<(), RequestError>;
    /// Reads the bytes, after all earlier writes.
    fn read(&self, from: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError>;
    /// Returns the mapping of the memory and its offset, if it is mapped here.
    fn map(&self, at: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)>;
    /// Fails all requests from now on.
    fn fail(&self);
}

/// The result of polling for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollResult {
    /// The answer; the reply has been copied.
    Answer(Kind),
    /// No answer yet, and whether the host is asleep.
    Pending { asleep: bool },
    /// The record is invalid.
    Malformed,
}

/// The session's memory at the host.
#[derive(Debug)]
pub(super) struct SlotAccess {
    one_sided: Box<dyn OneSided>,
    base: RemoteAddr,
    /// Length of the first READ.
    fetch_size: FetchSize,
    /// The memory may be mapped.
    maps: bool,
    mapped: OnceLock<(Arc<Memory>, usize)>,
    /// Memory of this side to which the host WRITEs answers.
    replies: Option<ReplyMemory>,
}

impl SlotAccess {
    pub(super) fn new(
        one_sided: Box<dyn OneSided>,
        base: RemoteAddr,
        fetch_size: FetchSize,
        maps: bool,
    ) -> SlotAccess {
        SlotAccess { one_sided, base, fetch_size, maps, mapped: OnceLock::new(), replies: None }
    }

    /// Has the host WRITE answers to this memory.
    pub(super) fn write_replies_to(&mut self, replies: ReplyMemory) -> Result<(), RequestError> {
        let words = replies.words().map(u64::to_ne_bytes).concat();
        self.one_sided.write(self.base.at(layout::REPLY_ADDR as u64), &words)?;
        self.replies = Some(replies);
        Ok(())
    }

    /// Returns true if polls for answers read memory of this machine.
    pub(super) fn polls_locally(&self) -> bool {
        self.replies.is_some() || self.mapped().is_some()
    }

    /// Returns the mapping. Until the provider has it, requests go by WRITE and READ.
    #[inline]
    pub(super) fn mapped(&self) -> Option<&(Arc<Memory>, usize)> {
        match self.mapped.get() {
            None if self.maps => self.map(),
            mapped => mapped,
        }
    }

    #[cold]
    fn map(&self) -> Option<&(Arc<Memory>, usize)> {
        let needs = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let found = self.one_sided.map(self.base, layout::MEMORY as u64, needs)?;
        Some(self.mapped.get_or_init(|| found))
    }

    pub(super) fn fail(&self) {
        self.one_sided.fail();
    }

    /// Writes the request of call `number` in `slot`.
    pub(super) fn put(
        &self,
        slot: usize,
        number: u32,
        request: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        let (at, head) = (layout::request(slot), Head { number, kind: Kind::Plain, len: request.len() });
        let tail = layout::tail(request.len());
        if let Some((memory, start)) = self.mapped() {
            memory.write(start + at + WORD, request);
            memory.store_u64(start + at + tail, head.tail(request));
            memory.store_u64(start + at, head.word());
            return Ok(());
        }
        scratch.clear();
        scratch.extend_from_slice(&head.word().to_ne_bytes());
        scratch.extend_from_slice(request);
        scratch.resize(tail, 0);
        scratch.extend_from_slice(&head.tail(request).to_ne_bytes());
        self.one_sided.write(self.base.at(at as u64), scratch)
    }

    /// Publishes the current core in mapped memory, if it has changed.
    #[inline]
    pub(super) fn publish_core(&self) {
        if let Some((memory, start)) = self.mapped() {
            let (core, at) = (rustix::thread::sched_getcpu() as u64 + 1, start + layout::CORE);
            if memory.load_u64(at) != core {
                memory.store_u64(at, core);
            }
        }
    }

    /// Returns true if no thread of the host polls requests, as mapped memory says.
    pub(super) fn is_asleep(&self, slot: usize) -> bool {
        self.mapped().is_none_or(|(memory, start)| is_asleep(memory, *start, slot))
    }

    /// Polls for the answer to call `number` in `slot`. On mapped memory a poll without an answer
    /// costs two loads.
    pub(super) fn poll(
        &self,
        slot: usize,
        number: u32,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<PollResult, RequestError> {
        if let Some(ReplyMemory { memory, .. }) = &self.replies {
            return Ok(match poll_record(memory, layout::own_answer(slot), number, reply) {
                // A part of the head may have arrived. If no more comes, the client notifies the
                // host.
                None | Some(PollResult::Malformed) => PollResult::Pending { asleep: false },
                Some(found) => found,
            });
        }
        match self.mapped() {
            Some((memory, start)) => Ok(poll_mapped(memory, *start, slot, number, reply, stats)),
            None => self.poll_by_read(slot, number, reply, scratch, stats),
        }
    }

    /// Takes the answer from the memory of the host, which has reported it.
    pub(super) fn take(
        &self,
        slot: usize,
        number: u32,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<PollResult, RequestError> {
        match self.replies {
            // The WRITE may still be under way.
            Some(_) => self.poll_by_read(slot, number, reply, scratch, stats),
            None => self.poll(slot, number, reply, scratch, stats),
        }
    }

    fn poll_by_read(
        &self,
        slot: usize,
        number: u32,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<PollResult, RequestError> {
        let at = self.base.at(layout::sleep_word(slot) as u64);
        // A READ includes at least a head, and nothing of the next slot.
        scratch.resize(self.fetch_size.bytes().clamp(2 * WORD, MAX_READ), 0);
        self.one_sided.read(at, scratch)?;
        stats.fetches.inc();
        let asleep = word(scratch, 0) == layout::ASLEEP;
        let first = word(scratch, WORD);
        if first as u32 != number {
            stats.fetches_early.inc();
            return Ok(PollResult::Pending { asleep });
        }
        let Some(head) = Head::of(first) else { return Ok(PollResult::Malformed) };
        let whole = WORD + layout::record(head.len);
        let is_long = whole > scratch.len();
        if is_long {
            // Reads the rest of the record.
            let fetched = scratch.len();
            scratch.resize(whole, 0);
            self.one_sided.read(at.at(fetched as u64), &mut scratch[fetched..])?;
            stats.fetches.inc();
        }
        let bytes = &scratch[2 * WORD..2 * WORD + head.len];
        if word(scratch, WORD + layout::tail(head.len)) != head.tail(bytes) {
            stats.fetches_early.add(1 + u64::from(is_long));
            return Ok(PollResult::Pending { asleep });
        }
        self.fetch_size.record(whole, MAX_READ);
        reply.clear();
        reply.extend_from_slice(bytes);
        Ok(PollResult::Answer(head.kind))
    }
}

/// Returns the word at an offset, or 0 behind the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

#[inline]
fn is_asleep(memory: &Memory, start: usize, slot: usize) -> bool {
    memory.load_u64(start + layout::sleep_word(slot)) == layout::ASLEEP
}

#[inline]
fn poll_mapped(
    memory: &Memory,
    start: usize,
    slot: usize,
    number: u32,
    reply: &mut Vec<u8>,
    stats: &Stats,
) -> PollResult {
    match poll_record(memory, start + layout::answer(slot), number, reply) {
        Some(PollResult::Answer(kind)) => {
            stats.fetches.inc();
            PollResult::Answer(kind)
        }
        Some(other) => other,
        None => PollResult::Pending { asleep: is_asleep(memory, start, slot) },
    }
}

/// Polls a record in memory of this machine. Returns `None` if it is that of another call.
#[inline]
fn poll_record(memory: &Memory, at: usize, number: u32, reply: &mut Vec<u8>) -> Option<PollResult> {
    let first = memory.load_u64(at);
    if first as u32 != number {
        return None;
    }
    // Records of other calls were excluded above, so any other number will do.
    let is_whole = |head: Head| {
        let tail = memory.load_u64(at + layout::tail(head.len));
        reply.resize(head.len, 0);
        memory.read(at + WORD, reply);
        head.tail(reply) == tail
    };
    Some(match layout::classify(first, !number, number, is_whole) {
        RecordState::Complete(head) => PollResult::Answer(head.kind),
        RecordState::Partial(_) => PollResult::Pending { asleep: false },
        RecordState::Nothing | RecordState::Malformed => PollResult::Malformed,
    })
}
