//! The program: checks the arguments, connects, mounts, serves and unmounts.
//!
//! The program mounts as late as possible: every check that can fail comes first, so a failure
//! leaves no mount behind.
//!
//! # Concurrency
//! The main thread waits for an `Event`. The thread `signals` sends one for each signal, and
//! the thread `fuse` sends one at the end of the FUSE session. Takes no locks.

mod error;
mod events;
mod greeting;
mod report;
mod restart;
mod ring;
mod serve;
mod service_manager;
mod swap_area;
mod takeover;
mod unmount;

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::{CommandFactory, Parser};
use program_version::Build;
use rdmabox::{Key, Session, tls::TlsClient};

use self::{
    error::{RunError, os},
    events::listen_for_signals,
    report::report_counters,
    restart::{Restart, resume_log},
    ring::prepare_ring,
    serve::{Threads, serve},
    takeover::{Cared, ContinuedMount, Kept, Link, Prepared, connect_kept},
    unmount::Served,
};
use crate::{
    cli::{self, Args, Configuration, LostServer, USAGE},
    daemon,
    fuse::{Adapter, KernelLink, Placement, Trace},
    mount::{self, Target, within},
    mount8::{self, Invocation},
    null::NullFs,
    private_server::{self, Log, PrivateServer},
    scrub,
    status::{ObservedMount, command, trace},
};
use rfs_client::{AttachOptions, Client};
use rfs_status::{expiry, logging, metrics::BoundEndpoint};

/// Time that connecting and attaching may take beyond the timeout for connecting.
const ATTACH_SLACK: Duration = Duration::from_millis(500);

/// Time to wait for the end of a trace.
const TRACE_LIMIT: Duration = Duration::from_secs(5);

/// Exit code of a mount that ended because no session with its server is possible any more.
const SERVER_LOST: u8 = 3;

/// Returns the command line with all commands, for manual pages and completions. The program parses
/// them before it parses its own options.
pub fn command() -> clap::Command {
    let own =
        [scrub::command_line(), command::command_line(), takeover::command_line(), trace::command_line()];
    Args::command().subcommands(own)
}

/// Runs the program. Its name selects the command line of rfs-fuse or of a mount helper. `commit`
/// names its sources.
pub fn main(commit: Option<&'static str>) -> ExitCode {
    if let Some(code) =
        mount::asked().or_else(private_server::run_if_asked).or_else(takeover::format_if_asked)
    {
        return ExitCode::from(code);
    }
    let options = Args::command();
    let known = |name: &str| {
        options.get_arguments().any(|option| {
            option.get_long() == Some(name) || option.get_all_aliases().unwrap_or_default().contains(&name)
        })
    };
    let protocols = &[("protocol", rfs_proto::VERSION), ("runtime protocol", rdmabox::PROTOCOL)];
    let build = Build { version: env!("CARGO_PKG_VERSION"), commit, protocols };
    match mount8::parse(std::env::args_os(), &known) {
        Ok(Invocation::Plain(arguments)) => ExitCode::from(run_as_rfs_fuse(build, &arguments)),
        Ok(Invocation::Nothing) => ExitCode::SUCCESS,
        Ok(Invocation::Mount(arguments)) => {
            ExitCode::from(mount8::exit_code(run_as_rfs_fuse(build, &arguments)))
        }
        Ok(Invocation::Remount { point, arguments }) => {
            ExitCode::from(mount8::exit_code(remount(Path::new(&point), &arguments)))
        }
        Err(e) => ExitCode::from(mount8::exit_code(print_error(&e.to_string(), USAGE))),
    }
}

/// Changes the flags of an existing mount. Returns the exit code in rfs-fuse's numbering.
fn remount(point: &Path, arguments: &[OsString]) -> u8 {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(e) => return print_error(&e.to_string(), USAGE),
    };
    let done =
        std::fs::canonicalize(point).and_then(|path| mount::remount(&path, args.mount_options().flags));
    done.map_or_else(|e| print_error(&format!("{}: {e}", point.display()), 1), |()| 0)
}

