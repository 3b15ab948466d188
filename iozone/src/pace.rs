//! How long the rest of a run takes. Pure.

/// Work of which is known beforehand how much of it there is, in seconds of a machine like any other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    all: f64,
    spent: f64,
}

impl Budget {
    /// So much.
    pub fn new(all: f64) -> Self {
        Self { all, spent: 0.0 }
    }

    /// So much is done.
    pub fn spend(&mut self, cost: f64) {
        self.spent += cost;
    }

    /// Seconds for the rest, after so many: at the pace of what is done, or as estimated if nothing is.
    pub fn left(&self, elapsed: f64) -> f64 {
        let pace = if self.spent > 0.0 { elapsed / self.spent } else { 1.0 };
        (self.all - self.spent).max(0.0) * pace
    }
}

/// Seconds as a user likes to read them.
pub fn show_seconds(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_goes_at_the_pace_of_what_is_done() {
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
