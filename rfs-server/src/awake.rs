//! Time as far as the server could run: what it grants to sessions is time in which they could have reached it.
//!
//! A server that is stopped, or whose machine is suspended, finds every deadline passed when it goes on, and what clients have said meanwhile
//! unread. So whoever waits for a deadline looks at this clock often, and between two looks it goes on by no more than [`LONGEST`]:
//! a time in which nobody looked, or could look, is not more than that. While nobody waits nobody looks, and no deadline is there that
//! could come too late.
//!
//! Threading: any thread, one lock for moments.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use seeded_faults::{Fault, seeded};

/// No standstill counts for more.
const LONGEST: Duration = Duration::from_secs(1);
/// How often whoever waits looks.
const LOOK: Duration = Duration::from_millis(500);

static CLOCK: LazyLock<Mutex<Awake>> = LazyLock::new(|| Mutex::new(Awake::new(Instant::now())));

/// The time by this clock. It has nothing to do with that of others.
pub(crate) fn now() -> Instant {
    let mut clock = CLOCK.lock();
    // Under the lock, so that nobody comes with an older time.
    let now = Instant::now();
    clock.at(now)
}

/// Until when, by the system's clock, somebody may sleep who waits for a time by this one: then he looks again.
pub(crate) fn wake_for(deadline: Instant) -> Instant {
    Instant::now() + deadline.saturating_duration_since(now()).min(LOOK)
}

#[derive(Debug)]
struct Awake {
    /// The last look, by the system's clock and by this one.
    looked: Instant,
    time: Instant,
}

impl Awake {
    fn new(now: Instant) -> Awake {
        Awake { looked: now, time: now }
    }

    fn at(&mut self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.looked);
        self.time += if seeded(Fault::StandstillCounts) { passed } else { passed.min(LONGEST) };
        self.looked = now;
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_no_time() {
        let begin = Instant::now();
        let mut clock = Awake::new(begin);
        let after = |ms| begin + Duration::from_millis(ms);
        assert_eq!(clock.at(after(0)), begin);
        for look in 1..=20 {
            assert_eq!(clock.at(after(500 * look)), after(500 * look));
        }
        // Stopped for a minute: whoever was to be there by then has most of his time before him.
        assert_eq!(clock.at(after(70_000)), after(11_000));
        assert_eq!(clock.at(after(70_001)), after(11_001));
        assert_eq!(clock.at(after(60_000)), after(11_001));
    }
}
