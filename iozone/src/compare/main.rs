//! `rfs-compare`: compares rfs with its ceilings and other file systems. Run it through
//! `iozone/run --compare`, which installs and builds the required programs.

use std::{env, io::stdout, process::ExitCode, time::Duration};

use clap::Parser;
use iozone::{
    Error, Result,
    compare::{
        cli::{Cli, Group, Internal, Options},
        fio::Fio,
        lineup,
        measure::{self, Times},
        meter::Instruments,
        report::{self, Comparison, Setting},
        table,
    },
    engine,
    interrupt::Interrupt,
    machine::{self, Machine},
    size,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Internal::BuiltinWorker(job)) => engine::builtin::work(job, &mut stdout()).map(|()| true),
        None => compare(&cli.options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("rfs-compare: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}

/// Returns false if the results are to be checked and miss a requirement.
fn compare(options: &Options) -> Result<bool> {
    let interrupt = Interrupt::on_signals()?;
    let extent = options.extent();
    size::check(extent.size, &extent.records, 1, machine::memory_available())?;
    let engine = engine::choose(options.engine)?;
    let fio = Fio::find();
    let mut entrants = lineup::entrants(options)?;
    if fio.is_none() && options.wants(Group::Fio) {
        eprintln!("rfs-compare: there is no fio: no O_DIRECT and no latencies (package: fio)");
        lineup::without_fio(&mut entrants);
    }
    if entrants.is_empty() {
        return Err(Error::Usage("of all that was chosen there is nothing to measure".into()));
    }
    let mut programs = vec![engine.describe()];
    programs.extend(fio.as_ref().map(|fio| fio.describe().to_owned()));
    let limit = Duration::from_secs(options.timeout);
    let meter = Instruments { engine: engine.as_ref(), fio: fio.as_ref(), extent: &extent, limit };
    let times = Times {
        rounds: extent.rounds,
        limit: Duration::from_secs(options.minutes.saturating_mul(60)),
        idle: Duration::from_millis(extent.idle_ms),
    };
    let began = jiff::Timestamp::now();
    let measured = measure::run(&entrants, &meter, times, &interrupt)?;
    let setting = Setting {
        began: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        commit: machine::commit(&options.output.source),
        machine: Machine::here(),
        programs,
        command: env::args().collect::<Vec<_>>().join(" "),
        size: extent.size,
    };
    let comparison = Comparison::new(setting, &entrants, &measured);
    println!("{}", table::render(&comparison));
    let stem = format!("compare-{}", began.strftime("%Y%m%d-%H%M%S"));
    for path in report::write(&comparison, &measured.log, &options.output.dir(), &stem)? {
        println!("wrote {}", path.display());
    }
    Ok(!options.check || comparison.passes())
}
