//! Finds a shorter program that fails, too. No I/O, no locks, no clock.

use super::program::{Program, Round};
use crate::error::Result;

/// Leaves rounds and operations out of a program that fails in a round, as long as it still
/// fails.
///
/// # Errors
/// Those of `fails`, which runs a program.
pub(crate) fn shrink(
    program: &Program,
    round: usize,
    fails: &mut impl FnMut(&Program) -> Result<bool>,
) -> Result<Program> {
    let end = (round + 1).min(program.rounds.len());
    let mut shortest = Program { rounds: program.rounds[..end].to_vec() };
    // Halves, quarters, and so on of the rounds before the last one.
    let mut piece = end / 2;
    while piece > 0 {
        let mut from = 0;
        while from + piece < shortest.rounds.len() {
            let mut candidate = shortest.clone();
            candidate.rounds.drain(from..from + piece);
            match fails(&candidate)? {
                true => shortest = candidate,
                false => from += piece,
            }
        }
        piece /= 2;
    }
    loop {
        let before = shortest.operations();
        drop_tasks(&mut shortest, fails)?;
        if shortest.operations() == before {
            return Ok(shortest);
        }
    }
}

/// Leaves out each operation that is not needed.
fn drop_tasks(shortest: &mut Program, fails: &mut impl FnMut(&Program) -> Result<bool>) -> Result<()> {
    let ids = shortest.rounds.iter().flat_map(|round| round.stages.iter().flatten()).map(|task| task.id);
    for id in ids.collect::<Vec<_>>() {
        let mut candidate = shortest.clone();
        for stage in candidate.rounds.iter_mut().flat_map(|round| &mut round.stages) {
            stage.retain(|task| task.id != id);
        }
        candidate.rounds.iter_mut().for_each(|round| round.stages.retain(|stage| !stage.is_empty()));
        candidate.rounds.retain(|round: &Round| !round.stages.is_empty() || round.kill.is_some());
        if fails(&candidate)? {
            *shortest = candidate;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{operation::Op, program::Task},
        *,
    };

    #[test]
    fn only_what_is_needed_is_left() {
        let task = |id| Task { worker: 0, id, op: Op::Stat { slot: 0 } };
        let rounds = (0..10).map(|n| Round {
            stages: vec![vec![task(3 * n), task(3 * n + 1)], vec![task(3 * n + 2)]],
            kill: None,
        });
        let program = Program { rounds: rounds.collect() };
        let ids = |program: &Program| -> Vec<u64> {
            program
                .rounds
                .iter()
                .flat_map(|round| round.stages.iter().flatten())
                .map(|task| task.id)
                .collect()
        };
        let mut fails = |candidate: &Program| Ok([4, 20].iter().all(|id| ids(candidate).contains(id)));
        let shortest = shrink(&program, 6, &mut fails).unwrap();
        assert_eq!(ids(&shortest), [4, 20]);
    }
}
