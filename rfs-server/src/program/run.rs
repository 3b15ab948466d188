//! The program `rfs-server`: command line, log, signals, and one-line error messages.
//!
//! # Concurrency
//! The main thread. It blocks on signals while the threads of the server work.

use std::{
    ffi::OsString,
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

use clap::CommandFactory;
use program_version::Build;
use rfs_paging::Lender;
use rfs_proto::{BLOCK, StatFs, VERSION};
use rfs_status::{
    logging::{self, SIGNAL},
    metrics::BoundEndpoint,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::{Handle, Signals},
    low_level::signal_name,
};

use super::{
    cli::Cli,
    configuration::{self, Configuration, check, reload, warn_of_expiry},
    new_key::{self, KeyFiles},
    pool, resize,
    status::{self, Answers},
    store::{self, RegistrationArguments, StoreArguments},
};
use crate::server::{Server, config::Config};

/// Time for sessions to end after a thread of the server has failed.
const END_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Exit status of an invalid command line, and of invalid options in a file.
const INVALID: u8 = 2;

/// Returns the command line with all commands, for manual pages and completions. The program parses
/// `status`, `pool` and `resize` before it parses its own options.
pub fn command() -> clap::Command {
    Cli::command().subcommand(status::command()).subcommand(pool::command()).subcommand(resize::command())
}

/// Runs the program with the command line of this process. `commit` names its sources.
pub fn main(commit: Option<&'static str>) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(arguments) = status::own_arguments(&arguments) {
        return status::main(arguments);
    }
    if let Some(arguments) = pool::own_arguments(&arguments) {
        return pool::main(arguments);
    }
    if let Some(arguments) = resize::own_arguments(&arguments) {
        return resize::main(arguments);
    }
    let protocols = &[("protocol", VERSION), ("runtime protocol", rdmabox::PROTOCOL)];
    let build = Build { version: env!("CARGO_PKG_VERSION"), commit, protocols };
    let (configuration, cli) = match configuration::read(build, arguments) {
        Ok(read) => read,
        Err(e) => return ExitCode::from(e.report("rfs-server")),
    };
    if cli.check_config {
        return show_checked(&configuration, &cli);
    }
    if let Some(key) = &cli.access.new_key {
        let files = KeyFiles { server: cli.access.keys.as_deref(), client: cli.access.key_file.as_deref() };
        return match new_key::make(key, files, &mut io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("rfs-server: {e}");
                ExitCode::FAILURE
            }
        };
    }
    logging::init("info", cli.log_format);
    let lends = cli.pool.store;
    let (metrics, kill) = (cli.metrics, !cli.keep_stragglers);
    let (lending, open) = (cli.lending.clone(), cli.access.allow_without_keys);
    let (memory, key) = (cli.memory.unwrap_or_default(), cli.pool.pool_key.clone());
    let registration =
        RegistrationArguments { urls: cli.pool.registry.clone(), address: cli.pool.register_as.clone() };
    let config = cli.into_config();
    let outcome = match key.filter(|_| lends) {
        Some(key) => store::serve(StoreArguments { memory, listen: config.listen, key, kill, registration }),
        None => serve_and_lend(config, metrics, Some(configuration), || {
            lending.start(open).map_err(|e| e.to_string())
        }),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("rfs-server: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Checks the options, prints them, and returns the exit status of the program.
fn show_checked(configuration: &Configuration, cli: &Cli) -> ExitCode {
    match check(cli) {
        Ok(warnings) => {
            service_program::say(configuration.show().trim_end());
            warnings.iter().for_each(|warning| eprintln!("rfs-server: warning: {warning}"));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("rfs-server: {e}");
            ExitCode::from(INVALID)
        }
    }
}

/// Raises the soft limit of descriptors to the hard limit: each session takes several. Most soft
/// limits are set for programs that use `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        log::debug!("the limit on open files stays: {e}");
    }
}

/// Serves until a stop signal, or until an essential thread fails. Serves metrics at the address
/// `metrics`, too.
///
/// # Errors
/// The server did not start, failed, or did not stop in order.
pub fn serve(config: Config, metrics: Option<SocketAddr>) -> Result<(), String> {
    serve_and_lend(config, metrics, None, || Ok(None))
}

