//! The order of the turns, and an estimate of their duration. No I/O, no locks, no clock.
//!
//! In a round every job runs once on every target that has it. The order of the targets alternates
//! between forwards and backwards, so that slow drift of the machine affects all of them alike.

use super::column::Job;

/// One measurement: a job of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The job.
    pub job: Job,
    /// Index of the target.
    pub target: usize,
}

/// Returns the turns of a round, in order, for targets with these jobs.
pub fn turns(round: u32, jobs: &[Vec<Job>]) -> Vec<Turn> {
    let mut all: Vec<Job> = jobs.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let mut turns = Vec::new();
    for (n, job) in all.into_iter().enumerate() {
        let having = |target: &usize| jobs[*target].contains(&job);
        let mut targets: Vec<usize> = (0..jobs.len()).filter(having).collect();
        if (round as usize + n) % 2 == 1 {
            targets.reverse();
        }
        turns.extend(targets.into_iter().map(|target| Turn { job, target }));
    }
    turns
}

/// Estimates the remaining time from the turns of earlier rounds.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Last duration of each turn that has been taken.
    seconds: Vec<(Turn, f64)>,
}

impl Pace {
    /// Records the duration of a turn.
    pub fn took(&mut self, turn: Turn, seconds: f64) {
        match self.seconds.iter_mut().find(|(known, _)| *known == turn) {
            Some((_, last)) => *last = seconds,
            None => self.seconds.push((turn, seconds)),
        }
    }

    /// Returns the estimated seconds for these turns. A turn without a record counts as the mean of
    /// the others. Returns `None` without any record.
    pub fn left(&self, turns: impl IntoIterator<Item = Turn>) -> Option<f64> {
        if self.seconds.is_empty() {
            return None;
        }
        let mean = self.seconds.iter().map(|(_, seconds)| seconds).sum::<f64>() / self.seconds.len() as f64;
        let of =
            |turn: Turn| self.seconds.iter().find(|(known, _)| *known == turn).map_or(mean, |known| known.1);
        Some(turns.into_iter().map(of).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Job = Job::Iozone(1);
    const B: Job = Job::Fio(1);

    fn order(round: u32, jobs: &[Vec<Job>]) -> Vec<(Job, usize)> {
        turns(round, jobs).into_iter().map(|turn| (turn.job, turn.target)).collect()
    }

    #[test]
    fn targets_alternate_within_each_job() {
        let jobs = [vec![A, B], vec![A], vec![B, A]];
        assert_eq!(order(0, &jobs), [(A, 0), (A, 1), (A, 2), (B, 2), (B, 0)]);
        assert_eq!(order(1, &jobs), [(A, 2), (A, 1), (A, 0), (B, 0), (B, 2)]);
        assert_eq!(order(0, &[]), []);
    }

    #[test]
    fn every_job_of_every_target_has_one_turn_a_round() {
        let jobs = [vec![A, B], vec![], vec![B]];
        for round in 0..4 {
            let mut turns = order(round, &jobs);
            turns.sort_unstable();
            assert_eq!(turns, [(A, 0), (B, 0), (B, 2)]);
        }
    }

    #[test]
    fn the_estimate_is_the_last_duration_of_each_turn() {
        let turn = |target| Turn { job: A, target };
        let mut pace = Pace::default();
        assert_eq!(pace.left([turn(0)]), None);
        pace.took(turn(0), 9.0);
        pace.took(turn(0), 1.0);
        pace.took(turn(1), 3.0);
        assert_eq!(pace.left([turn(0), turn(1), turn(0)]), Some(5.0));
        // The mean of the recorded turns.
        assert_eq!(pace.left([turn(7)]), Some(2.0));
        assert_eq!(pace.left([]), Some(0.0));
    }
}
