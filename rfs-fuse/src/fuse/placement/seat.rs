//! What a session thread does itself. It tells the guard who calls in one word that it alone writes, so that it waits for
//! nobody; and it keeps up with the caller.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::Pid;

use super::{NOBODY, depth::Samples, habit::Seen, policy::Scheduler};

/// A request is as much work as a small one, and as that once more for each so many bytes that it moves.
pub(super) const UNIT: usize = 32 << 10;

/// A session thread.
#[derive(Debug)]
pub(super) struct Seat {
    tid: Pid,
    tally: AtomicU64,
    samples: AtomicU64,
}

/// What a seat has served. In one word: the caller, the length of its run, and the number of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Who made the last request: a thread's number, [`NOBODY`] if none has been made.
    pub(super) caller: u32,
    /// The work of those that it has made in a row; no more than this can say.
    pub(super) run: u16,
    /// The work of all requests, counted round and round.
    pub(super) count: u16,
}

impl Tally {
    /// After one more request. Those that the kernel makes on its own, as far as they are small, are nobody's.
    fn after(self, caller: u32, bytes: usize) -> Tally {
        let work = u16::try_from(1 + bytes / UNIT).unwrap_or(u16::MAX);
        let run = match caller {
            NOBODY if work == 1 => return self,
            NOBODY => 0,
            _ if caller == self.caller => self.run.saturating_add(work),
            _ => work,
        };
        Tally { caller, run, count: self.count.wrapping_add(work) }
    }

    /// Whether the count has come past a multiple since an earlier tally.
    pub(super) fn passed(self, multiple: u16, earlier: Tally) -> bool {
        self.count / multiple != earlier.count / multiple
    }

    /// What came since an earlier tally, if it was less than 65536.
    pub(super) fn since(self, earlier: Tally) -> Seen {
        let work = self.count.wrapping_sub(earlier.count).into();
        Seen { work, caller: self.caller, run: self.run.into(), samples: Samples::default() }
    }

    fn pack(self) -> u64 {
        u64::from(self.caller) << 32 | u64::from(self.run) << 16 | u64::from(self.count)
    }

    fn unpack(word: u64) -> Tally {
        Tally { caller: (word >> 32) as u32, run: (word >> 16) as u16, count: word as u16 }
    }
}

impl Seat {
    /// Of a thread.
    pub(super) fn new(tid: Pid) -> Seat {
        let [tally, samples] = [Tally::default().pack(), Samples::default().pack()].map(AtomicU64::new);
        Seat { tid, tally, samples }
    }

    pub(super) fn tid(&self) -> Pid {
        self.tid
    }

    /// Counts a request: before and after that. Only for the thread itself.
    pub(super) fn note(&self, caller: u32, bytes: usize) -> (Tally, Tally) {
        let before = self.tally();
        let tally = before.after(caller, bytes);
        self.tally.store(tally.pack(), Ordering::Relaxed);
        (before, tally)
    }

    /// Goes after the caller if the kernel has moved it. Only for the thread itself.
    pub(super) fn keep_up(&self, caller: u32, followed: &AtomicU32, scheduler: &mut impl Scheduler) {
        if caller == NOBODY || followed.load(Ordering::SeqCst) != caller {
            return;
        }
        // If it is not to be seen any more, the guard finds that out.
        let Some(core) = scheduler.core_of(caller) else { return };
        if core == scheduler.own_core() {
            return;
        }
        let moved = scheduler.shift(self.tid, core);
        // The guard first says that nobody is followed, and then lifts. If it has lifted before the shift, that shows here; and
        // this thread is not SCHED_IDLE then, so that it gets to lift itself.
        if (moved.is_err() || followed.load(Ordering::SeqCst) != caller)
            && let Err(e) = scheduler.lift(self.tid)
        {
            log::warn!("a session thread stays on its core: {e}");
        }
    }

    pub(super) fn tally(&self) -> Tally {
        Tally::unpack(self.tally.load(Ordering::Relaxed))
    }

    /// Counts a sample. Only for the thread itself.
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
        super::fake::{Fake, Schedule, World, bound, pid},
        *,
    };

    const CALLER: u32 = 77;

    /// A seat that is bound to core 3 keeps up with who is followed; what comes of it.
    fn after_keeping_up(
        followed: u32,
        change: impl FnOnce(&mut World, Arc<AtomicU32>),
    ) -> Vec<(u32, Schedule)> {
        let (seat, mut world, followed) =
            (Seat::new(pid(1)), Fake::default(), Arc::new(AtomicU32::new(followed)));
        {
            let world = &mut *world.0.lock();
            world.threads.insert(pid(1), bound(3));
            world.own_core = 3;
            world.cores.insert(CALLER, 5);
            change(world, followed.clone());
        }
        seat.keep_up(CALLER, &followed, &mut world);
        world.changed()
    }

    #[test]
    fn a_seat_goes_after_its_caller() {
        let there = |core| vec![(1, bound(core))];
        assert_eq!(after_keeping_up(CALLER, |_, _| ()), there(5));
        assert_eq!(after_keeping_up(CALLER + 1, |_, _| ()), there(3));
        let gone = |world: &mut World, _| world.cores.clear();
        assert_eq!(after_keeping_up(CALLER, gone), there(3));
        let stays = |world: &mut World, _| _ = world.cores.insert(CALLER, 3);
        assert_eq!(after_keeping_up(CALLER, stays), there(3));
        let refused = |world: &mut World, _| world.refuses = true;
        assert_eq!(after_keeping_up(CALLER, refused), []);
        let lifted = |world: &mut World, followed: Arc<AtomicU32>| {
            world.meanwhile = Some(Box::new(move |world| {
                followed.store(NOBODY, Ordering::SeqCst);
                world.threads.clear();
            }));
        };
        assert_eq!(after_keeping_up(CALLER, lifted), []);
    }

    #[test]
    fn runs() {
        let seat = Seat::new(rustix::thread::gettid());
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
            let before = seat.tally();
            let (earlier, Tally { caller, run, count }) = seat.note(caller, bytes);
            assert_eq!(((caller, run, count), earlier), (expected, before));
            assert_eq!(seat.tally(), Tally { caller, run, count });
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
        fn a_tally_is_one_word(caller: u32, run: u16, count: u16) {
            let tally = Tally { caller, run, count };
            prop_assert_eq!(Tally::unpack(tally.pack()), tally);
        }

        /// A caller counts as the only one if and only if it is.
        #[test]
        fn a_run_covers_what_one_caller_made(callers in prop::collection::vec(1..3u32, 1..40), first: u16, run: u16) {
            let earlier = Tally { caller: 1, run, count: first };
            let seen = callers.iter().fold(earlier, |tally, caller| tally.after(*caller, 0)).since(earlier);
            prop_assert_eq!(seen.work as usize, callers.len());
            prop_assert_eq!(Some(&seen.caller), callers.last());
            let sole = callers.iter().all(|caller| *caller == seen.caller);
            prop_assert_eq!(seen.run >= seen.work, sole);
        }
    }
}
