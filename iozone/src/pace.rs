//! Estimates the remaining time of a run. No I/O, no locks, no clock.

/// Work with a known total cost, in seconds of a typical machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    all: f64,
    spent: f64,
}

impl Budget {
    /// Returns work with this total cost.
    pub fn new(all: f64) -> Self {
        Self { all, spent: 0.0 }
    }

    /// Records that work of this cost is done.
    pub fn spend(&mut self, cost: f64) {
        self.spent += cost;
    }

    /// Returns the remaining seconds after `elapsed` seconds. Uses the pace of the completed work,
    /// or the estimated cost if none is completed.
    pub fn left(&self, elapsed: f64) -> f64 {
        let pace = if self.spent > 0.0 { elapsed / self.spent } else { 1.0 };
        (self.all - self.spent).max(0.0) * pace
    }
}

/// Formats seconds for the progress display.
pub fn show_seconds(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_pace_of_completed_work() {
        let mut budget = Budget::new(100.0);
        assert_eq!(budget.left(3.0), 100.0);
        budget.spend(20.0);
        assert_eq!(budget.left(40.0), 160.0);
        budget.spend(90.0);
        assert_eq!(budget.left(100.0), 0.0);
    }

    #[test]
    fn times_are_short() {
        assert_eq!((show_seconds(89.4), show_seconds(600.0)), ("89 s".into(), "10 min".into()));
    }
}