/// Finds the function that runs a command and returns the exit code.
fn find_command(word: &OsStr) -> Option<fn(&[OsString]) -> u8> {
    Some(match word.to_str()? {
        "scrub" => scrub::main,
        "status" => command::main,
        "trace" => trace::main,
        "upgrade" => takeover::upgrade,
        _ => return None,
    })
}

/// Runs the program with rfs-fuse's own arguments, and returns the exit code.
fn run_as_rfs_fuse(build: Build, arguments: &[OsString]) -> u8 {
    if let Some(run_command) = arguments.get(1).and_then(|word| find_command(word)) {
        return run_command(&arguments[1..]);
    }
    let (configuration, args) = match cli::read(build, arguments) {
        Ok((configuration, args)) => (configuration, args.with_absolute_paths()),
        Err(e) => return e.report("rfs-fuse"),
    };
    logging::init("info,fuser=error", args.log_format);
    if args.check_config {
        return show_checked(&configuration, &args);
    }
    resume_log();
    if args.daemon && !args.detached {
        return match daemon::launch(arguments, args.quiet) {
            Ok(code) => u8::try_from(code).unwrap_or(1),
            Err(e) => fail(&RunError::Os { what: "cannot go to the background", source: e }),
        };
    }
    let caretaker = match takeover::prepare(&args, arguments) {
        Ok(Prepared::Serve(caretaker)) => caretaker,
        Ok(Prepared::Ended(code)) => return code,
        Err(e) => return fail(&e),
    };
    let restart = Restart::prepare(arguments);
    match run(&args, &configuration, caretaker) {
        Ok(()) => 0,
        Err(e @ RunError::ServerLost { .. }) if args.lost_server() == LostServer::Remount => {
            let Err(why) = restart.run();
            fail(&e) | print_error(&format!("cannot mount again: {why}"), 1)
        }
        Err(e) => fail(&e),
    }
}

/// Checks the options, prints them, and returns the exit code.
fn show_checked(configuration: &Configuration, args: &Args) -> u8 {
    match check(args) {
        Ok(()) => {
            // If stdout is closed, the text has no place to go.
            std::io::stdout().write_all(configuration.show().as_bytes()).ok();
            0
        }
        Err(e) => {
            fail(&e);
            USAGE
        }
    }
}

/// Makes the checks that come before a connection to the server and before a mount.
fn check(args: &Args) -> Result<(), RunError> {
    // A private server has no address yet.
    let address = if args.memory.is_some() { None } else { args.address()? };
    if args.memory.is_none() {
        load_credentials(args)?;
    }
    match args.descriptor()? {
        Some(number) => mount::check_descriptor(number)?,
        None => drop(mount_point(args)?),
    }
    if let Some(doubt) = args.doubt().filter(|_| address.is_some()) {
        log::warn!("{doubt}");
    }
    Ok(())
}

/// The next step for a certificate of a mount that expires.
const RENEW: &str = "renew it: the mount reads the file again when it next connects";

/// Loads the key and the certificates. Warns of a certificate that expires.
fn load_credentials(args: &Args) -> Result<(Option<Key>, Option<TlsClient>), RunError> {
    let tls = args.tls()?;
    let key = args.connection.key.as_deref().map(Key::load).transpose()?;
    let tls = tls.as_ref().map(TlsClient::load).transpose()?;
    if let Some(end) = tls.as_ref().and_then(TlsClient::expiry)
        && let Some(warning) = expiry::warning("--tls-cert", end, SystemTime::now(), RENEW)
    {
        log::warn!("{warning}");
    }
    Ok((key, tls))
}

fn fail(error: &RunError) -> u8 {
    let code = match error {
        RunError::Usage(_) => USAGE,
        RunError::ServerLost { .. } => SERVER_LOST,
        _ => 1,
    };
    print_error(&error.to_string(), code)
}

