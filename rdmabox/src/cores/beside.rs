//! Puts a thread that answers requests on the core of a client of the same host who asks one at a time and waits.
//!
//! Of such a client and the thread that answers him only one has something to do at any time. On two cores each of them wakes the other on a core that has gone
//! idle, which takes tens of microseconds on a virtual machine, and each reads from the other core's cache what that one has
//! written; on one core a wakeup is a switch. Where a client has several requests under way, two cores do more.
//!
//! Nothing in a request tells how long it took, and what pays for 4 KiB need not for 1 MiB. So it is tried: the thread counts the work that
//! comes in a window of time where the system has put it, and beside the client, and stays there if it is not less. From time to time it goes
//! where the system likes for a window, to compare again. If it was less, it does not try for a while, longer each time.
//!
//! What is started by a thread while it is beside a client stays there, too. An affinity that somebody gives it meanwhile stays.

use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use super::{Cores, Narrowed, System, is_refusal};
use crate::verbs::Asker;

/// So many requests in a row make somebody one who asks one at a time.
const ROW: u32 = 16;
/// Requests of a window.
const WINDOW: u32 = 64;
/// How long it stays before it compares again, at first and at most.
const STAYS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(8)];
/// How long it does not try, after the first time in vain and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(64), Duration::from_secs(16)];

/// Requests that are counted.
#[derive(Clone, Copy, Debug)]
struct Window {
    core: usize,
    requests: u32,
    work: u64,
    began: Instant,
    /// It is the one after a change, which says nothing.
    settles: bool,
}

impl Window {
    fn new(asker: Asker, began: Instant, settles: bool) -> Window {
        let Asker { core, requests, work } = asker;
        Window { core, requests, work, began, settles }
    }
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    narrowed: Narrowed,
    core: usize,
    since: Instant,
}

/// One thread's part.
#[derive(Debug, Default)]
pub(crate) struct Beside<C = System> {
    cores: C,
    window: Option<Window>,
    bound: Option<Bound>,
    /// Work in a second where the system puts the thread; known while it is bound.
    elsewhere: f64,
    /// For how long it stays, and does not try; zero is the least.
    stay: Duration,
    pause: Duration,
    rests_until: Option<Instant>,
    /// The system does not let it choose.
    refused: bool,
}

impl<C: Cores> Beside<C> {
    /// True while it is beside somebody: to look for work there keeps him from making any.
    pub(crate) fn is_there(&self) -> bool {
        self.bound.is_some()
    }

    /// To be called before the thread waits for work, with who has asked of late.
    pub(crate) fn go(&mut self, asker: Option<Asker>, now: impl FnOnce() -> Instant) {
        let Some(asker) = asker.filter(|asker| asker.requests >= ROW && !self.refused) else {
            self.leave();
            return;
        };
        if self.bound.is_some_and(|bound| bound.core != asker.core) {
            self.leave();
        }
        let same = |window: &Window| window.core == asker.core && window.requests <= asker.requests;
        let Some(window) = self.window.filter(same) else {
            self.window = Some(Window::new(asker, now(), true));
            return;
        };
        if asker.requests - window.requests < WINDOW {
            return;
        }
        let now = now();
        self.window = Some(Window::new(asker, now, false));
        if window.settles {
            return;
        }
        let time = now.saturating_duration_since(window.began).as_secs_f64();
        let rate = asker.work.saturating_sub(window.work) as f64 / time.max(1e-9);
        match self.bound {
            None if self.rests_until.is_some_and(|until| now < until) => {}
            None => self.bind(asker, rate, now),
            Some(_) if rate < self.elsewhere => {
                let pause = self.pause.max(PAUSES[0]);
                (self.rests_until, self.pause) = (Some(now + pause), (2 * pause).min(PAUSES[1]));
                self.stay = Duration::ZERO;
                self.leave();
            }
            Some(bound) if now.saturating_duration_since(bound.since) >= self.stay.max(STAYS[0]) => {
                self.stay = (2 * self.stay.max(STAYS[0])).min(STAYS[1]);
                self.pause = Duration::ZERO;
                self.leave();
            }
            Some(_) => {}
        }
    }

    fn bind(&mut self, asker: Asker, elsewhere: f64, since: Instant) {
        let bound = self.cores.allowed().and_then(|before| {
            let mut now = CpuSet::new();
            if asker.core >= CpuSet::MAX_CPU || !before.is_set(asker.core) || before.count() < 2 {
                return Ok(None);
            }
            now.set(asker.core);
            self.cores.allow(&now)?;
            Ok(Some(Bound { narrowed: Narrowed { before, now }, core: asker.core, since }))
        });
        match bound {
            Ok(Some(bound)) => {
                (self.bound, self.elsewhere, self.window) = (Some(bound), elsewhere, None);
            }
            // It is asked again when another window has gone by.
            Ok(None) => {}
            Err(e) if is_refusal(e) => {
                log::info!("a thread that answers requests may not choose its core: {e}");
                self.refused = true;
            }
            Err(e) => log::debug!("a thread that answers requests does not go to core {}: {e}", asker.core),
        }
    }

