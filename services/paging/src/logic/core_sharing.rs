//! Decides when the fault thread shares the core of a thread of the program.
//!
//! A thread that faults waits for the fault thread, so its core is free meanwhile. On this core the
//! fault thread needs no interrupt to begin, and none to let the other thread continue. A program
//! whose threads fault in turn has no such core. [`CoreSharing`] gets a sample of the faults at
//! most once in [`INTERVAL`], and leaves the core if the faults become fewer there.
//!
//! # Concurrency
//! Plain values. No clock.

use std::time::Duration;

/// Least time between two samples.
const INTERVAL: Duration = Duration::from_millis(1);
/// Samples of one thread in turn before its core is shared.
const AGREEING: u32 = 2;
/// Faults in a millisecond below which sharing is not worth a change.
const MIN_RATE: f64 = 2.0;
/// Slow samples in turn after which the core is left.
const SLOW: u32 = 4;
/// Share of the rate before, below which a sample is slow.
const SLOW_SHARE: f64 = 0.75;
/// Samples in turn that are not slow, after which the next pause is short again.
const GOOD: u32 = 64;
const MIN_PAUSE: Duration = Duration::from_millis(64);
const MAX_PAUSE: Duration = Duration::from_secs(4);

/// The facts at a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Time since any fixed instant.
    pub(crate) now: Duration,
    /// The thread that faulted.
    pub(crate) thread: u32,
    /// Its core; `None` if it is not known, or cannot be shared.
    pub(crate) core: Option<usize>,
    /// Faults so far.
    pub(crate) faults: u64,
}

/// The next action of the fault thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Stay,
    /// Run on this core only.
    Share(usize),
    /// Run on any core.
    Leave,
}

/// The decision, and the state that it depends on.
#[derive(Debug)]
pub(crate) struct CoreSharing {
    last: Option<Sample>,
    /// Samples of the last thread in turn.
    agreeing: u32,
    shared: Option<usize>,
    /// Faults in a millisecond before the core was shared.
    rate_before: f64,
    slow: u32,
    good: u32,
    pause: Duration,
    /// No core is shared before this time.
    resume: Duration,
}

impl Default for CoreSharing {
    fn default() -> CoreSharing {
        CoreSharing {
            last: None,
            agreeing: 0,
            shared: None,
            rate_before: 0.0,
            slow: 0,
            good: 0,
            pause: MIN_PAUSE,
            resume: Duration::ZERO,
        }
    }
}

