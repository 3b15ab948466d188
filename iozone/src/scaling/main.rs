//! `rfs-scaling`: run it through `iozone/run --scaling`, which installs and builds the required
//! programs.

use std::{env, io::stdout, process::ExitCode, time::Duration};

use clap::Parser;
use iozone::{
    Error, Result,
    interrupt::Interrupt,
    machine::{self, Machine},
    places,
    scaling::{
        cli::{Cli, Internal, Options},
        data, document,
        lineup::Mounts,
        measure::Loads,
        names, plan,
        report::{Scaling, Setting},
        run, table,
    },
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Internal::Data(work)) => data::work(work, &mut stdout()).map(|()| true),
        Some(Internal::Names(work)) => names::work(work, &mut stdout()).map(|()| true),
        None => scaling(&cli.options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("rfs-scaling: {err}");
            ExitCode::from(err.exit_code())
        }
    }
}

/// Returns false if the results are to be checked and a larger load has a lower rate.
fn scaling(options: &Options) -> Result<bool> {
    let interrupt = Interrupt::on_signals()?;
    if options.document.is_some() {
        machine::clean_commit(&options.output.source)?;
    }
    let extent = options.extent();
    let (points, left_out) = plan::points(&extent, machine::memory_available());
    for reason in &left_out {
        eprintln!("rfs-scaling: {reason}");
    }
    if points.is_empty() {
        return Err(Error::Usage("of all that was chosen there is nothing to measure".into()));
    }
    let lineup = Mounts::new(options)?;
    let meter = Loads::new(&extent, Duration::from_secs(options.timeout))?;
    let began = jiff::Timestamp::now();
    let limit = Duration::from_secs(options.minutes.saturating_mul(60));
    let mut progress = measure::progress::Progress::new(0);
    let tell = |label| progress.begin(label);
    let measured = run::run((&extent, &points), &lineup, &meter, limit, &interrupt, tell)?;
    drop(progress);
    let setting = Setting {
        began: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        commit: machine::commit(&options.output.source),
        machine: Machine::here(),
        command: env::args().collect::<Vec<_>>().join(" "),
    };
    let scaling = Scaling::new(setting, &extent, left_out, &measured);
    println!("{}", table::render(&scaling));
    let stem = format!("scaling-{}", began.strftime("%Y%m%d-%H%M%S"));
    let mut files = vec![(format!("{stem}.json"), places::json(&scaling)?)];
    files.extend(document::files(&scaling, format!("{stem}.md"), &format!("{stem}-")));
    let mut written = places::write(&options.output.dir(), files)?;
    if let Some(dir) = &options.document {
        written.extend(places::write(dir, document::files(&scaling, "README.md".into(), ""))?);
    }
    for path in written {
        println!("wrote {}", path.display());
    }
    for verdict in scaling.verdicts.iter().filter(|verdict| !verdict.met) {
        eprintln!(
            "rfs-scaling: {}, {}, {}: {:.2} at {} of what {} gave",
            verdict.series.name(),
            verdict.pattern.name(),
            verdict.target,
            verdict.ratio,
            verdict.series.show(verdict.load),
            verdict.series.show(verdict.peak_load)
        );
    }
    Ok(!options.check || scaling.passes())
}
