//! `rfs-metadata`: run it through `iozone/run --names`, which installs and builds the required
//! programs.

use std::{io::stdout, process::ExitCode};

use clap::Parser;
use iozone::{
    Error, Result,
    interrupt::Interrupt,
    machine::{self, Machine},
    metadata::{
        cli::{Bench, Cli, Internal},
        run, table, worker,
    },
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Internal::Worker(work)) => worker::work(&work, &mut stdout()),
        None => bench(&cli.bench.settled()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("rfs-metadata: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}

fn bench(bench: &Bench) -> Result<()> {
    let began = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let interrupt = Interrupt::on_signals()?;
    let targets = run::targets(bench)?;
    let cells = run::run(bench, &targets, &interrupt)?;
    let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
    let (text, all) = table::render(&cells, &names);
    let (here, commit) = (Machine::here().summary(), machine::commit(&bench.source));
    println!("{}\n", table::head(bench, &here, &commit, &began));
    print!("{text}");
    match all || !bench.check {
        true => Ok(()),
        false => Err(Error::Child { program: "rfs".into(), what: "slower than it has to be".into() }),
    }
}