    /// It goes where the system likes.
    pub(crate) fn leave(&mut self) {
        self.window = None;
        if let Some(bound) = self.bound.take() {
            bound.narrowed.undo(&mut self.cores);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::fake::{Fake, set},
        *,
    };
    use rustix::io::Errno;

    /// A thread on core 1 of three, a client on core 0, and a clock.
    struct Trial {
        beside: Beside<Fake>,
        asker: Asker,
        now: Instant,
    }

    const MICRO: Duration = Duration::from_micros(1);

    impl Trial {
        fn new() -> Trial {
            let cores = Fake { here: 1, allowed: set(&[0, 1, 2]), ..Fake::default() };
            let beside = Beside { cores, ..Beside::default() };
            Trial { beside, asker: Asker { core: 0, requests: 0, work: 0 }, now: Instant::now() }
        }

        /// Requests, each of which takes so long where the thread is beside the client, and where it is not.
        fn requests(&mut self, count: u32, beside: Duration, elsewhere: Duration) {
            for _ in 0..count {
                let is_there = self.beside.cores.here == self.asker.core;
                self.now += if is_there { beside } else { elsewhere };
                self.asker.requests += 1;
                self.asker.work += 1;
                let now = self.now;
                self.beside.go(Some(self.asker), || now);
                // The system puts it there again.
                if !self.beside.is_there() {
                    self.beside.cores.here = 1;
                }
            }
        }

        fn changes(&self) -> usize {
            self.beside.cores.changes
        }
    }

    /// Before it has compared: the row, a window to settle and one that counts.
    const TRIED: u32 = ROW + 2 * WINDOW;

    #[test]
    fn it_goes_to_who_asks_one_at_a_time_and_stays_where_that_pays() {
        let mut trial = Trial::new();
        trial.requests(TRIED - 1, MICRO * 30, MICRO * 80);
        assert!(!trial.beside.is_there());
        trial.requests(1, MICRO * 30, MICRO * 80);
        assert!(trial.beside.is_there());
        assert_eq!((trial.beside.cores.allowed, trial.changes()), (set(&[0]), 1));
        trial.requests(8000, MICRO * 30, MICRO * 80);
        assert_eq!((trial.beside.is_there(), trial.changes()), (true, 1), "for a quarter of a second");
        // Two windows elsewhere, and back, for twice as long.
        trial.requests(17_000, MICRO * 30, MICRO * 80);
        assert_eq!((trial.beside.is_there(), trial.changes()), (true, 3));
        trial.requests(500_000, MICRO * 30, MICRO * 80);
        // After 1/4 s, 1/2, 1, 2, 4 and then each 8.
        assert_eq!((trial.beside.is_there(), trial.changes()), (true, 11));
    }

    #[test]
    fn where_two_cores_do_more_it_is_tried_less_and_less() {
        let mut trial = Trial::new();
        let mut there = 0;
        for _ in 0..1_000_000 {
            trial.requests(1, MICRO * 81, MICRO * 80);
            there += u32::from(trial.beside.is_there());
        }
        // In 80 s: after 64 ms, 128, ... 16 s and 16 s again, for two windows and the request that begins them.
        assert_eq!((trial.changes(), there), (2 * 12, (2 * WINDOW + 1) * 12));
        assert_eq!(trial.beside.cores.allowed, set(&[0, 1, 2]));
    }

    #[test]
    fn it_leaves_when_the_row_ends_or_the_client_moves() {
        let mut trial = Trial::new();
        trial.requests(TRIED, MICRO, MICRO * 2);
        assert!(trial.beside.is_there());
        trial.beside.go(None, || unreachable!("nothing is measured"));
        assert_eq!((trial.beside.is_there(), trial.beside.cores.allowed), (false, set(&[0, 1, 2])));
        trial.asker.requests = 0;
        trial.requests(TRIED, MICRO, MICRO * 2);
        assert!(trial.beside.is_there());
        trial.asker = Asker { core: 2, requests: 0, work: 7 };
        trial.requests(1, MICRO, MICRO * 2);
        assert!(!trial.beside.is_there());
        trial.requests(TRIED, MICRO, MICRO * 2);
        assert_eq!((trial.beside.is_there(), trial.beside.cores.allowed), (true, set(&[2])));
    }

    #[test]
    fn what_somebody_else_says_counts() {
        let mut trial = Trial::new();
        trial.requests(TRIED, MICRO, MICRO * 2);
        trial.beside.cores.allowed = set(&[2]);
        trial.beside.leave();
        assert_eq!((trial.beside.cores.allowed, trial.changes()), (set(&[2]), 1));
        // It may not go to the client, and has nowhere else to come from.
        trial.asker.requests = 0;
        trial.requests(10 * TRIED, MICRO, MICRO * 2);
        assert_eq!((trial.beside.is_there(), trial.changes()), (false, 1));
    }

    #[test]
    fn what_is_made_up_and_a_system_that_refuses_change_nothing() {
        let mut trial = Trial::new();
        trial.asker.core = usize::MAX;
        trial.requests(10 * TRIED, MICRO, MICRO);
        assert_eq!(trial.changes(), 0);
        for (error, tries) in [(Errno::PERM, 1), (Errno::INVAL, 1 + 8)] {
            let mut trial = Trial::new();
            trial.beside.cores.error = Some(error);
            trial.requests(TRIED + 8 * WINDOW, MICRO, MICRO);
            assert_eq!((trial.beside.is_there(), trial.changes()), (false, tries));
        }
    }
}