impl CoreSharing {
    /// Returns true if it is time for a sample.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| now.saturating_sub(last.now) >= INTERVAL)
    }

    /// Returns true while a core is shared.
    pub(crate) fn is_sharing(&self) -> bool {
        self.shared.is_some()
    }

    /// Takes a sample, and decides.
    pub(crate) fn sample(&mut self, sample: Sample) -> Step {
        let Some(last) = self.last.replace(sample) else { return Step::Stay };
        let elapsed = sample.now.saturating_sub(last.now).as_secs_f64() * 1e3;
        let rate = sample.faults.saturating_sub(last.faults) as f64 / elapsed.max(f64::EPSILON);
        let core = sample.core.filter(|_| sample.thread == last.thread);
        let Some(core) = core else {
            self.agreeing = 0;
            return self.leave();
        };
        self.agreeing += 1;
        match self.shared {
            Some(shared) => self.judge(sample.now, (shared, core), rate),
            None if self.agreeing >= AGREEING && rate >= MIN_RATE && sample.now >= self.resume => {
                (self.rate_before, self.slow, self.good) = (rate, 0, 0);
                self.shared = Some(core);
                Step::Share(core)
            }
            None => Step::Stay,
        }
    }

    /// Decides whether a shared core stays, if the thread is at `core` now.
    fn judge(&mut self, now: Duration, (shared, core): (usize, usize), rate: f64) -> Step {
        if rate < SLOW_SHARE * self.rate_before {
            (self.slow, self.good) = (self.slow + 1, 0);
        } else {
            (self.slow, self.good) = (0, self.good + 1);
        }
        if self.good >= GOOD {
            self.pause = MIN_PAUSE;
        }
        if self.slow >= SLOW {
            self.pause_from(now);
            return self.leave();
        }
        if core == shared {
            return Step::Stay;
        }
        // The kernel has moved the thread.
        self.shared = Some(core);
        Step::Share(core)
    }

    fn pause_from(&mut self, now: Duration) {
        self.resume = now + self.pause;
        self.pause = (2 * self.pause).min(MAX_PAUSE);
    }

    /// Notes that the fault thread has left the core, because no fault came for a while. `starved`:
    /// because a fault had to wait.
    pub(crate) fn end(&mut self, now: Duration, starved: bool) {
        self.leave();
        if starved {
            self.pause_from(now);
        }
    }

    fn leave(&mut self) -> Step {
        if self.shared.take().is_some() { Step::Leave } else { Step::Stay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes samples in intervals of a millisecond.
    struct Samples {
        follow: CoreSharing,
        now: Duration,
        faults: u64,
    }

    impl Samples {
        fn new() -> Samples {
            Samples { follow: CoreSharing::default(), now: Duration::ZERO, faults: 0 }
        }

        fn pass(&mut self, thread: u32, core: usize, faults: u64) -> Step {
            self.now += INTERVAL;
            self.faults += faults;
            self.follow.sample(Sample { now: self.now, thread, core: Some(core), faults: self.faults })
        }
    }

    #[test]
    fn one_thread_is_followed_to_its_core_and_to_the_next_one() {
        let mut samples = Samples::new();
        assert_eq!([(); 3].map(|()| samples.pass(7, 1, 10)), [Step::Stay, Step::Stay, Step::Share(1)]);
        assert_eq!(samples.pass(7, 1, 10), Step::Stay);
        assert_eq!(samples.pass(7, 0, 10), Step::Share(0));
        samples.follow.end(samples.now, false);
        assert!(!samples.follow.is_sharing());
        assert_eq!(samples.pass(7, 0, 10), Step::Share(0));
        // Its core is not known, or not the pager's.
        samples.faults += 10;
        samples.now += INTERVAL;
        let sample = Sample { now: samples.now, thread: 7, core: None, faults: samples.faults };
        assert_eq!(samples.follow.sample(sample), Step::Leave);
    }

    #[test]
    fn a_core_on_which_a_fault_waits_is_left_for_a_while() {
        let mut samples = Samples::new();
        (0..3).for_each(|_| _ = samples.pass(7, 1, 10));
        samples.follow.end(samples.now, true);
        let steps = [(); 64].map(|()| samples.pass(7, 1, 10));
        assert_eq!(steps.iter().position(|step| *step == Step::Share(1)), Some(63));
    }

    #[test]
    fn threads_in_turn_are_not_followed() {
        let mut samples = Samples::new();
        (0..100).for_each(|turn| assert_eq!(samples.pass(turn % 2, 1, 10), Step::Stay));
        (0..2).for_each(|_| _ = samples.pass(1, 1, 10));
        assert!(samples.follow.is_sharing());
        assert_eq!(samples.pass(2, 1, 10), Step::Leave);
    }

    #[test]
    fn rare_faults_are_not_worth_a_change() {
        let mut samples = Samples::new();
        (0..100).for_each(|_| assert_eq!(samples.pass(7, 1, 1), Step::Stay));
    }

    #[test]
    fn a_core_on_which_faults_become_fewer_is_left_for_longer_and_longer() {
        let mut samples = Samples::new();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let begin = samples.now;
            while !samples.follow.is_sharing() {
                samples.pass(7, 1, 10);
            }
            pauses.push((samples.now - begin).as_millis());
            let slow = [(); 4].map(|()| samples.pass(7, 1, 5));
            assert_eq!(slow, [Step::Stay, Step::Stay, Step::Stay, Step::Leave]);
        }
        assert_eq!(pauses, [3, 64, 128, 256, 512, 1024, 2048, 4000, 4000]);
        // A time without trouble ends that.
        (0..4000 + 2 * i64::from(GOOD)).for_each(|_| _ = samples.pass(7, 1, 10));
        assert!(samples.follow.is_sharing());
        (0..4).for_each(|_| _ = samples.pass(7, 1, 5));
        let steps = [(); 64].map(|()| samples.pass(7, 1, 10));
        assert_eq!(steps.iter().position(|step| *step == Step::Share(1)), Some(63));
    }
}
