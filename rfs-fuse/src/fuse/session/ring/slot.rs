//! A request that has come over a ring and is to be answered, by whatever thread.

use std::{
    io::Write,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};
use zerocopy::{Immutable, IntoBytes};

use super::{abi::Dirent, entry::Entry};

/// The longest structure of an answer.
const SMALL: usize = 144;

/// What an answer has behind its header.
#[derive(Debug)]
pub(super) enum Payload {
    /// So many of these bytes, which are put into the entry's payload when nobody looks at the request there any more.
    Small([u8; SMALL], usize),
    /// So many bytes of the entry's payload.
    InPlace(usize),
}

/// An answer to the request that an entry has.
#[derive(Debug)]
pub(super) struct Answer {
    /// Which of the thread's entries.
    pub(super) entry: usize,
    pub(super) unique: u64,
    /// An error number, or 0.
    pub(super) errno: i32,
    pub(super) payload: Payload,
}

#[derive(Debug, Default)]
struct State {
    answers: Vec<Answer>,
    /// The thread waits for the kernel, and is to be woken.
    asleep: bool,
}

/// Where the thread of a ring finds answers: the kernel is only told by that thread, as it runs what an entry has to do on the thread
/// that gave it back last.
#[derive(Debug)]
pub(super) struct Answers {
    state: Mutex<State>,
    /// Counted up when the thread is to wake.
    wake: OwnedFd,
}

impl Answers {
    pub(super) fn new() -> Result<Answers, Errno> {
        Ok(Answers { state: Mutex::default(), wake: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Read by the thread while it waits.
    pub(super) fn wake(&self) -> impl AsFd {
        &self.wake
    }

    fn push(&self, answer: Answer) {
        let asleep = {
            let mut state = self.state.lock();
            state.answers.push(answer);
            std::mem::take(&mut state.asleep)
        };
        if asleep && let Err(e) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            log::error!("the thread of a ring cannot be woken: {e}");
        }
    }

    /// Takes the answers, in exchange for an empty list. The thread is awake.
    pub(super) fn take(&self, empty: &mut Vec<Answer>) {
        debug_assert!(empty.is_empty());
        let mut state = self.state.lock();
        state.asleep = false;
        std::mem::swap(&mut state.answers, empty);
    }

    /// True if the thread may go to sleep: there is no answer. It is woken by the next one.
    pub(super) fn sleeps(&self) -> bool {
        let mut state = self.state.lock();
        state.asleep = state.answers.is_empty();
        state.asleep
    }
}

/// A request. Dropping it answers with EIO.
#[derive(Debug)]
pub(in crate::fuse::session) struct Slot {
    /// `None` once it is answered.
    open: Option<Arc<Answers>>,
    memory: &'static Entry,
    entry: usize,
    unique: u64,
    beside: Beside,
}

/// What else the thread has that a request has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// A small read or write, which has come with it and is served next.
    Another,
    /// Nothing that has come, and many small reads and writes that are not answered yet.
    Many,
    /// Neither, as far as it knows.
    Few,
}

impl Slot {
    /// The request that an entry has now. There is one at a time.
    pub(super) fn new(
        answers: Arc<Answers>,
        (entry, memory): (usize, &'static Entry),
        unique: u64,
        beside: Beside,
    ) -> Slot {
        Slot { open: Some(answers), memory, entry, unique, beside }
    }

    pub(in crate::fuse::session) fn beside(&self) -> Beside {
        self.beside
    }

    fn send(&mut self, errno: i32, payload: Payload) {
        if let Some(answers) = self.open.take() {
            answers.push(Answer { entry: self.entry, unique: self.unique, errno, payload });
        }
    }

    pub(in crate::fuse::session) fn error(mut self, errno: i32) {
        self.send(errno, Payload::InPlace(0));
    }

    pub(in crate::fuse::session) fn done(mut self) {
        self.send(0, Payload::InPlace(0));
    }

    /// Answers with a structure. Allowed while the payload of the request is looked at.
    pub(in crate::fuse::session) fn answer(mut self, value: &(impl IntoBytes + Immutable)) {
        let (value, mut bytes) = (value.as_bytes(), [0; SMALL]);
        bytes[..value.len()].copy_from_slice(value);
        self.send(0, Payload::Small(bytes, value.len()));
    }

    /// Answers with bytes that `fill` puts there, all of them. Only for requests of which nobody looks at the payload.
    pub(in crate::fuse::session) fn data(mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        if len > self.memory.payload_len() {
            return self.error(Errno::IO.raw_os_error());
        }
        // SAFETY: the request is not answered yet, and what is decoded of such a request is copied (`decode`).
        fill(unsafe { self.memory.payload_mut(len) });
        self.send(0, Payload::InPlace(len));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.send(Errno::IO.raw_os_error(), Payload::InPlace(0));
    }
}

/// A request for names, and those that are there so far.
#[derive(Debug)]
pub(in crate::fuse::session) struct List {
    slot: Slot,
    len: usize,
    limit: usize,
}

impl List {
    /// At most so many bytes.
    pub(super) fn new(slot: Slot, limit: usize) -> List {
        let limit = limit.min(slot.memory.payload_len());
        List { slot, len: 0, limit }
    }

    pub(in crate::fuse::session) fn error(self, errno: i32) {
        self.slot.error(errno);
    }

    /// Adds a name with what goes before it. True if there is no room.
    pub(in crate::fuse::session) fn add(&mut self, before: &[u8], dirent: Dirent, name: &[u8]) -> bool {
        let parts = [before, dirent.as_bytes(), name];
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let end = self.len + bytes.next_multiple_of(size_of::<u64>());
        if end > self.limit {
            return true;
        }
        // SAFETY: the request is not answered yet, and has no payload that anybody looks at.
        let mut room = unsafe { &mut self.slot.memory.payload_mut(end)[self.len..] };
        for part in parts {
            // There is room.
            room.write_all(part).ok();
        }
        room.fill(0);
        self.len = end;
        false
    }

    pub(in crate::fuse::session) fn done(mut self) {
        let len = self.len;
        self.slot.send(0, Payload::InPlace(len));
    }
}