fn print_error(what: &str, code: u8) -> u8 {
    // The stderr of a process in the background leads nowhere.
    if logging::is_syslog() {
        log::error!("{what}");
    }
    eprintln!("rfs-fuse: {}", what.trim_end().replace('\n', " "));
    code
}

fn run(
    args: &Args,
    configuration: &Configuration,
    caretaker: Option<(Link, Option<Kept>)>,
) -> Result<(), RunError> {
    if args.detached {
        daemon::start_session();
    }
    if args.for_swap {
        swap_area::prepare().map_err(os("cannot lock the memory of this program"))?;
    }
    let Some(memory) = args.memory else { return mount_served(args, configuration, None, caretaker) };
    // Starting the server takes time, so an unusable mount point is refused first. The server does
    // not get an open device.
    let target = target(args)?;
    let log = match &args.log_file {
        Some(path) => Log::File(path),
        None if args.detached => Log::System,
        None => Log::Inherit,
    };
    let server = PrivateServer::start(memory, log)?;
    mount_served(&args.served_at(server.address().clone()), configuration, Some(target), None)
}

/// Returns the directory to mount on. Checks the directory and the FUSE device.
fn mount_point(args: &Args) -> Result<PathBuf, RunError> {
    let point = mount::mount_point(&args.mount_point(), &args.mount_options().fs_type)?;
    mount::device()?;
    Ok(point)
}

/// Returns where to serve the mount. Takes over an open device.
fn target(args: &Args) -> Result<Target, RunError> {
    Ok(match args.descriptor()? {
        Some(number) => {
            let (device, mounted) = mount::take(number)?;
            Target::HandedOver(device, mounted)
        }
        None => Target::Directory(mount_point(args)?),
    })
}

/// Completes the file of a trace when it is dropped. Waits a limited time for it.
struct TracedRun<'a>(&'a Arc<Trace>);

impl Drop for TracedRun<'_> {
    fn drop(&mut self) {
        let trace = Arc::clone(self.0);
        if within(TRACE_LIMIT, move || trace.stop()).is_none() {
            log::warn!("the trace is not complete: its file system does not answer");
        }
    }
}

/// Begins the trace that the options ask for. A program that continues writes a file of its own,
/// and serves without one if it cannot be written.
fn start_trace(args: &Args, trace: &Trace, continued: Option<&ContinuedMount>) -> Result<(), RunError> {
    let Some(path) = &args.trace else { return Ok(()) };
    let previous = continued.filter(|continued| continued.has_previous());
    let Some(takeovers) = previous.map(|continued| continued.state().takeovers()) else {
        return Ok(trace.start_file(path.clone(), args.trace_limit)?);
    };
    let mut path = path.clone().into_os_string();
    path.push(format!(".{}", takeovers + 1));
    if let Err(e) = trace.start_file(path.into(), args.trace_limit) {
        log::warn!("no trace is written: {e}");
    }
    Ok(())
}

/// Returns how the mount of a client stands to the caretaker. If no next program can continue it,
/// the log says why.
///
/// # Errors
/// A previous program has served the mount, and this one cannot continue it.
fn cared_mount(continued: ContinuedMount, client: &Client) -> Result<Cared, RunError> {
    if client.can_be_continued() {
        return Ok(Cared::Outlives(continued));
    }
    let why = if client.has_checksums() { "its export has checksums" } else { "its key has a squash" };
    if continued.has_previous() {
        return Err(RunError::Caretaker(format!("cannot continue the mount: {why} now")));
    }
    log::warn!("the mount ends with its program, despite --takeover: {why}");
    Ok(Cared::Ends(continued.into_link()))
}

/// Returns the value. A failure of a program that `continues` a mount ends the process at once. The
/// mount and the session must stay for the next program, and destructors would end them.
fn or_leave<T>(result: Result<T, RunError>, continues: bool) -> Result<T, RunError> {
    if continues && let Err(e) = &result {
        std::process::exit(i32::from(fail(e)));
    }
    result
}

