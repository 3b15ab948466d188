//! The JSON file of plans whose report is a table.

use serde::Serialize;

use super::{Setting, TargetInfo, command, files};
use crate::{
    Result,
    cli::Output,
    harness::{Measured, Series},
};

/// Version of the JSON format.
const FORMAT: u32 = 1;

/// The result of a run.
#[derive(Serialize)]
struct Results<'a, C, R> {
    format: u32,
    /// Circumstances of the run.
    #[serde(flatten)]
    setting: &'a Setting,
    /// The program's own command line.
    command: String,
    /// Complete rounds.
    rounds: u32,
    /// The targets, in the order of tables.
    targets: Vec<TargetInfo>,
    /// A series per target and column, with all rounds.
    results: &'a [Series<C, R>],
}

/// Writes the measurements of a plan to the directory for results, and prints the path.
pub fn write<C: Serialize, R: Serialize>(
    plan: &str,
    setting: &Setting,
    measured: &Measured<C, R>,
    output: &Output,
) -> Result<()> {
    let results = Results {
        format: FORMAT,
        setting,
        command: command(),
        rounds: measured.rounds,
        targets: measured.targets.iter().map(TargetInfo::from).collect(),
        results: &measured.series,
    };
    let name = format!("{}.json", setting.stem(plan));
    files::tell(&files::write(&output.dir(), vec![(name, files::json(&results)?)])?);
    Ok(())
}
