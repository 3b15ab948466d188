//! Executes a parsed command line.

use std::{
    env,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
};

use measure::{
    interrupt::Interrupt,
    machine::{self, Machine},
};
use rdmabox::{HostHandle, ProviderKind};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    Error, Result,
    cli::{self, Request, RunArgs, Serve},
    experiment::{self, Exceptions, Loads},
    load::model::Model,
    report::{self, Entry, Report, metric::Metric, table},
    servers::{
        fleet::{Fleet, Source},
        server,
    },
    sweep::{
        matrix::{Matrix, parse_sweep},
        runner,
        settings::Settings,
    },
};

/// Columns of a sweep.
const COLUMNS: [Metric; 10] = [
    Metric::OpsPerSecond,
    Metric::MibPerSecond,
    Metric::P50,
    Metric::P99,
    Metric::P999,
    Metric::ClientCpu,
    Metric::ServerCpu,
    Metric::SwitchesPerOp,
    Metric::WorkRequestsPerOp,
    Metric::DoorbellsPerOp,
];
/// Panels of the chart of a sweep.
const PANELS: [Metric; 3] = [Metric::OpsPerSecond, Metric::P99, Metric::CpuPerOp];

/// Executes a command.
pub fn carry_out(request: Request) -> Result<()> {
    match request {
        Request::Serve(serve) => self::serve(&serve),
        Request::Options => {
            print(&experiment::options::table()?);
            Ok(())
        }
        Request::Bench(op, settings, bench) => {
            let dimensions = bench.sweep.as_deref().map_or(Ok(Vec::new()), parse_sweep)?;
            if let Some(twice) = dimensions.iter().find(|d| settings.has(&d.name)) {
                return Err(Error::usage(format!("--sweep varies {} itself: leave --{0} out", twice.name)));
            }
            let matrix = Matrix::new(op, &settings, &dimensions, &bench.run.connect)?;
            let title = match matrix.cases.as_slice() {
                [only] => format!("{} on {}", only.load.op.name(), matrix.carriers()),
                _ => format!("{} by {}, {}", op.name(), matrix.dimensions.join(" and "), matrix.carriers()),
            };
            let rounds = bench.run.rounds.unwrap_or(1);
            let mut report = measure(matrix, title, rounds, &bench.run, bench.run.model()?)?;
            (report.columns, report.panels) = (COLUMNS.into(), PANELS.into());
            let stem = if report.dimensions.is_empty() { op.name() } else { "sweep" };
            publish(&report, &bench.run, stem)
        }
        Request::Experiment(settings, args) => {
            if args.name == "list" {
                print(&experiment::list());
                return Ok(());
            }
            if args.name == "all" {
                return every_experiment(&settings, &args);
            }
            let experiment = experiment::find(&args.name)?;
            let check = Check::of(&args)?;
            let report = run_experiment(experiment, &settings, &args)?;
            publish(&report, &args.run, experiment.name)?;
            check.finish(&[report])
        }
    }
}

/// Runs all experiments, and writes a page with their results.
fn every_experiment(settings: &Settings, args: &cli::Experiment) -> Result<()> {
    if args.run.model()?.is_none() {
        return Err(Error::usage(
            "all experiments together are for a modelled card: give --device model:cx3",
        ));
    }
    let check = Check::of(args)?;
    let mut reports = Vec::new();
    for experiment in experiment::ALL {
        let report = run_experiment(experiment, settings, args)?;
        publish(&report, &args.run, experiment.name)?;
        reports.push(report);
    }
    let path = args.run.out.as_deref().unwrap_or(Path::new("results")).join("paper.md");
    fs::write(&path, table::page(&reports)).map_err(measure::Error::io(&path))?;
    eprintln!("wrote {}", path.display());
    check.finish(&reports)
}

/// Whether shapes of the paper have to hold.
struct Check(Option<Exceptions>);

impl Check {
    /// Reads the file of `--check` before the measurement.
    fn of(args: &cli::Experiment) -> Result<Check> {
        if args.check.is_some() && args.run.model()?.is_none() {
            return Err(Error::usage("--check is for a modelled card: give --device model:cx3 as well"));
        }
        Ok(Check(args.check.as_deref().map(Exceptions::read).transpose()?))
    }

    fn finish(&self, reports: &[Report]) -> Result<()> {
        let Some(exceptions) = &self.0 else { return Ok(()) };
        let abouts = reports.iter().filter_map(|report| report.experiment.as_ref());
        let failed: Vec<String> = abouts.flat_map(|about| exceptions.unexpected(about)).collect();
        if failed.is_empty() { Ok(()) } else { Err(Error::Shapes(failed)) }
    }
}

/// Runs one experiment.
fn run_experiment(
    experiment: experiment::Experiment,
    settings: &Settings,
    args: &cli::Experiment,
) -> Result<Report> {
    let rounds = args.run.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    let model = args.run.model()?;
    if model.as_ref().is_some_and(|model| !model.is_timed()) && experiment.name != "table1" {
        return Err(Error::usage(format!("{} needs model time: give a --dilation above 0", experiment.name)));
    }
    if args.beside.is_some() && model.is_none() {
        return Err(Error::usage("--beside is for a modelled card: give --device model:cx3 as well"));
    }
    let loads = if model.is_some() { Loads::OfCard } else { Loads::OfProvider };
    let matrix = experiment.matrix(settings, args.quick, &args.run.connect, loads)?;
    let title = experiment.title(&matrix, model.as_ref());
    let mut report = measure(matrix, title, rounds, &args.run, model)?;
    experiment.comment(&mut report);
    if let Some(provider) = args.beside {
        let loads = Loads::OfCardOver(provider);
        let matrix = experiment.matrix(settings, args.quick, &args.run.connect, loads)?;
        let title = experiment.title(&matrix, None);
        let other = measure(matrix, title, rounds, &args.run, None)?;
        experiment.add_beside(&mut report, &other, provider);
    }
    Ok(report)
}

