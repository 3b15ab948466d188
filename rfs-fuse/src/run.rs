//! The program: checks the arguments, connects, mounts, serves and unmounts.
//!
//! The program mounts as late as possible: every check that can fail comes first, so a failure
//! leaves no mount behind.
//!
//! # Concurrency
//! The main thread waits for an `Event`. The thread `signals` sends one for each signal, and
//! the thread `fuse` sends one at the end of the FUSE session. Takes no locks.

mod unmount;

use std::{
    ffi::OsString,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use clap::{CommandFactory, Parser};
use fuser::{Config, Session, SessionACL};
use rdmabox::{
    Key, KeyFileError, SessionOptions,
    tls::{TlsClient, TlsError},
};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use unmount::{WriteBackError, undo, wait_and_unmount};

use crate::{
    cli::{Args, IoUring, UsageError},
    daemon,
    fuse::{Adapter, Device, Filesystem, KernelLink, Losses, Placement, Ring, SwitchError, Untold},
    mount::{self, AfterKill, CoveredDirectory, Look, MountError, Mounted, Watchdog, within},
    mount8::{self, Invocation},
    null::NullFs,
    private_server::{self, Log, PrivateServer},
    scrub,
};
use rfs_client::{AttachError, Client};

/// Time that connecting and attaching may take beyond the timeout for connecting.
const ATTACH_SLACK: Duration = Duration::from_millis(500);
/// Time limit for an unmount. Only a mount with pending requests exceeds it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);

/// Consequence of a missing watchdog, for log messages.
const NO_WATCHDOG: &str = "a kill of this process leaves a dead mount";

/// An error that ends the program.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    PrivateServer(#[from] private_server::StartError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("{0}: the server accepted the connection but does not answer")]
    Silent(rdmabox::Address),
    #[error("no agreement with the kernel on a FUSE session: {0}")]
    Handshake(io::Error),
    #[error(transparent)]
    Switch(#[from] SwitchError),
    #[error("--io-uring=on: no FUSE over io_uring: {0}")]
    Ring(io::Error),
    #[error("{}: mounted, but it does not answer: {why}", path.display())]
    Dead { path: PathBuf, why: String },
    #[error("{what}: {source}")]
    Os { what: &'static str, source: io::Error },
    #[error("the FUSE session ended: {0}")]
    Ended(String),
    #[error("unmounted after a failure: {0}")]
    Failed(String),
    #[error("cannot unmount {}: {source}", path.display())]
    Unmount { path: PathBuf, source: io::Error },
    #[error(transparent)]
    WriteBack(#[from] WriteBackError),
    #[error(transparent)]
    Lost(#[from] Untold),
}

/// Returns a function that wraps an error of the operating system.
fn os(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::Os { what, source }
}

/// An event that the main thread waits for.
enum Event {
    Signal(i32),
    /// The kernel has ended the connection, or the session failed.
    Ended(io::Result<()>),
    /// The watchdog has ended.
    WatchdogEnded,
    /// A thread has failed. The mount ends.
    Failed(String),
}

/// Runs the program. Its name selects the command line of rfs-fuse or of a mount helper.
pub fn main() -> ExitCode {
    if let Some(code) = mount::asked().or_else(private_server::run_if_asked) {
        return ExitCode::from(code);
    }
    let options = Args::command();
    let known = |name: &str| options.get_arguments().any(|option| option.get_long() == Some(name));
    match mount8::parse(std::env::args_os(), &known) {
        Ok(Invocation::Plain(arguments)) => ExitCode::from(run_as_rfs_fuse(&arguments)),
        Ok(Invocation::Nothing) => ExitCode::SUCCESS,
        Ok(Invocation::Mount(arguments)) => ExitCode::from(mount8::exit_code(run_as_rfs_fuse(&arguments))),
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

/// Runs the program with rfs-fuse's own arguments, and returns the exit code.
fn run_as_rfs_fuse(arguments: &[OsString]) -> u8 {
    if let Some(arguments) = scrub::own_arguments(arguments) {
        return scrub::main(arguments);
    }
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(e) => {
            // Help goes to stdout. If stdout is closed, the error has no place to go.
            e.print().ok();
            return u8::try_from(e.exit_code()).unwrap_or(USAGE);
        }
    };
    // With io_uring, the kernel rejects fuser's replies to INTERRUPT, and fuser would log each
    // rejection.
    let filter = if takes_ring(&args) { "info,fuser=error,fuser::reply=off" } else { "info,fuser=error" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(filter)).init();
    if args.daemon && !args.detached {
        return match daemon::launch(arguments, args.quiet) {
            Ok(code) => u8::try_from(code).unwrap_or(1),
            Err(e) => fail(&RunError::Os { what: "cannot go to the background", source: e }),
        };
    }
    match run(&args) {
        Ok(()) => 0,
        Err(e) => fail(&e),
    }
}

/// Exit code for an invalid command line.
const USAGE: u8 = 2;

fn fail(error: &RunError) -> u8 {
    let code = if matches!(error, RunError::Usage(_)) { USAGE } else { 1 };
    print_error(&error.to_string(), code)
}

fn print_error(what: &str, code: u8) -> u8 {
    eprintln!("rfs-fuse: {}", what.trim_end().replace('\n', " "));
    code
}

fn run(args: &Args) -> Result<(), RunError> {
    if args.detached {
        daemon::start_session();
    }
    let Some(memory) = args.memory else { return mount_served(args) };
    // Starting the server takes time, so an unusable mount point is refused first.
    mount_point(args)?;
    let log = match &args.log_file {
        Some(path) => Log::File(path),
        None if args.detached => Log::Discard,
        None => Log::Inherit,
    };
    let server = PrivateServer::start(memory, log)?;
    mount_served(&args.served_at(server.address().clone()))
}

/// Returns the directory to mount on. Checks the directory and the FUSE device.
fn mount_point(args: &Args) -> Result<PathBuf, RunError> {
    let point = mount::mount_point(&args.mount_point(), &args.mount_options().fs_type)?;
    mount::device()?;
    Ok(point)
}

/// Mounts the export of a running server, or the null file system.
fn mount_served(args: &Args) -> Result<(), RunError> {
    let address = args.address()?;
    let tls = args.tls()?;
    let key = args.connection.key.as_deref().map(Key::load).transpose()?;
    let tls = tls.as_ref().map(TlsClient::load).transpose()?;
    let point = mount_point(args)?;
    if let Some(doubt) = args.doubt().filter(|_| address.is_some()) {
        log::warn!("{doubt}");
    }
    // From here on a signal is an event, so no signal leaves a mount behind.
    let events = listen_for_signals()?;
    let ring = prepare_ring(args)?;
    // The threads of a ring are bound to the cores of the callers already.
    let follows = !args.no_follow && ring.is_none();
    let place = |several| if follows { Placement::follow(several) } else { Placement::none() };
    let Some(address) = address else {
        let placement = place(false);
        let threads = Threads { placement: &placement, ring };
        let outcome = serve(args, &point, NullFs::new(args.settings()), threads, None, events);
        if args.stats_on_exit {
            report_counters(None, &placement, args.detached);
        }
        return outcome;
    };
    let client = {
        let options = SessionOptions { key, tls, ..args.session_options() };
        let (address, attach) = (address.clone(), args.attach_options());
        let limit = options.connect_timeout + attach.patience + ATTACH_SLACK;
        within(limit, move || Client::connect(&address, &options, &attach))
    };
    let client = Arc::new(client.ok_or(RunError::Silent(address))??);
    let placement = place(!client.is_mapped());
    let threads = Threads { placement: &placement, ring };
    let link = KernelLink::default();
    let adapter =
        Adapter::new(client.clone(), args.settings(), link.clone()).map_err(os("cannot start a thread"))?;
    let losses = adapter.losses();
    let served = Served { client: &client, link: &link, losses: &losses };
    let outcome = serve(args, &point, adapter, threads, Some(served), events);
    if args.stats_on_exit {
        report_counters(Some(&client), &placement, args.detached);
    }
    client.close_session();
    outcome?;
    losses.untold().map_or(Ok(()), |untold| Err(untold.into()))
}

/// The client of a mount, its connection to the kernel, and its record of lost writes.
#[derive(Clone, Copy)]
struct Served<'a> {
    client: &'a Arc<Client>,
    link: &'a KernelLink,
    losses: &'a Arc<Losses>,
}

/// The resources of the threads that serve the kernel.
struct Threads<'a> {
    placement: &'a Placement,
    ring: Option<Ring>,
}

/// Returns true if `--io-uring=on`, or if it is `auto` and the kernel offers io_uring.
fn takes_ring(args: &Args) -> bool {
    match args.io_uring() {
        IoUring::Auto => Ring::is_offered(),
        IoUring::On => true,
        IoUring::Off => false,
    }
}

/// Prepares the threads of a ring if the mount uses one. With `--io-uring=on`, enables io_uring
/// in the kernel.
///
/// # Errors
/// With `--io-uring=on`, if the kernel has no ring for the mount.
fn prepare_ring(args: &Args) -> Result<Option<Ring>, RunError> {
    let insists = args.io_uring() == IoUring::On;
    if insists {
        Ring::switch_on()?;
    }
    if !takes_ring(args) {
        return Ok(None);
    }
    match Ring::prepare(args.threads(), &args.settings()) {
        Ok(ring) => Ok(Some(ring)),
        Err(e) if insists => Err(RunError::Ring(e)),
        Err(e) => {
            log::warn!("the kernel offers FUSE over io_uring, but requests come over /dev/fuse: {e}");
            Ok(None)
        }
    }
}

type Events = (mpsc::Sender<Event>, mpsc::Receiver<Event>);

fn listen_for_signals() -> Result<Events, RunError> {
    let (send, receive) = mpsc::channel();
    let failed = send.clone();
    rdmabox::failure::watch(move |what| {
        log::error!("{what}: unmounting");
        // Fails only if the main thread has stopped listening because it ends.
        failed.send(Event::Failed(what.to_owned())).ok();
    });
    rdmabox::memory::survive().map_err(os("cannot prepare for lost memory"))?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(os("cannot handle signals"))?;
    let to = send.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if to.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
        .map_err(os("cannot start a thread"))?;
    Ok((send, receive))
}

/// Mounts, prints the greeting, serves until an event ends the mount, and unmounts.
fn serve<F: Filesystem>(
    args: &Args,
    point: &Path,
    filesystem: F,
    threads: Threads<'_>,
    client: Option<Served<'_>>,
    (send, events): Events,
) -> Result<(), RunError> {
    let mut options = args.mount_options();
    options.flags.read_only |= client.is_some_and(|served| served.client.is_read_only());
    let covered = CoveredDirectory::lock(point)?;
    let (device, mounted) = mount::mount(point, &options)?;
    let mut watchdog = start_watchdog(args, &mounted, covered, client, &send);
    let restart_watchdog = || watchdog.as_mut().map(Watchdog::restart);
    let outcome = serve_mounted(
        args,
        (filesystem, threads),
        client,
        (device, &mounted),
        (send, events),
        restart_watchdog,
    );
    if let Some(watchdog) = watchdog {
        match outcome {
            Ok(MountEnd::Ended) => watchdog.dismiss(),
            // A notification thread that the kernel blocks can keep this process from ending.
            Ok(MountEnd::Detached) | Err(_) => watchdog.leave(),
        }
    }
    outcome.map(drop)
}

/// Starts the watchdog, which ends the mount if this process is killed. Returns `None` if it
/// cannot start.
fn start_watchdog(
    args: &Args,
    mounted: &Mounted,
    covered: CoveredDirectory,
    client: Option<Served<'_>>,
    send: &mpsc::Sender<Event>,
) -> Option<Watchdog> {
    let farewell = client.and_then(|served| args.farewell(served.client.mount()?));
    let after_kill = if args.leave_dead_mount { AfterKill::Leave } else { AfterKill::Unmount };
    let send = send.clone();
    // Fails only if the main thread has stopped listening.
    let ended = move || drop(send.send(Event::WatchdogEnded));
    let log = args.log_file.as_deref();
    let started = Watchdog::start(mounted, covered, after_kill, log, farewell.as_ref(), ended);
    started.inspect_err(|e| log::warn!("{NO_WATCHDOG}: {e}")).ok()
}

fn serve_mounted<F: Filesystem>(
    args: &Args,
    (filesystem, Threads { placement, ring }): (F, Threads<'_>),
    client: Option<Served<'_>>,
    (device, mounted): (OwnedFd, &Mounted),
    (send, events): Events,
    restart_watchdog: impl FnMut() -> Option<io::Result<()>>,
) -> Result<MountEnd, RunError> {
    let options = args.mount_options();
    let mut config = Config::default();
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(args.threads());
    config.clone_fd = args.threads() > 1;
    if let Some(Served { link, .. }) = client {
        link.mounted_on(mounted.path().to_owned(), ring.is_some());
        link.connect(device.as_fd()).map_err(|e| {
            undo(mounted);
            os("cannot reach the kernel")(e)
        })?;
    }
    let own = device.try_clone().map(Arc::new).map_err(|e| {
        undo(mounted);
        os("cannot reach the kernel")(e)
    })?;
    let filesystem = Device::new(filesystem, placement, &own, ring.is_some());
    let started = filesystem.started();
    let session = Session::from_fd(filesystem, device, config.acl, config).map_err(|e| {
        undo(mounted);
        RunError::Handshake(e)
    })?;
    let ended = send.clone();
    thread::Builder::new()
        .name("fuse".into())
        .spawn(move || {
            // Fails only if the main thread has stopped listening.
            ended.send(Event::Ended(session.run())).ok();
        })
        .map_err(|e| {
            undo(mounted);
            os("cannot start a thread")(e)
        })?;
    // The session has answered no request yet: the ring starts first.
    let serving = match (started.get().filter(|agreed| agreed.ring), ring) {
        (Some(agreed), Some(ring)) => {
            let failed = move |e| drop(send.send(Event::Ended(Err(e))));
            ring.start(&agreed.filesystem, &own, mounted.path().to_owned(), failed).map(Some)
        }
        _ if args.io_uring() == IoUring::On => Err(io::Error::other("the kernel does not agree to it")),
        _ => Ok(None),
    };
    let serving = match serving {
        Err(e) if args.io_uring() == IoUring::On => {
            undo(mounted);
            return Err(RunError::Ring(e));
        }
        serving => serving.inspect_err(|e| log::warn!("no FUSE over io_uring: {e}")).ok().flatten(),
    };
    // The session owns the file system now, and drops it at its end.
    drop(started);
    log::debug!("requests come over {}", if serving.is_some() { "io_uring" } else { "/dev/fuse" });
    if let Err(e) = announce(args, mounted, client.map(|served| served.client)) {
        undo(mounted);
        return Err(e);
    }
    let over = wait_and_unmount(mounted, &events, client, restart_watchdog)?;
    if let (MountEnd::Ended, Some(serving)) = (over, serving) {
        serving.join(UNMOUNT_LIMIT);
    }
    Ok(over)
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountEnd {
    /// The kernel has ended the connection.
    Ended,
    /// Programs still have files open on the detached mount.
    Detached,
}

/// Waits until the mount answers, and prints the greeting.
fn announce(args: &Args, mounted: &Mounted, client: Option<&Arc<Client>>) -> Result<(), RunError> {
    let limit = args.session_options().operation_timeout + Duration::from_secs(1);
    let dead = |why: String| RunError::Dead { path: mounted.path().to_owned(), why };
    mount::look(mounted.path(), Look::Directory, limit)
        .ok_or_else(|| dead("no answer".into()))?
        .map_err(|e| dead(e.to_string()))?;
    if let Err(e) = mounted.set_readahead(args.settings().max_readahead) {
        log::debug!("the kernel keeps its read-ahead of 128 KiB: {e}");
    }
    if args.detached
        && let Some(path) = &args.log_file
    {
        daemon::log_to(path).map_err(os("cannot write to the log file"))?;
    }
    // The foreground process waits for the line, and decides whether to print it.
    if args.detached || !args.quiet {
        let over = client.map_or_else(|| "own memory".to_owned(), |client| client.description());
        let mut out = io::stdout().lock();
        writeln!(out, "rfs-fuse: {} is mounted on {} ({over})", args.source(), mounted.path().display())
            .and_then(|()| out.flush())
            .ok();
    }
    notify_manager(NotifyState::Ready);
    if args.detached {
        daemon::detach(args.log_file.as_deref()).map_err(os("cannot go to the background"))?;
    } else if let Some(path) = &args.log_file {
        daemon::log_to(path).map_err(os("cannot write to the log file"))?;
    }
    Ok(())
}

/// Notifies the service manager, if there is one (sd_notify(3)).
fn notify_manager(news: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[news]) {
        log::warn!("cannot notify the service manager: {e}");
    }
}

/// Prints the counters of pinning and of the session. In the background they go to the log.
fn report_counters(client: Option<&Client>, placement: &Placement, to_log: bool) {
    fn object(counters: impl IntoIterator<Item = (&'static str, u64)>) -> serde_json::Value {
        let counters = counters.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        serde_json::Value::Object(counters.collect())
    }
    let mut report = serde_json::json!({ "placement": object(placement.counters()) });
    if let Some(client) = client {
        report["session"] = client.description().into();
        report["counters"] = object(client.counters());
    }
    if to_log {
        log::info!("{report}");
    } else {
        // If stdout is closed, the error has no place to go.
        writeln!(io::stdout(), "{report:#}").ok();
    }
}
