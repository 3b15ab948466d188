//! Parts of all reports: the setting, tables, drawings and files.

pub mod files;
pub mod markdown;
pub mod results;
pub mod svg;

use serde::{Deserialize, Serialize};

use crate::{
    cli::Output,
    harness,
    machine::{self, Machine},
    target::Side,
};

/// Name of the reference target for ratios.
pub const REFERENCE: &str = "null";

/// Circumstances of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Start time, RFC 3339, UTC.
    pub began: String,
    /// Commit of the source tree.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
}

/// A target in a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Short name.
    pub name: String,
    /// Description.
    pub title: String,
    /// True for a target that is only an upper bound.
    pub ceiling: bool,
    /// Command lines of its last run.
    pub commands: Vec<String>,
}

impl Setting {
    /// Returns the setting of a run that begins now.
    pub fn now(output: &Output) -> Self {
        Self {
            began: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            commit: machine::commit(&output.source),
            machine: Machine::here(),
        }
    }

    /// Describes the measurement, the machine and the time.
    pub fn head(&self, measurement: &str) -> String {
        format!("{measurement}\n{}\ncommit {}, {}", self.machine.summary(), self.commit, self.began)
    }

    /// Returns the common beginning of the file names of a run.
    pub fn stem(&self, plan: &str) -> String {
        format!("{plan}-{}", self.began.replace(['-', ':', 'Z'], "").replace('T', "-"))
    }
}

impl From<&harness::TargetInfo> for TargetInfo {
    fn from(info: &harness::TargetInfo) -> Self {
        let (name, title) = (info.name.clone(), info.title.clone());
        Self { name, title, ceiling: info.side == Side::Ceiling, commands: info.commands.clone() }
    }
}

/// Returns the command that ran this program, as a user types it in any checkout.
pub fn command() -> String {
    user_command(std::env::args().skip(1))
}

/// Returns the command as a user types it. `iozone/run` adds `--source DIR` itself.
fn user_command(mut args: impl Iterator<Item = String>) -> String {
    let mut command = "iozone/run".to_owned();
    while let Some(arg) = args.next() {
        if arg == "--source" {
            args.next();
        } else {
            command = command + " " + &arg;
        }
    }
    command
}

/// Describes the number of rounds.
pub fn show_rounds(rounds: u32) -> String {
    match rounds {
        1 => "1 round".to_owned(),
        n => format!("medians of {n} interleaved rounds"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn a_published_command_names_no_directory_of_this_machine() {
        let args = ["scaling", "--source", "/home/me/tree", "--check", "--size", "1g"];
        assert_eq!(
            user_command(args.iter().map(ToString::to_string)),
            "iozone/run scaling --check --size 1g"
        );
    }

    /// Returns a setting for examples.
    pub(crate) fn setting() -> Setting {
        Setting {
            began: "2024-01-02T03:04:05Z".into(),
            commit: "0123456789ab".into(),
            machine: Machine::example(),
        }
    }

    #[test]
    fn heads_and_file_names_have_the_time() {
        let setting = setting();
        let machine = setting.machine.summary();
        assert_eq!(
            setting.head("4 files"),
            format!("4 files\n{machine}\ncommit 0123456789ab, 2024-01-02T03:04:05Z")
        );
        assert_eq!(setting.stem("scaling"), "scaling-20240102-030405");
    }
}
