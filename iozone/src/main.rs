//! `rfs-iozone`: measures rfs. Run it through `iozone/run`, which installs and builds the required
//! programs.

use std::process::ExitCode;

use clap::Parser;
use iozone::plan::Cli;

fn main() -> ExitCode {
    match Cli::parse().command.perform() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("rfs-iozone: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}
