//! `rfs-iozone`: measures rfs with IOzone. Run it through `iozone/run`, which installs and builds
//! the required programs.

use std::{env, io::stdout, process::ExitCode, time::Duration};

use clap::Parser;
use iozone::{
    Error, Result,
    cli::{Bench, Cli, Internal},
    engine,
    interrupt::Interrupt,
    machine::{self, Machine},
    report::{self, Report, TargetInfo},
    runner::{self, Plan},
    size,
    target::{self, Setup},
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Internal::BuiltinWorker(job)) => engine::builtin::work(job, &mut stdout()),
        None => bench(&cli.bench),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("rfs-iozone: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}

fn bench(bench: &Bench) -> Result<()> {
    let interrupt = Interrupt::on_signals()?;
    let available = machine::memory_available();
    let (records, file_size) = (bench.records(), bench.file_size(available));
    size::check(file_size, &records, bench.threads, available)?;

    let engine = engine::choose(bench.engine)?;
    let setup = Setup::new(bench, file_size)?;
    let targets = target::targets(&bench.providers, &setup)?;
    let began = jiff::Timestamp::now();
    let plan = Plan {
        records: records.clone(),
        file_size,
        threads: bench.threads,
        rounds: bench.rounds,
        limit: Duration::from_secs(bench.timeout),
    };
    eprintln!("{}, {} files", engine.describe(), size::show(file_size));
    let mut measured = runner::run(&plan, &targets, engine.as_ref(), &interrupt)?;

    let infos: Vec<TargetInfo> = targets
        .iter()
        .zip(std::mem::take(&mut measured.commands))
        .map(|(target, commands)| TargetInfo {
            name: target.name().to_owned(),
            title: target.title().to_owned(),
            ceiling: target.is_ceiling(),
            commands,
        })
        .collect();
    let report = Report {
        format: report::FORMAT,
        began: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        commit: machine::commit(&bench.output.source),
        machine: Machine::here(),
        engine: engine.describe(),
        command: env::args().collect::<Vec<_>>().join(" "),
        file_size,
        record_sizes: records,
        threads: bench.threads,
        rounds: bench.rounds,
        reads_are_page_cache_hits: bench.switches.keep_pages(),
        results: report::entries(&measured, &infos),
        targets: infos,
    };
    println!("{}", report::table::render(&report));
    let stem = format!("iozone-{}", began.strftime("%Y%m%d-%H%M%S"));
    let written = report::write(&report, &measured.log, &bench.output.dir(), &stem)?;
    for path in written {
        println!("wrote {}", path.display());
    }
    Ok::<(), Error>(())
}
