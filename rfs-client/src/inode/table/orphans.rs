//! Unlinked inodes, until this client stops using them.
//!
//! The server keeps an unlinked inode for every client that was told of it, until the client
//! sends [`Request::Forget`]. The client may send that when the caller has no reference to the
//! inode, and no reply in flight can bring one. [`Arrivals`] counts the requests whose replies
//! bring inode numbers. An unlinked inode is settled when all requests have ended that were in
//! flight when the client heard of the unlink. Later requests cannot bring its number.
//!
//! # Concurrency
//! Any thread. The locks are held briefly. Only `settle` takes the lock of the inode table, and
//! it holds none of this module's locks meanwhile. One thread runs [`Orphans::send_all`].

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rfs_proto::{MAX_FORGET, Request};

/// Time in which forgotten inodes are collected for one message. The server counts their space as
/// free meanwhile. A caller that unlinks many files waits behind each message, so the client
/// sends few.
const BATCH: Duration = Duration::from_millis(100);

/// A Forget without inodes.
pub(crate) const ANNOUNCEMENT: Request<'static> = Request::Forget { inos: &[] };

/// Requests in flight whose replies may bring inode numbers, and unlinked inodes that wait for
/// their end. No I/O, no locks, no clock.
///
/// Each request belongs to the interval in which it began. Each unlinked inode ends an interval.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    interval: u64,
    /// Intervals with requests in flight, in order, and their numbers of requests.
    open: VecDeque<(u64, u32)>,
    /// Intervals and the unlinked inode that ended each, in order.
    waiting: VecDeque<(u64, u64)>,
}

impl Arrivals {
    /// Counts a request that begins. Returns its interval.
    pub(crate) fn enter(&mut self) -> u64 {
        match self.open.back_mut() {
            Some((interval, count)) if *interval == self.interval => *count += 1,
            _ => self.open.push_back((self.interval, 1)),
        }
        self.interval
    }

    /// Counts the end of a request of an interval. Returns true if that may settle an inode.
    pub(crate) fn leave(&mut self, interval: u64) -> bool {
        if let Some((_, count)) = self.open.iter_mut().find(|(open, _)| *open == interval) {
            *count -= 1;
        }
        while self.open.front().is_some_and(|(_, count)| *count == 0) {
            self.open.pop_front();
        }
        !self.waiting.is_empty()
    }

    /// Returns true if no request is in flight and no inode waits. A newly unlinked inode is then
    /// settled.
    pub(crate) fn are_none(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }

    /// Adds an unlinked inode.
    pub(crate) fn unlinked(&mut self, ino: u64) {
        self.waiting.push_back((self.interval, ino));
        self.interval += 1;
    }

    /// Takes an inode whose number no request in flight can bring.
    pub(crate) fn take_settled(&mut self) -> Option<u64> {
        let first_open = self.open.front().map_or(u64::MAX, |(interval, _)| *interval);
        self.waiting.front().filter(|(interval, _)| *interval < first_open)?;
        let (_, ino) = self.waiting.pop_front()?;
        Some(ino)
    }
}

/// Inodes to report to the server.
#[derive(Debug, Default)]
struct Outbox {
    inos: Vec<u64>,
    /// True if a thread sends them. Without it the server keeps no unlinked inodes for this client.
    is_served: bool,
    ends: bool,
}

/// Has the caller drop the names of an unlinked inode. Does not block.
type DropNames = Box<dyn Fn(u64) + Send + Sync>;

/// Unlinked inodes of a client.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) arrivals: Mutex<Arrivals>,
    outbox: Mutex<Outbox>,
    more: Condvar,
    pub(crate) drop_names: OnceLock<DropNames>,
    /// True once a request that removes a name has failed without a reply, so that an inode may be
    /// unlinked without this client's knowledge. From then on every forgotten inode is reported.
    in_doubt: AtomicBool,
}

impl fmt::Debug for Orphans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orphans").field("arrivals", &self.arrivals).finish_non_exhaustive()
    }
}

impl Orphans {
    /// Notes that the caller has forgotten an inode.
    pub(crate) fn forgotten(&self, ino: u64, unlinked: bool) {
        if unlinked || self.in_doubt.load(Ordering::Relaxed) {
            self.post(ino);
        }
    }

