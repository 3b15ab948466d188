//! `rstore`: see `rstore --help`.

mod figures;
mod jobs;
mod serve;
mod show;

use std::{
    io::{self, ErrorKind},
    process::ExitCode,
};

use program_version::Build;
use rstore::cli::{Cli, Command};

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    let cli = BUILD.parse::<Cli>();
    cli.log.start("warn");
    let outcome = match cli.command {
        Command::Master(options) => serve::master(&options),
        Command::Store(options) => serve::store(&options),
        Command::Status(options) => show::status(&options),
        Command::Sort(options) => jobs::sort(&options),
        Command::Rank(options) => jobs::rank(&options),
        Command::Figures(options) => figures::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has seen enough.
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rstore: {error}");
            ExitCode::FAILURE
        }
    }
}
