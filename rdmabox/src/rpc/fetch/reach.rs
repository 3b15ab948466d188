//! How a client reaches its memory at the host: through a mapping of it, or with WRITE and READ.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::layout::{self, Found, Head, Kind, WORD};
use crate::{
    memory::Memory,
    session::RequestError,
    stats::Stats,
    verbs::{Access, RemoteAddr},
};

/// One-sided requests on the session's memory for calls by fetching.
pub(crate) trait OneSided: Send + Sync + fmt::Debug {
    /// Writes, and returns when all of it is there.
    fn write(&self, to: RemoteAddr, bytes: &[u8]) -> Result<(), RequestError>;
    /// Reads what is there after all that was written before.
    fn read(&self, from: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError>;
    /// The memory in place, where it is mapped here.
    fn map(&self, at: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)>;
    /// Ends it: requests fail.
    fn fail(&self);
}

/// What a look at an answer has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The answer; the reply has been taken.
    Answer(Kind),
    /// Nothing yet; and whether the host is asleep.
    NotYet { asleep: bool },
    /// What no host writes.
    Nonsense,
}

/// The session's memory at the host.
#[derive(Debug)]
pub(super) struct Reach {
    one_sided: Box<dyn OneSided>,
    base: RemoteAddr,
    /// Bytes of a first READ.
    fetch_size: usize,
    /// It may be mapped.
    maps: bool,
    mapped: OnceLock<(Arc<Memory>, usize)>,
}

impl Reach {
    pub(super) fn new(
        one_sided: Box<dyn OneSided>,
        base: RemoteAddr,
        fetch_size: usize,
        maps: bool,
    ) -> Reach {
        // A READ brings a head at least, and nothing of the next slot.
        let fetch_size = fetch_size.clamp(2 * WORD, WORD + layout::record(crate::MAX_CALL));
        Reach { one_sided, base, fetch_size, maps, mapped: OnceLock::new() }
    }

    /// The mapping. Until the provider has it, requests go the other way.
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

    /// Writes a request of call `number` in `slot`.
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

    /// In mapped memory: writes down on which core this is, if it was another one before. Nobody waits for that.
    #[inline]
    pub(super) fn say_where(&self) {
        if let Some((memory, start)) = self.mapped() {
            let (core, at) = (rustix::thread::sched_getcpu() as u64 + 1, start + layout::CORE);
            if memory.load_u64(at) != core {
                memory.store_u64(at, core);
            }
        }
    }

    /// In mapped memory: true if nobody looks at requests in `slot`.
    pub(super) fn is_asleep(&self, slot: usize) -> bool {
        self.mapped().is_none_or(|(memory, start)| is_asleep(memory, *start, slot))
    }

    /// Looks for the answer to call `number` in `slot`. In mapped memory it costs two loads as long as there is none.
    pub(super) fn look(
        &self,
        slot: usize,
        number: u32,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<Look, RequestError> {
        match self.mapped() {
            Some((memory, start)) => Ok(look_at(memory, *start, slot, number, reply, stats)),
            None => self.fetch(slot, number, reply, scratch, stats),
        }
    }

    fn fetch(
        &self,
        slot: usize,
        number: u32,
        reply: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
        stats: &Stats,
    ) -> Result<Look, RequestError> {
        let at = self.base.at(layout::rest(slot) as u64);
        scratch.resize(self.fetch_size, 0);
        self.one_sided.read(at, scratch)?;
        stats.fetches.inc();
        let asleep = word(scratch, 0) == layout::ASLEEP;
        let first = word(scratch, WORD);
        if first as u32 != number {
            return Ok(Look::NotYet { asleep });
        }
        let Some(head) = Head::of(first) else { return Ok(Look::Nonsense) };
        let whole = WORD + layout::record(head.len);
        if whole > scratch.len() {
            // The rest of it.
            let have = scratch.len();
            scratch.resize(whole, 0);
            self.one_sided.read(at.at(have as u64), &mut scratch[have..])?;
            stats.fetches.inc();
        }
        let bytes = &scratch[2 * WORD..2 * WORD + head.len];
        if word(scratch, WORD + layout::tail(head.len)) != head.tail(bytes) {
            return Ok(Look::NotYet { asleep });
        }
        reply.clear();
        reply.extend_from_slice(bytes);
        Ok(Look::Answer(head.kind))
    }
}

/// The word at an offset; zero behind the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

#[inline]
fn is_asleep(memory: &Memory, start: usize, slot: usize) -> bool {
    memory.load_u64(start + layout::rest(slot)) == layout::ASLEEP
}

#[inline]
fn look_at(
    memory: &Memory,
    start: usize,
    slot: usize,
    number: u32,
    reply: &mut Vec<u8>,
    stats: &Stats,
) -> Look {
    let at = start + layout::answer(slot);
    let first = memory.load_u64(at);
    if first as u32 != number {
        return Look::NotYet { asleep: is_asleep(memory, start, slot) };
    }
    // Any number but this one: what is not of this call was seen above.
    let is_whole = |head: Head| {
        let tail = memory.load_u64(at + layout::tail(head.len));
        reply.resize(head.len, 0);
        memory.read(at + WORD, reply);
        head.tail(reply) == tail
    };
    match layout::look(first, !number, number, is_whole) {
        Found::Whole(head) => {
            stats.fetches.inc();
            Look::Answer(head.kind)
        }
        Found::Part(_) => Look::NotYet { asleep: false },
        Found::Nothing | Found::Odd => Look::Nonsense,
    }
}
