//! Processor time and context switches of a process or a thread, from `getrusage`.

use std::time::Duration;

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use serde::Serialize;

/// Resource usage up to a moment, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Microseconds in user mode.
    pub user_us: u64,
    /// Microseconds in the kernel.
    pub system_us: u64,
    /// Number of times that a thread yielded the processor to wait.
    pub voluntary_switches: u64,
    /// Number of times that a thread was preempted.
    pub involuntary_switches: u64,
}

impl Usage {
    /// Returns the usage of this process, including ended threads.
    pub fn of_process() -> Usage {
        Self::of(UsageWho::RUSAGE_SELF)
    }

    /// Returns the usage of this thread.
    pub fn of_thread() -> Usage {
        Self::of(UsageWho::RUSAGE_THREAD)
    }

    fn of(who: UsageWho) -> Usage {
        // getrusage fails only for an invalid argument.
        let Ok(usage) = getrusage(who) else { return Usage::default() };
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        Usage {
            user_us: number(usage.user_time().num_microseconds()),
            system_us: number(usage.system_time().num_microseconds()),
            voluntary_switches: number(usage.voluntary_context_switches()),
            involuntary_switches: number(usage.involuntary_context_switches()),
        }
    }

    /// Returns the processor time.
    pub fn cpu(&self) -> Duration {
        Duration::from_micros(self.user_us + self.system_us)
    }

    /// Returns the number of context switches of both kinds.
    pub fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    fn with(self, other: Usage, combine: impl Fn(u64, u64) -> u64) -> Usage {
        Usage {
            user_us: combine(self.user_us, other.user_us),
            system_us: combine(self.system_us, other.system_us),
            voluntary_switches: combine(self.voluntary_switches, other.voluntary_switches),
            involuntary_switches: combine(self.involuntary_switches, other.involuntary_switches),
        }
    }

    /// Returns the difference to an earlier usage, or to the usage of a part.
    #[must_use]
    pub fn minus(self, earlier: Usage) -> Usage {
        self.with(earlier, u64::saturating_sub)
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Usage) -> Usage {
        self.with(other, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic() {
        let one = Usage { user_us: 5, system_us: 4, voluntary_switches: 3, involuntary_switches: 2 };
        let two = Usage { user_us: 1, system_us: 1, voluntary_switches: 1, involuntary_switches: 5 };
        assert_eq!(one.plus(two).minus(two), one);
        assert_eq!(one.minus(two).involuntary_switches, 0);
        assert_eq!((one.cpu(), one.switches()), (Duration::from_micros(9), 5));
    }

    #[test]
    fn a_thread_that_waits_switches() {
        let before = Usage::of_thread();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || receiver.recv());
        sender.send(()).unwrap();
        thread.join().unwrap().unwrap();
        // The counters of a thread never decrease, and those of the process are at least as large.
        let after = Usage::of_thread();
        assert_eq!(before.minus(after), Usage::default());
        assert!(Usage::of_process().switches() >= after.switches());
    }
}