/// Runs a matrix. Leaves no servers behind.
fn measure(
    matrix: Matrix,
    title: String,
    rounds: u32,
    args: &RunArgs,
    model: Option<Model>,
) -> Result<Report> {
    check_outputs(&matrix, args)?;
    let source = match (args.connect.as_slice(), args.in_process) {
        ([], false) => Source::Children,
        ([], true) => Source::InProcess,
        (addresses, _) => Source::Elsewhere(addresses.into()),
    };
    let (wants, available) = (matrix.peak_memory(args.connect.is_empty()), machine::memory_available());
    if wants > available {
        let (wants, available) = (byte_size::show(wants), byte_size::show(available));
        return Err(Error::usage(format!("this takes {wants} of memory, {available} are available")));
    }
    let uses_rdma = matrix.cases.iter().any(|case| case.load.provider == ProviderKind::Rdma);
    let interrupt = Interrupt::on_signals()?;
    let began = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    if model.is_some() && uses_rdma {
        return Err(Error::usage("a modelled card works over shm or tcp: leave --provider rdma out"));
    }
    check_pauses(&matrix, model.as_ref())?;
    let described = model.as_ref().map(Model::summary);
    let mut fleet = Fleet::new(source, matrix.area(), args.rdma.options()).with_model(model);
    let measured = runner::run(&matrix, rounds, &mut fleet, &interrupt)?;
    fleet.stop()?;
    Ok(Report {
        format: report::FORMAT,
        title: format!("rdmabox-bench: {title}"),
        software_provider: !uses_rdma,
        began,
        commit: env!("RDMABOX_BENCH_COMMIT").into(),
        machine: Machine::here(),
        command: env::args().collect::<Vec<_>>().join(" "),
        rounds,
        dimensions: matrix.dimensions,
        model: described,
        experiment: None,
        results: measured.into_iter().map(Entry::from).collect(),
        columns: Vec::new(),
        panels: Vec::new(),
    })
}

/// Checks the options of a modelled card's time.
fn check_pauses(matrix: &Matrix, model: Option<&Model>) -> Result<()> {
    match model {
        Some(model) => matrix.cases.iter().try_for_each(|case| model.check(&case.load)),
        None if matrix.cases.iter().any(|case| case.load.think.is_some()) => {
            Err(Error::usage("--think is for a modelled card: give --device model:cx3 as well"))
        }
        None => Ok(()),
    }
}

/// Checks before the measurement that the results can be written.
fn check_outputs(matrix: &Matrix, args: &RunArgs) -> Result<()> {
    if let Some(dir) = directory(args, &matrix.dimensions) {
        fs::create_dir_all(dir).map_err(measure::Error::io(dir))?;
    }
    if let Some(path) = args.json.as_deref().filter(|path| *path != Path::new("-")) {
        // Appending keeps an existing file until the results replace it.
        OpenOptions::new().create(true).append(true).open(path).map_err(measure::Error::io(path))?;
    }
    Ok(())
}

/// Returns the directory for output files, if there are any.
fn directory<'a>(args: &'a RunArgs, dimensions: &[String]) -> Option<&'a Path> {
    args.out.as_deref().or((!dimensions.is_empty()).then_some(Path::new("results")))
}

/// Prints and writes a report as the options say.
fn publish(report: &Report, args: &RunArgs, stem: &str) -> Result<()> {
    match &args.json {
        Some(path) if path == Path::new("-") => print(&report.json()),
        json => {
            print(&table::render(report));
            if let Some(path) = json {
                fs::write(path, report.json()).map_err(measure::Error::io(path))?;
                print(&format!("wrote {}\n", path.display()));
            }
        }
    }
    if let Some(dir) = directory(args, &report.dimensions) {
        let when: String = report.began.chars().filter(char::is_ascii_digit).collect();
        for path in report::write(report, dir, &format!("bench-{stem}-{when}"))? {
            // Not on standard output, which may carry JSON.
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}

/// Serves until a signal arrives.
fn serve(args: &Serve) -> Result<()> {
    if let Some(device) = args.rdma.device.as_deref().filter(|device| device.starts_with("model:")) {
        return Err(Error::usage(format!(
            "--device {device}: a server has no modelled card; give it to the program that measures"
        )));
    }
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(measure::Error::io("signal handler"))?;
    let listen = match args.listen.as_slice() {
        [] => server::default_addresses(0).into(),
        given => given.to_vec(),
    };
    let len = usize::try_from(args.memory).ok().filter(|len| *len as u64 <= machine::memory_available());
    let len = len.ok_or_else(|| {
        let available = byte_size::show(machine::memory_available());
        Error::usage(format!("--memory {}: {available} are available", byte_size::show(args.memory)))
    })?;
    let running: HostHandle = server::start(&listen, len, args.rdma.options())?;
    let mut text = String::new();
    for address in running.addresses() {
        text.push_str(&format!("listening on {address}\n"));
    }
    print(&format!("{text}ready: lending {}\n", byte_size::show(args.memory)));
    signals.forever().next();
    Ok(())
}

/// Writes to standard output. Ignores a closed pipe.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
