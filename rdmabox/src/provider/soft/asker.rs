//! Who asks of a set of queue pairs, if it is one client of this host that asks one request at a time.
//!
//! Written by whoever makes progress on the queue pairs, a request at a time; read by the thread that waits for them. Two that make progress at once may
//! lose count of each other's requests: it is an estimate.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::verbs::Asker;

/// The core is asked for once in so many requests.
const LOOK_EVERY: u32 = 4;
/// So many bytes are as much work as a request.
const UNIT: u64 = 32 << 10;

#[derive(Debug, Default)]
pub(crate) struct AskerCount {
    core: AtomicUsize,
    requests: AtomicU32,
    work: AtomicU64,
}

impl AskerCount {
    /// A request of `len` bytes with [`SendFlags::SOLE`](crate::verbs::SendFlags::SOLE) has come from `core` of this host.
    pub(crate) fn sole(&self, len: u64, core: impl FnOnce() -> Option<usize>) {
        let before = self.requests.load(Ordering::Relaxed);
        let mut requests = before.saturating_add(1);
        if before.is_multiple_of(LOOK_EVERY) {
            match core() {
                Some(core) if core == self.core.load(Ordering::Relaxed) => {}
                Some(core) => {
                    self.core.store(core, Ordering::Relaxed);
                    requests = 1;
                }
                None => requests = 0,
            }
        }
        self.work.fetch_add(1 + len / UNIT, Ordering::Relaxed);
        self.requests.store(requests, Ordering::Release);
    }

    /// Some other request has come.
    pub(crate) fn other(&self) {
        if self.requests.load(Ordering::Relaxed) > 0 {
            self.requests.store(0, Ordering::Release);
        }
    }

    pub(crate) fn get(&self) -> Option<Asker> {
        let requests = self.requests.load(Ordering::Acquire);
        (requests > 0).then(|| Asker {
            core: self.core.load(Ordering::Relaxed),
            requests,
            work: self.work.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_one_core_and_one_asker() {
        let count = AskerCount::default();
        assert_eq!(count.get(), None);
        let asker = |core, requests, work| Some(Asker { core, requests, work });
        (0..5).for_each(|_| count.sole(4096, || Some(3)));
        assert_eq!(count.get(), asker(3, 5, 5));
        // It has moved, which is noticed a little later.
        (0..3).for_each(|_| count.sole(128 << 10, || Some(1)));
        assert_eq!(count.get(), asker(3, 8, 20));
        count.sole(0, || Some(1));
        assert_eq!(count.get(), asker(1, 1, 21));
        count.other();
        assert_eq!(count.get(), None);
        count.sole(0, || None);
        assert_eq!(count.get(), None, "on another host");
        count.sole(0, || Some(1));
        assert_eq!(count.get(), asker(1, 1, 23));
    }

    #[test]
    fn a_row_has_no_end() {
        let count = AskerCount { requests: AtomicU32::new(u32::MAX - 1), ..AskerCount::default() };
        (0..3).for_each(|_| count.sole(0, || Some(0)));
        assert_eq!(count.get().map(|asker| asker.requests), Some(u32::MAX));
    }
}
