//! Counts the requests of a session thread, and moves the thread with its caller.
//!
//! # Concurrency
//! The session thread writes two atomic words, which the monitor reads. No locks, so no request
//! waits for the monitor.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::Pid;

use super::{overlap::Samples, pin_policy::ThreadWork, sched::Scheduler};

/// No thread has this number.
pub(super) const NO_THREAD: u32 = 0;
/// Bytes of data that count as much work as a request.
pub(super) const UNIT: usize = 32 << 10;

/// Counts of a session thread.
#[derive(Debug)]
pub(super) struct ThreadStats {
    tid: Pid,
    tally: AtomicU64,
    samples: AtomicU64,
}

/// Work that a session thread has done. Packed into one word: the last caller, the length of its
/// run, and all work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Thread that made the last request, or [`NO_THREAD`].
    pub(super) caller: u32,
    /// Work of that thread's requests in a row. Saturates.
    pub(super) run: u16,
    /// Work of all requests. Wraps around.
    pub(super) count: u16,
}

impl Tally {
    /// Returns the tally after one more request. Small requests of the kernel itself do not count.
    fn after(self, caller: u32, bytes: usize) -> Tally {
        let work = u16::try_from(1 + bytes / UNIT).unwrap_or(u16::MAX);
        let run = match caller {
            NO_THREAD if work == 1 => return self,
            NO_THREAD => 0,
            _ if caller == self.caller => self.run.saturating_add(work),
            _ => work,
        };
        Tally { caller, run, count: self.count.wrapping_add(work) }
    }

    /// Returns true if the count has passed a multiple since an earlier tally.
    pub(super) fn passed(self, multiple: u16, earlier: Tally) -> bool {
        self.count / multiple != earlier.count / multiple
    }

    /// Returns the work since an earlier tally, if it is less than 65536.
    pub(super) fn since(self, earlier: Tally) -> ThreadWork {
        let work = self.count.wrapping_sub(earlier.count).into();
        ThreadWork { work, caller: self.caller, run: self.run.into(), samples: Samples::default() }
    }

    fn pack(self) -> u64 {
        u64::from(self.caller) << 32 | u64::from(self.run) << 16 | u64::from(self.count)
    }

    fn unpack(word: u64) -> Tally {
        Tally { caller: (word >> 32) as u32, run: (word >> 16) as u16, count: word as u16 }
    }
}

impl ThreadStats {
    /// Creates the counts of a thread.
    pub(super) fn new(tid: Pid) -> ThreadStats {
        let [tally, samples] = [Tally::default().pack(), Samples::default().pack()].map(AtomicU64::new);
        ThreadStats { tid, tally, samples }
    }

    pub(super) fn tid(&self) -> Pid {
        self.tid
    }

    /// Counts a request. Returns the tally before and after it. Only the thread itself may call
    /// this.
    pub(super) fn record(&self, caller: u32, bytes: usize) -> (Tally, Tally) {
        let before = self.tally();
        let tally = before.after(caller, bytes);
        self.tally.store(tally.pack(), Ordering::Relaxed);
        (before, tally)
    }

    /// Moves the thread to its caller's core, if the kernel has moved the caller. Only the thread
    /// itself may call this.
    pub(super) fn follow_caller(&self, caller: u32, pinned_to: &AtomicU32, scheduler: &mut impl Scheduler) {
        if caller == NO_THREAD || pinned_to.load(Ordering::SeqCst) != caller {
            return;
        }
        // If the caller is invisible, the monitor notices.
        let Some(core) = scheduler.core_of(caller) else { return };
        if core == scheduler.own_core() {
            return;
        }
        let moved = scheduler.move_to(self.tid, core);
        // The monitor resets `pinned_to` before it unpins. If it has unpinned before the move
        // above, `pinned_to` differs here. The thread is not SCHED_IDLE then, so it runs and unpins
        // itself.
        if (moved.is_err() || pinned_to.load(Ordering::SeqCst) != caller)
            && let Err(e) = scheduler.unpin(self.tid)
        {
            log::warn!("cannot unpin a session thread: {e}");
        }
    }

    pub(super) fn tally(&self) -> Tally {
        Tally::unpack(self.tally.load(Ordering::Relaxed))
    }