/// Serves like [`serve`]. SIGHUP reads `configuration` again. `lend` starts to lend memory to
/// pagers, before the server starts.
fn serve_and_lend(
    config: Config,
    metrics: Option<SocketAddr>,
    mut configuration: Option<Configuration>,
    lend: impl FnOnce() -> Result<Option<Lender>, String>,
) -> Result<(), String> {
    raise_descriptor_limit();
    // In every mode: the default effect of each of them would end the server with all files.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])
        .map_err(|e| format!("cannot handle signals: {e}"))?;
    let failure = Arc::<OnceLock<String>>::default();
    watch_threads(&failure, signals.handle());
    rdmabox::memory::survive().map_err(|e| format!("cannot prepare for lost memory: {e}"))?;
    // First, because the start of a server takes time.
    let metrics = metrics.map(BoundEndpoint::bind).transpose().map_err(|e| e.to_string())?;
    let socket = config.socket;
    let lender = lend()?;
    let server = Server::start(config).map_err(|e| e.to_string())?;
    warn_of_expiry(&server);
    let answers = Answers::start(&server, socket, metrics).map_err(|e| e.to_string())?;
    if let Err(e) = announce(&server, answers.metrics_address(), lender.as_ref(), &mut io::stdout().lock()) {
        // The program that started the server may have closed the pipe; serve nevertheless.
        log::debug!("cannot write to standard output: {e}");
    }
    tell_manager(NotifyState::Ready);
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => {
                if !server.snapshot() {
                    log::warn!(target: SIGNAL, "SIGUSR1: no snapshot, because the server runs without --persist");
                }
            }
            SIGUSR2 => log::info!("SIGUSR2 has no effect"),
            SIGHUP => reload(&server, configuration.as_mut()),
            signal => {
                log::info!("{}: the server stops", signal_name(signal).unwrap_or("a signal"));
                break;
            }
        }
    }
    tell_manager(NotifyState::Stopping);
    drop(answers);
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, server.hurry())
            .map_err(|e| format!("cannot handle signals: {e}"))?;
    }
    match failure.get() {
        None => server.shutdown().map_err(|e| e.to_string()),
        Some(failure) => match server.shutdown_failed(END_AFTER_FAILURE) {
            Ok(()) => Err(failure.clone()),
            Err(e) => Err(format!("{failure}; {e}")),
        },
    }
}

/// Stops the server, like a signal, when an essential thread fails.
fn watch_threads(failure: &Arc<OnceLock<String>>, signals: Handle) {
    let failure = Arc::clone(failure);
    rdmabox::failure::watch(move |what| {
        log::error!("{what}: the server ends");
        // The first failure is the cause of the others.
        let _ = failure.set(what.to_owned());
        signals.close();
    });
}

/// Notifies the service manager, if there is one.
fn tell_manager(news: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[news]) {
        log::warn!("cannot notify the service manager: {e}");
    }
}

fn announce(
    server: &Server,
    metrics: Option<SocketAddr>,
    lender: Option<&Lender>,
    out: &mut impl Write,
) -> io::Result<()> {
    for address in server.addresses() {
        writeln!(out, "listening on {address}")?;
    }
    if let Some(lender) = lender {
        let status = lender.status();
        let size = byte_size::show(u64::from(status.chunks) * status.chunk_bytes);
        for address in lender.addresses() {
            writeln!(out, "lending {size} to pagers at {address}")?;
        }
    }
    if let Some(address) = metrics {
        writeln!(out, "metrics at http://{address}/metrics")?;
    }
    let show = |totals: &StatFs| {
        let (bytes, inodes) = (totals.blocks * BLOCK, totals.inodes);
        format!("{} ({inodes} inodes)", byte_size::show(bytes))
    };
    let exports: Vec<_> = server.exports().collect();
    if exports.len() > 1 {
        for (name, totals) in &exports {
            writeln!(out, "exporting {name}: {}", show(totals))?;
        }
    }
    let sum = |sum: StatFs, (_, totals): &(&str, StatFs)| StatFs {
        blocks: sum.blocks + totals.blocks,
        inodes: sum.inodes + totals.inodes,
        ..sum
    };
    writeln!(out, "ready: lending {}", show(&exports.iter().fold(StatFs::default(), sum)))?;
    out.flush()
}
