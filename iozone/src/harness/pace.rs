//! Estimates the remaining time of a run. No I/O, no locks, no clock.

use super::Turn;

/// The durations of completed turns.
#[derive(Clone, Debug)]
pub(super) struct Pace<T> {
    /// Turn, cost and last duration in seconds.
    taken: Vec<(Turn<T>, f64, f64)>,
}

impl<T> Default for Pace<T> {
    fn default() -> Self {
        Self { taken: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Pace<T> {
    /// Records the duration of a turn. `cost` is the expected duration, if it is known.
    pub(super) fn took(&mut self, turn: Turn<T>, cost: Option<f64>, seconds: f64) {
        match self.taken.iter_mut().find(|(known, ..)| *known == turn) {
            Some((.., last)) => *last = seconds,
            None => self.taken.push((turn, cost.unwrap_or(1.0), seconds)),
        }
    }

    /// Returns the estimated seconds for these turns with their costs: the last duration of each
    /// turn. A turn without a duration takes as long as its cost, at the pace of the completed
    /// turns. Returns `None` if nothing is completed and some cost is unknown.
    pub(super) fn left(&self, turns: impl IntoIterator<Item = (Turn<T>, Option<f64>)>) -> Option<f64> {
        if self.taken.is_empty() {
            return turns.into_iter().map(|(_, cost)| cost).sum();
        }
        let (costs, seconds) =
            self.taken.iter().fold((0.0, 0.0), |(costs, sum), (_, cost, took)| (costs + cost, sum + took));
        let of = |(turn, cost): (Turn<T>, Option<f64>)| {
            let known = self.taken.iter().find(|(known, ..)| *known == turn);
            known.map_or_else(|| cost.unwrap_or(1.0) * seconds / costs, |(.., seconds)| *seconds)
        };
        Some(turns.into_iter().map(of).sum())
    }
}

/// Formats seconds for the progress display.
pub(super) fn show_seconds(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(target: usize) -> Turn<char> {
        Turn { test: 'A', target }
    }

    #[test]
    fn the_estimate_is_the_last_duration_of_each_turn() {
        let left = |pace: &Pace<char>, targets: &[usize]| {
            pace.left(targets.iter().map(|target| (turn(*target), None)))
        };
        let mut pace = Pace::default();
        assert_eq!(left(&pace, &[0]), None);
        pace.took(turn(0), None, 9.0);
        pace.took(turn(0), None, 1.0);
        pace.took(turn(1), None, 3.0);
        assert_eq!(left(&pace, &[0, 1, 0]), Some(5.0));
        // The mean of the recorded turns.
        assert_eq!(left(&pace, &[7]), Some(2.0));
        assert_eq!(left(&pace, &[]), Some(0.0));
    }

    #[test]
    fn the_estimate_follows_the_pace_of_completed_work() {
        let (less, more) = ((turn(0), Some(20.0)), (turn(1), Some(80.0)));
        let mut pace = Pace::default();
        assert_eq!(pace.left([less, more]), Some(100.0));
        pace.took(turn(0), Some(20.0), 40.0);
        assert_eq!(pace.left([more]), Some(160.0));
        assert_eq!(pace.left([]), Some(0.0));
    }

    #[test]
    fn times_are_short() {
        assert_eq!((show_seconds(89.4), show_seconds(600.0)), ("89 s".into(), "10 min".into()));
    }
}