    /// Notes that a request to remove a name has failed, and may have taken effect.
    pub(crate) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    pub(crate) fn post(&self, ino: u64) {
        let mut outbox = self.outbox.lock();
        if !outbox.is_served {
            return;
        }
        outbox.inos.push(ino);
        if matches!(outbox.inos.len(), 1 | MAX_FORGET) {
            self.more.notify_one();
        }
    }

    /// Makes forgotten inodes wait for [`send_all`](Self::send_all).
    pub(crate) fn begin(&self) {
        self.outbox.lock().is_served = true;
    }

    /// Ends [`send_all`](Self::send_all).
    pub(crate) fn end(&self) {
        let mut outbox = self.outbox.lock();
        (outbox.is_served, outbox.ends) = (false, true);
        self.more.notify_one();
    }

    /// Sends forgotten inodes in batches, until [`end`](Self::end).
    pub(crate) fn send_all(&self, mut send: impl FnMut(&[u64])) {
        loop {
            let inos = {
                let mut outbox = self.outbox.lock();
                while outbox.inos.is_empty() && !outbox.ends {
                    self.more.wait(&mut outbox);
                }
                let until = Instant::now() + BATCH;
                while outbox.inos.len() < MAX_FORGET && !outbox.ends {
                    if self.more.wait_until(&mut outbox, until).timed_out() {
                        break;
                    }
                }
                if outbox.ends {
                    return;
                }
                std::mem::take(&mut outbox.inos)
            };
            inos.chunks(MAX_FORGET).for_each(&mut send);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_inode_settles_after_all_earlier_requests_have_ended() {
        let mut arrivals = Arrivals::default();
        arrivals.unlinked(7);
        assert_eq!((arrivals.take_settled(), arrivals.take_settled()), (Some(7), None));
        let before = arrivals.enter();
        arrivals.unlinked(8);
        let after = arrivals.enter();
        assert_eq!(arrivals.take_settled(), None);
        assert!(arrivals.leave(before));
        assert_eq!(arrivals.take_settled(), Some(8));
        assert!(!arrivals.leave(after));
        assert!(arrivals.open.is_empty());
    }

    proptest! {
        /// Each inode settles exactly once, as soon as all requests have ended that were in flight
        /// at its unlink.
        #[test]
        fn agrees_with_sets(steps in proptest::collection::vec((0..3u8, 0..8usize), 1..120)) {
            let mut arrivals = Arrivals::default();
            let mut under_way: Vec<(u32, u64)> = Vec::new();
            let mut waiting: Vec<(u64, Vec<u32>)> = Vec::new();
            for (at, (kind, which)) in (0u32..).zip(steps) {
                match kind {
                    0 => under_way.push((at, arrivals.enter())),
                    1 if which < under_way.len() => {
                        let (id, interval) = under_way.remove(which);
                        let any = arrivals.leave(interval);
                        prop_assert_eq!(any, !waiting.is_empty());
                        waiting.iter_mut().for_each(|(_, ids)| ids.retain(|other| *other != id));
                    }
                    1 => {}
                    _ => {
                        arrivals.unlinked(u64::from(at));
                        waiting.push((u64::from(at), under_way.iter().map(|(id, _)| *id).collect()));
                    }
                }
                let mut settled: Vec<u64> = std::iter::from_fn(|| arrivals.take_settled()).collect();
                let mut expected: Vec<u64> = waiting.iter().filter(|(_, ids)| ids.is_empty()).map(|(ino, _)| *ino).collect();
                waiting.retain(|(_, ids)| !ids.is_empty());
                settled.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(settled, expected);
            }
        }
    }

    #[test]
    fn forgotten_inodes_are_sent_in_batches() {
        let orphans = Orphans::default();
        orphans.forgotten(5, true);
        orphans.begin();
        orphans.forgotten(6, false);
        let (sender, sent) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| orphans.send_all(|inos| sender.send(inos.to_vec()).unwrap()));
            (1..=MAX_FORGET as u64).for_each(|ino| orphans.forgotten(ino, true));
            let mut all = Vec::new();
            while all.len() < MAX_FORGET {
                let inos = sent.recv().unwrap();
                assert!(inos.len() <= MAX_FORGET);
                all.extend(inos);
            }
            assert_eq!(all, (1..=MAX_FORGET as u64).collect::<Vec<_>>());
            orphans.doubt();
            orphans.forgotten(9, false);
            assert_eq!(sent.recv(), Ok(vec![9]));
            orphans.end();
        });
    }
}
