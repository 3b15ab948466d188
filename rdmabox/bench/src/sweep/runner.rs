//! The rounds of a matrix, interleaved.

use measure::{interrupt::Interrupt, progress::Progress};

use super::matrix::{Case, Matrix, describe};
use crate::{
    Result,
    run::{self, Sample},
    servers::fleet::Fleet,
};

/// A case and its samples.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The case.
    pub case: Case,
    /// One sample per round.
    pub samples: Vec<Sample>,
}

/// Returns the order of the cases in a round, which alternates between forwards and backwards. Slow
/// drift of the machine therefore affects all cases alike.
pub fn order(round: u32, cases: usize) -> Vec<usize> {
    let forwards = 0..cases;
    if round.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() }
}

/// Runs every case once per round.
pub fn run(matrix: &Matrix, rounds: u32, fleet: &mut Fleet, interrupt: &Interrupt) -> Result<Vec<Measured>> {
    /// Progress steps per run.
    const STEPS: u64 = 100;
    let mut measured: Vec<Measured> =
        matrix.cases.iter().map(|case| Measured { case: case.clone(), samples: Vec::new() }).collect();
    let mut progress = Progress::new(measured.len() as u64 * u64::from(rounds) * STEPS);
    let mut done = 0;
    for round in 0..rounds {
        for index in order(round, measured.len()) {
            interrupt.check()?;
            let Measured { case, samples } = &mut measured[index];
            progress.begin(label(&matrix.dimensions, case, round, rounds));
            samples.push(run::run(&case.load, fleet, interrupt, &mut |part| {
                progress.at(done + (part.clamp(0.0, 1.0) * STEPS as f64) as u64);
            })?);
            done += STEPS;
            progress.at(done);
        }
    }
    Ok(measured)
}

fn label(dimensions: &[String], case: &Case, round: u32, rounds: u32) -> String {
    let what = match case.coordinates.as_slice() {
        [] => format!("{} over {}", case.load.op.name(), case.load.provider),
        coordinates => describe(dimensions, coordinates),
    };
    if rounds > 1 { format!("round {}/{rounds}, {what}", round + 1) } else { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_alternate() {
        assert_eq!(order(0, 3), [0, 1, 2]);
        assert_eq!(order(1, 3), [2, 1, 0]);
        assert_eq!(order(2, 3), [0, 1, 2]);
    }
}
