//! `rfs-fresh`: run it through `iozone/run --fresh`, which installs and builds the required
//! programs.

use std::{io::stdout, process::ExitCode};

use clap::Parser;
use iozone::{
    Result,
    fresh::{
        cli::{Cli, Internal, Options},
        run, table,
    },
    interrupt::Interrupt,
    machine::{self, Machine},
    scaling::data,
};
use measure::progress::Progress;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Internal::Data(work)) => data::work(&work, &mut stdout()).map(|()| true),
        None => fresh(cli.options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("rfs-fresh: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}

/// Returns false if the results are to be checked and miss a requirement.
fn fresh(options: Options) -> Result<bool> {
    let options = options.settled(machine::memory_available())?;
    let began = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let interrupt = Interrupt::on_signals()?;
    let entrants = run::entrants(&options)?;
    let mut progress = Progress::new(u64::from(options.rounds) * entrants.len() as u64);
    let tell = |step, label| {
        progress.begin(label);
        progress.at(step);
    };
    let rounds = run::run(&options, &entrants, &interrupt, tell)?;
    drop(progress);
    let (text, all) = table::render(&entrants, &rounds);
    let (here, commit) = (Machine::here().summary(), machine::commit(&options.source));
    println!("{}\n\n{text}", table::head(&options, &here, &commit, &began));
    Ok(all || !options.check)
}
