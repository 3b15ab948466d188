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
    /// Has `sender` wait for the reply to a request. Returns the sender that it replaces, which the
    /// caller drops without locks.
    #[must_use]
    pub(in crate::dispatch) fn wait(
        &self,
        session: u64,
        (slot, sequence): Number,
        sender: Sender,
    ) -> Option<Sender> {
        let mut waiting = self.waiting.lock();
        let before = waiting.insert((session, slot), (sequence, sender));
        self.count.store(waiting.len(), Ordering::Relaxed);
        before.map(|(_, sender)| sender)
    }

    /// Returns the sender that waits for the reply to a request.
    pub(in crate::dispatch) fn take(&self, session: u64, (slot, sequence): Number) -> Option<Sender> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut waiting = self.waiting.lock();
        // The client may have given this request up, and wait for a later one of the slot.
        waiting.get(&(session, slot)).filter(|(number, _)| *number == sequence)?;
        let (_, sender) = waiting.remove(&(session, slot))?;
        self.count.store(waiting.len(), Ordering::Relaxed);
        Some(sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a request that was given up, and whose end takes the reply of the next request of
    /// its slot away.
    #[test]
    fn a_repetition_waits_for_its_own_request() {
        let repeats = Repeats::default();
        assert!(repeats.take(1, (0, 1)).is_none());
        assert!(repeats.wait(1, (0, 2), Sender::new(|_| ())).is_none());
        assert!(repeats.take(1, (0, 1)).is_none() && repeats.take(2, (0, 2)).is_none());
        assert!(repeats.wait(1, (0, 2), Sender::new(|_| ())).is_some(), "it replaces the first");
        assert!(repeats.take(1, (0, 2)).is_some() && repeats.take(1, (0, 2)).is_none());
    }
}
