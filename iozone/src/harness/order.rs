//! The order of the turns. No I/O, no locks, no clock.
//!
//! In a round every test runs once on every target that has it. The order of the targets alternates
//! between forwards and backwards, so that slow drift of the machine affects all of them alike.

/// One measurement: a test of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<T> {
    /// Test to measure at this turn.
    pub test: T,
    /// Index of the target.
    pub target: usize,
}

/// Returns the turns of a round, in order; `of` has the tests of each target.
pub(super) fn turns<T: Copy + PartialEq>(round: u32, tests: &[T], of: &[Vec<T>]) -> Vec<Turn<T>> {
    let mut turns = Vec::new();
    for (n, &test) in tests.iter().enumerate() {
        let mut targets: Vec<usize> = (0..of.len()).filter(|target| of[*target].contains(&test)).collect();
        if (round as usize + n) % 2 == 1 {
            targets.reverse();
        }
        turns.extend(targets.into_iter().map(|target| Turn { test, target }));
    }
    turns
}

/// Returns sorted values without duplicates.
pub fn sorted<T: Ord>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: char = 'A';
    const B: char = 'B';

    fn order(round: u32, tests: &[Vec<char>]) -> Vec<(char, usize)> {
        let all = sorted(tests.iter().flatten().copied());
        turns(round, &all, tests).into_iter().map(|turn| (turn.test, turn.target)).collect()
    }

    #[test]
    fn the_order_alternates() {
        let of = vec![vec![0, 1]; 3];
        let order = |round| {
            turns(round, &[0, 1], &of).into_iter().map(|turn| (turn.test, turn.target)).collect::<Vec<_>>()
        };
        assert_eq!(order(0), [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]);
        assert_eq!(order(1), [(0, 2), (0, 1), (0, 0), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn targets_alternate_within_each_test() {
        let tests = [vec![A, B], vec![A], vec![B, A]];
        assert_eq!(order(0, &tests), [(A, 0), (A, 1), (A, 2), (B, 2), (B, 0)]);
        assert_eq!(order(1, &tests), [(A, 2), (A, 1), (A, 0), (B, 0), (B, 2)]);
        assert_eq!(order(0, &[]), []);
    }

    #[test]
    fn every_test_of_every_target_has_one_turn_a_round() {
        let tests = [vec![A, B], vec![], vec![B]];
        for round in 0..4 {
            let mut turns = order(round, &tests);
            turns.sort_unstable();
            assert_eq!(turns, [(A, 0), (B, 0), (B, 2)]);
        }
    }
}
