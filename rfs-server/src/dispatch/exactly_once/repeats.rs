//! Repeated exactly-once requests whose originals are still in execution.
//!
//! A mount that has lost its connection repeats its requests over the next one. The original may
//! still be in execution: it makes room, or waits for a store. The repetition then gets its reply.
//! A slot has one request in flight, so one repetition waits per slot: a later one replaces it,
//! because the earlier connection has ended.
//!
//! # Concurrency
//! Any thread. The lock of the session's stored replies is held around each call, so no reply comes
//! between a look at it and [`Repeats::wait`]. The own lock is the innermost one.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::dispatch::state::{journal::Number, outcome::Sender};

/// The repetitions that wait, by session and slot.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Repeats {
    /// Number of entries, so that a request without a repetition takes no lock.
    count: AtomicUsize,
    waiting: Mutex<HashMap<(u64, u32), (u64, Sender)>>,
}

impl Repeats {
    /// Has `sender` wait for the reply to a request.
    pub(in crate::dispatch) fn wait(&self, session: u64, (slot, sequence): Number, sender: Sender) {
        let mut waiting = self.waiting.lock();
        waiting.insert((session, slot), (sequence, sender));
        self.count.store(waiting.len(), Ordering::Relaxed);
    }

    /// Returns the sender that waits for the reply to a request.
    pub(in crate::dispatch) fn take(&self, session: u64, (slot, sequence): Number) -> Option<Sender> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut waiting = self.waiting.lock();
        let (_, sender) = waiting.remove(&(session, slot)).filter(|(number, _)| *number == sequence)?;
        self.count.store(waiting.len(), Ordering::Relaxed);
        Some(sender)
    }
}