/// Mounts the export of a running server, or the null file system.
fn mount_served(
    args: &Args,
    configuration: &Configuration,
    found: Option<Target>,
    caretaker: Option<(Link, Option<Kept>)>,
) -> Result<(), RunError> {
    let address = args.address()?;
    let (key, tls) = load_credentials(args)?;
    let begun = caretaker.map(|(link, kept)| ContinuedMount::begin(link, kept)).transpose()?;
    let (continued, previous) = begun.unzip();
    let target = previous.flatten().or(found).map_or_else(|| target(args), Ok)?;
    if let Some(doubt) = args.doubt().filter(|_| address.is_some()) {
        log::warn!("{doubt}");
    }
    // From here on a signal is an event, so no signal leaves a mount behind.
    let events = listen_for_signals(configuration)?;
    let continues = continued.as_ref().is_some_and(ContinuedMount::has_previous);
    let metrics = bind_metrics(args, continues)?;
    let recorded = Trace::new();
    start_trace(args, &recorded, continued.as_ref())?;
    let _traced = TracedRun(&recorded);
    let ring = prepare_ring(args)?;
    // The threads of a ring are bound to the cores of the callers already.
    let follows = !args.no_follow && ring.is_none();
    let place = |several| if follows { Placement::follow(several) } else { Placement::none() };
    let Some(address) = address else {
        let placement = place(false);
        let threads = Threads { placement: &placement, ring, metrics, trace: &recorded };
        let outcome = serve(args, target, NullFs::new(args.settings()), threads, None, events, None);
        if args.stats_on_exit {
            report_counters(None, &placement, args.detached);
        }
        return outcome;
    };
    let client = {
        let options = Session::builder().options(args.session_options()).key(key).tls(tls);
        let options = options.trace(Arc::clone(recorded.tracer())).into_options();
        let (address, mount_point) = (address.clone(), target.path().to_string_lossy().into_owned());
        let attach = AttachOptions { mount_point, ..args.attach_options() };
        let limit = options.connect_timeout + attach.busy_timeout + ATTACH_SLACK;
        match &continued {
            Some(continued) => connect_kept(continued, (address, options, attach), limit),
            None => within(limit, move || Client::connect(&address, &options, &attach)),
        }
    };
    let client = client.ok_or(RunError::Silent(address)).and_then(|client| Ok(client?));
    let client = Arc::new(or_leave(client, continues)?);
    let placement = place(!client.is_mapped());
    let threads = Threads { placement: &placement, ring, metrics, trace: &recorded };
    let link = KernelLink::default();
    let adapter =
        Adapter::new(client.clone(), args.settings(), link.clone()).map_err(os("cannot start a thread"));
    let adapter = or_leave(adapter, continues)?;
    let losses = adapter.losses();
    let observed = ObservedMount {
        client: Arc::clone(&client),
        requests: adapter.request_counts(),
        locks: adapter.lock_waits(),
    };
    let served = Served { client: &client, link: &link, losses: &losses, observed: &observed };
    let cared = continued.map(|continued| cared_mount(continued, &client)).transpose();
    let cared = or_leave(cared, continues)?;
    let outcome = serve(args, target, adapter, threads, Some(served), events, cared);
    if args.stats_on_exit {
        report_counters(Some(&client), &placement, args.detached);
    }
    client.close_session();
    outcome?;
    losses.unreported().map_or(Ok(()), |unreported| Err(unreported.into()))
}

/// Takes the address of the metrics. A program that continues a mount goes on without it, because
/// the mount is needed more.
fn bind_metrics(args: &Args, continues: bool) -> Result<Option<BoundEndpoint>, RunError> {
    match args.metrics.map(BoundEndpoint::bind).transpose() {
        Err(e) if continues => {
            log::error!("{e}: the mount continues without metrics; `rfs-fuse upgrade` tries again");
            Ok(None)
        }
        bound => Ok(bound?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_help_has_its_function() {
        for sub in command().get_subcommands() {
            assert!(find_command(sub.get_name().as_ref()).is_some(), "{}", sub.get_name());
        }
        assert!(find_command("10.0.0.1:7440".as_ref()).is_none());
    }
}
