//! Threads whose call failed with ESTALE, so that the kernel walks its path again.
//!
//! After ESTALE, the kernel repeats the walk of a call by name, and asks for every name
//! (LOOKUP_REVAL). It does so once: ESTALE in the second walk fails the call. So the adapter
//! sends a thread back where the kernel may have used a stale name, and never twice. The second
//! walk uses the inode that it finds, even if that inode has lost its name meanwhile.
//!
//! # Concurrency
//! Session threads. One lock over the threads. While no thread walks again, one relaxed load
//! suffices.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use rfs_client::Creator;

/// Number of threads that are remembered at least. A thread that has not returned is forgotten
/// after twice as many others were sent back.
const THREADS: usize = 512;

/// A file that a thread is about to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
    /// Permission bits.
    pub(super) perm: u32,
    pub(super) by: Creator,
}

/// Threads that were sent back, with the file that each is about to create.
type SentBack = FxHashMap<u32, Option<Intent>>;

/// Threads that were sent back: the latest, and the earlier ones.
#[derive(Debug, Default)]
pub(super) struct Retries {
    count: AtomicUsize,
    threads: Mutex<[SentBack; 2]>,
}

impl Retries {
    /// Sends a thread back. Returns false if the thread was sent back before in this call, or if it
    /// has no number here.
    pub(super) fn send_back(&self, thread: u32, intent: Option<Intent>) -> bool {
        if thread == 0 {
            return false;
        }
        self.locked(|[latest, before]| {
            if latest.remove(&thread).or_else(|| before.remove(&thread)).is_some() {
                return false;
            }
            if latest.len() == THREADS {
                *before = std::mem::take(latest);
            }
            latest.insert(thread, intent);
            true
        })
    }

    /// Records that a call of a thread has passed the walk. The next call may be sent back.
    pub(super) fn finish_walk(&self, thread: u32) {
        if !self.is_empty() {
            self.locked(|sent| sent.iter_mut().for_each(|sent| sent.retain(|&other, _| other != thread)));
        }
    }

    /// Returns the file that a thread is about to create under a name, if it was sent back because
    /// the name exists.
    pub(super) fn intent(&self, thread: u32, parent: u64, name: &[u8]) -> Option<Intent> {
        if self.is_empty() {
            return None;
        }
        let sent = self.threads.lock();
        let intent = sent.iter().find_map(|sent| sent.get(&thread))?.as_ref();
        intent.filter(|intent| (intent.parent, &*intent.name) == (parent, name)).cloned()
    }

    /// Returns true if a thread was sent back in this call.
    pub(super) fn is_sent_back(&self, thread: u32) -> bool {
        !self.is_empty() && self.threads.lock().iter().any(|sent| sent.contains_key(&thread))
    }

    fn is_empty(&self) -> bool {
        // A thread sees its own entry: its requests come one after the other.
        self.count.load(Ordering::Relaxed) == 0
    }

    fn locked<T>(&self, step: impl FnOnce(&mut [SentBack; 2]) -> T) -> T {
        let mut sent = self.threads.lock();
        let result = step(&mut sent);
        self.count.store(sent.iter().map(SentBack::len).sum(), Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_sent_back_at_most_once_per_call() {
        let retries = Retries::default();
        assert!(retries.send_back(5, None));
        assert!(!retries.send_back(5, None), "it has come back");
        assert!(retries.send_back(5, None), "another call");
        assert!(retries.send_back(6, None));
        assert!(retries.is_sent_back(6) && !retries.is_sent_back(7));
        retries.finish_walk(5);
        assert!(retries.send_back(5, None), "the call before has succeeded");
        [5, 6].iter().for_each(|&thread| retries.finish_walk(thread));
        assert!(retries.is_empty());
        assert!(!retries.send_back(0, None));
    }

    #[test]
    fn the_intent_of_a_thread_is_found_by_its_name() {
        let (retries, by) = (Retries::default(), Creator { uid: 1, gid: 2, umask: 0 });
        let intent = Intent { parent: 1, name: b"a"[..].into(), perm: 0o600, by };
        assert_eq!(retries.intent(5, 1, b"a"), None);
        retries.send_back(5, Some(intent.clone()));
        retries.send_back(6, None);
        assert_eq!(retries.intent(5, 1, b"a"), Some(intent));
        assert_eq!(
            [(5, 2), (6, 1), (7, 1)].map(|(thread, dir)| retries.intent(thread, dir, b"a")),
            [None, None, None]
        );
        assert_eq!(retries.intent(5, 1, b"b"), None);
    }

    #[test]
    fn threads_that_never_return_are_forgotten() {
        let retries = Retries::default();
        (1..=10 * THREADS as u32).for_each(|thread| assert!(retries.send_back(thread, None)));
        assert!(retries.threads.lock().iter().map(SentBack::len).sum::<usize>() <= 2 * THREADS);
        let last = 10 * THREADS as u32;
        assert!(!retries.send_back(last - THREADS as u32 + 1, None), "the latest are known");
    }
}
