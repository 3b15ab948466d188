//! Answers to requests of a ring, until its thread gives them to the kernel.
//!
//! # Concurrency
//! Any thread adds an answer. One lock over the answers of a ring's thread, which alone gives them
//! to the kernel.

use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

/// Length of the longest structure in an answer.
const SMALL: usize = 144;

/// Bytes of an answer behind its header.
#[derive(Debug)]
pub(in crate::fuse::session) enum Payload {
    /// Bytes that are copied into the entry's payload later, when the request's handler has
    /// returned.
    Small([u8; SMALL], usize),
    /// Number of bytes in the entry's payload.
    InPlace(usize),
}

impl Payload {
    /// Returns a copy of a structure.
    pub(in crate::fuse::session) fn copy_of(bytes: &[u8]) -> Payload {
        if bytes.is_empty() {
            return Payload::InPlace(0);
        }
        let mut small = [0; SMALL];
        small[..bytes.len()].copy_from_slice(bytes);
        Payload::Small(small, bytes.len())
    }
}

/// Answer to the request of an entry.
#[derive(Debug)]
pub(in crate::fuse::session) struct Answer {
    /// Number of the entry within its thread.
    pub(in crate::fuse::session) entry: usize,
    pub(in crate::fuse::session) unique: u64,
    /// An error number, or 0.
    pub(in crate::fuse::session) errno: i32,
    pub(in crate::fuse::session) payload: Payload,
}

#[derive(Debug, Default)]
struct State {
    answers: Vec<Answer>,
    /// True while the thread waits in the kernel and needs a wake-up.
    asleep: bool,
}

/// Answers for the thread of a ring. Only that thread gives entries back, because the kernel runs
/// an entry's work on the thread that gave it back last.
#[derive(Debug)]
pub(in crate::fuse::session) struct Answers {
    state: Mutex<State>,
    /// eventfd that wakes the thread.
    wake: OwnedFd,
}

impl Answers {
    pub(super) fn new() -> Result<Answers, Errno> {
        Ok(Answers { state: Mutex::default(), wake: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Returns the eventfd, which the thread reads while it waits.
    pub(super) fn wake(&self) -> impl AsFd {
        &self.wake
    }

    /// Adds an answer, and wakes the thread if it sleeps.
    pub(in crate::fuse::session) fn push(&self, answer: Answer) {
        let asleep = {
            let mut state = self.state.lock();
            state.answers.push(answer);
            std::mem::take(&mut state.asleep)
        };
        if asleep && let Err(e) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            log::error!("cannot wake the thread of a ring: {e}");
        }
    }

    /// Takes the answers, in exchange for an empty list. The thread counts as awake.
    pub(super) fn take(&self, empty: &mut Vec<Answer>) {
        debug_assert!(empty.is_empty());
        let mut state = self.state.lock();
        state.asleep = false;
        std::mem::swap(&mut state.answers, empty);
    }

    /// Returns true if there is no answer, so the thread may sleep. The next answer wakes it.
    pub(super) fn may_sleep(&self) -> bool {
        let mut state = self.state.lock();
        state.asleep = state.answers.is_empty();
        state.asleep
    }
}
