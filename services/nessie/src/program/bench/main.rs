//! `nessie-bench`: see `nessie-bench --help`.

mod children;
mod cli;
mod figures;
mod load;

use std::{
    error::Error,
    io::{self, ErrorKind},
    process::ExitCode,
};

use program_version::Build;

use self::cli::{Cli, Figure, Role};

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    let cli = BUILD.parse::<Cli>();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has seen enough.
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nessie-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    match &cli.role {
        Some(Role::Hog { processor }) => children::hog(*processor),
        Some(Role::Serve(serve)) => children::serve(serve),
        None => {
            for figure in if cli.figure.is_empty() { Figure::ALL.to_vec() } else { cli.figure.clone() } {
                figures::run(figure, cli)?;
            }
            Ok(())
        }
    }
}
