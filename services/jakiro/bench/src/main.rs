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

use clap::Parser;

fn main() -> ExitCode {
    match program::run(cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jakiro-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