    /// Counts a sample. Only the thread itself may call this.
    pub(super) fn sample(&self, overlaps: bool) {
        self.samples.store(self.samples().after(overlaps).pack(), Ordering::Relaxed);
    }

    pub(super) fn samples(&self) -> Samples {
        Samples::unpack(self.samples.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::{
        super::fake::{Fake, Schedule, World, pid, pinned},
        *,
    };

    const CALLER: u32 = 77;

    /// Pins a thread to core 3 and has it follow its caller. Returns the changed schedules.
    fn after_following(
        pinned_to: u32,
        change: impl FnOnce(&mut World, Arc<AtomicU32>),
    ) -> Vec<(u32, Schedule)> {
        let (stats, mut world, pinned_to) =
            (ThreadStats::new(pid(1)), Fake::default(), Arc::new(AtomicU32::new(pinned_to)));
        {
            let world = &mut *world.0.lock();
            world.threads.insert(pid(1), pinned(3));
            world.own_core = 3;
            world.cores.insert(CALLER, 5);
            change(world, pinned_to.clone());
        }
        stats.follow_caller(CALLER, &pinned_to, &mut world);
        world.changed()
    }

    #[test]
    fn a_thread_moves_with_its_caller() {
        let there = |core| vec![(1, pinned(core))];
        assert_eq!(after_following(CALLER, |_, _| ()), there(5));
        assert_eq!(after_following(CALLER + 1, |_, _| ()), there(3));
        let gone = |world: &mut World, _| world.cores.clear();
        assert_eq!(after_following(CALLER, gone), there(3));
        let stays = |world: &mut World, _| _ = world.cores.insert(CALLER, 3);
        assert_eq!(after_following(CALLER, stays), there(3));
        let refused = |world: &mut World, _| world.refuses = true;
        assert_eq!(after_following(CALLER, refused), []);
        let unpinned = |world: &mut World, pinned_to: Arc<AtomicU32>| {
            world.meanwhile = Some(Box::new(move |world| {
                pinned_to.store(NO_THREAD, Ordering::SeqCst);
                world.threads.clear();
            }));
        };
        assert_eq!(after_following(CALLER, unpinned), []);
    }

    #[test]
    fn a_tally_counts_runs_and_work() {
        let stats = ThreadStats::new(rustix::thread::gettid());
        let steps = [
            ((7, 0), (7, 1, 1)),
            ((7, UNIT - 1), (7, 2, 2)),
            ((0, 0), (7, 2, 2)),
            ((8, 0), (8, 1, 3)),
            ((8, UNIT), (8, 3, 5)),
            ((8, 32 * UNIT), (8, 36, 38)),
            ((0, UNIT), (0, 0, 40)),
            ((7, usize::MAX), (7, u16::MAX, 39)),
            ((7, 0), (7, u16::MAX, 40)),
        ];
        for ((caller, bytes), expected) in steps {
            let before = stats.tally();
            let (earlier, Tally { caller, run, count }) = stats.record(caller, bytes);
            assert_eq!(((caller, run, count), earlier), (expected, before));
            assert_eq!(stats.tally(), Tally { caller, run, count });
        }
    }

    #[test]
    fn multiples_are_passed() {
        let at = |count| Tally { count, ..Tally::default() };
        let passed = |from, to| at(to).passed(8, at(from));
        assert!(passed(7, 8) && passed(0, 33) && passed(u16::MAX, 0));
        assert!(!passed(8, 8) && !passed(8, 15));
    }

    proptest! {
        #[test]
        fn a_tally_fits_one_word(caller: u32, run: u16, count: u16) {
            let tally = Tally { caller, run, count };
            prop_assert_eq!(Tally::unpack(tally.pack()), tally);
        }

        /// `run` covers all work if and only if one caller made all requests.
        #[test]
        fn a_run_covers_what_one_caller_made(callers in prop::collection::vec(1..3u32, 1..40), first: u16, run: u16) {
            let earlier = Tally { caller: 1, run, count: first };
            let observed = callers.iter().fold(earlier, |tally, caller| tally.after(*caller, 0)).since(earlier);
            prop_assert_eq!(observed.work as usize, callers.len());
            prop_assert_eq!(Some(&observed.caller), callers.last());
            let sole = callers.iter().all(|caller| *caller == observed.caller);
            prop_assert_eq!(observed.run >= observed.work, sole);
        }
    }
}
