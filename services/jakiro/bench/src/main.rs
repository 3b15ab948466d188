//! `jakiro-bench`: see `jakiro-bench --help`.

mod cli;
mod error;
mod figure;
mod load;
mod peer;
mod program;
mod run;
mod simulation;

use std::process::ExitCode;

use program_version::Build;

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("protocol", jakiro::protocol::VERSION as u32), ("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    match program::run(BUILD.parse::<cli::Cli>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jakiro-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
