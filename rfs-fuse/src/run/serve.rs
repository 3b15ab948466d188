//! Mounts, and serves the kernel until an event ends the mount.
//!
//! # Concurrency
//! The main thread. The thread `fuse` sends an event at the end of the FUSE session.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use super::{
    error::{RunError, os},
    events::{Event, Events},
    greeting::{announce, announce_again},
    or_leave,
    ring::session_devices,
    takeover::{Cared, ContinuedMount, HeldMount, KeptServing, Link, start_kept},
    unmount::{EndRules, MountEnd, NO_WATCHDOG, Served, UNMOUNT_LIMIT, WhenBusy, undo, wait_and_unmount},
};
use crate::{
    cli::{Args, IoUring, LostServer},
    fuse::{DeviceSession, Filesystem, Negotiation, Placement, Ring, Serving, Trace, negotiate},
    mount::{self, ActiveMount, AfterKill, CoveredDirectory, Target, Watchdog},
    status::{Answers, MountFacts, StatusSource},
};
use rfs_status::metrics::BoundEndpoint;

/// The resources of the threads that serve the kernel.
pub(super) struct Threads<'a> {
    pub(super) placement: &'a Placement,
    pub(super) ring: Option<Ring>,
    /// The address of the metrics.
    pub(super) metrics: Option<BoundEndpoint>,
    pub(super) trace: &'a Arc<Trace>,
}

/// Mounts, prints the greeting, serves until an event ends the mount, and unmounts.
pub(super) fn serve<F: Filesystem>(
    args: &Args,
    target: Target,
    filesystem: F,
    mut threads: Threads<'_>,
    client: Option<Served<'_>>,
    (send, events): Events,
    cared: Option<Cared>,
) -> Result<(), RunError> {
    let mut options = args.mount_options();
    options.flags.read_only |= client.is_some_and(|served| served.client.is_read_only());
    let (device, mounted, covered) = match target {
        Target::Directory(point) => {
            let covered = CoveredDirectory::lock(&point)?;
            let (device, mounted) = mount::mount(&point, &options)?;
            (device, mounted, covered)
        }
        Target::HandedOver(device, mounted) => (device, mounted, CoveredDirectory::none()),
    };
    if mounted.visible_path().is_none() && threads.ring.take().is_some() && args.io_uring() == IoUring::On {
        return Err(RunError::Ring(io::Error::other("this process cannot reach the mount point")));
    }
    let mut covered = Some(covered);
    let mut watchdog = None;
    let caretaker = cared.map(|cared| match cared {
        Cared::Ends(link) => CaredMount::Ends(link),
        Cared::Outlives(continued) => {
            let facts = held_mount(args, &mounted, client);
            let lock = covered.as_ref().and_then(|covered| covered.lock_file()?.try_clone().ok());
            CaredMount::Outlives(continued, facts, lock)
        }
    });
    if !matches!(caretaker, Some(CaredMount::Outlives(..))) {
        watchdog = covered.take().and_then(|covered| start_watchdog(args, &mounted, covered, client, &send));
    }
    let to = send.clone();
    let restart_watchdog = || match (&mut watchdog, covered.take()) {
        // The caretaker has ended.
        (none @ None, Some(covered)) => {
            log::warn!("the caretaker of this mount has ended: the mount ends with this process");
            *none = start_watchdog(args, &mounted, covered, client, &to);
            None
        }
        (watchdog, _) => watchdog.as_mut().map(Watchdog::restart),
    };
    let outcome = serve_mounted(
        args,
        (filesystem, threads),
        client,
        (device, &mounted),
        (send, events),
        (restart_watchdog, caretaker),
    );
    if let Some(watchdog) = watchdog {
        match outcome {
            Ok(MountEnd::Ended) => watchdog.dismiss(),
            // The next mount of this process has a watchdog of its own.
            Err(RunError::ServerLost { .. }) if args.lost_server() == LostServer::Remount => {
                watchdog.dismiss();
            }
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
    mounted: &ActiveMount,
    covered: CoveredDirectory,
    client: Option<Served<'_>>,
    send: &mpsc::Sender<Event>,
) -> Option<Watchdog> {
    let detach = client.and_then(|served| args.detach_params(served.client.mount()?));
    let leaves = args.leave_dead_mount || mounted.is_handed_over();
    let after_kill = if leaves { AfterKill::Leave } else { AfterKill::Unmount };
    let send = send.clone();
    // Fails only if the main thread has stopped listening.
    let ended = move || drop(send.send(Event::WatchdogEnded));
    let log = args.log_path();
    let started = Watchdog::start(mounted, covered, after_kill, log, detach.as_ref(), ended);
    started.inspect_err(|e| log::warn!("{NO_WATCHDOG}: {e}")).ok()
}

/// Returns the facts of a mount that the caretaker has to know.
fn held_mount(args: &Args, mounted: &ActiveMount, client: Option<Served<'_>>) -> HeldMount {
    let detach = client.and_then(|served| args.detach_params(served.client.mount()?));
    HeldMount {
        path: mounted.path().to_owned(),
        device: mounted.device().map(str::to_owned),
        maker: mounted.maker_name().to_owned(),
        detach: detach.and_then(|detach| detach.to_text()),
        leaves: args.leave_dead_mount,
    }
}

/// The facts of a mount that the caretaker knows, and the locked directory below it.
enum CaredMount {
    Outlives(ContinuedMount, HeldMount, Option<File>),
    Ends(Link),
}

/// The parts that serve a mount. None of them ends before the mount.
struct Begun {
    answers: Answers,
    ring: Option<Serving>,
    /// The connection with the caretaker.
    link: Option<Link>,
}

fn serve_mounted<F: Filesystem>(
    args: &Args,
    (filesystem, threads): (F, Threads<'_>),
    client: Option<Served<'_>>,
    (device, mounted): (OwnedFd, &ActiveMount),
    (send, events): Events,
    (restart_watchdog, caretaker): (impl FnMut() -> Option<io::Result<()>>, Option<CaredMount>),
) -> Result<MountEnd, RunError> {
    let continues =
        matches!(&caretaker, Some(CaredMount::Outlives(continued, ..)) if continued.has_previous());
    let begun = begin(args, (filesystem, threads), client, (device, mounted), send, caretaker);
    // The next program needs the mount that this one cannot continue.
    let begun = or_leave(begun, continues).inspect_err(|_| undo(mounted))?;
    let when_busy = if args.for_swap { WhenBusy::Stay } else { WhenBusy::Detach };
    let rules = EndRules { when_busy, lost_server: args.lost_server() };
    let over = wait_and_unmount(mounted, &events, client, rules, restart_watchdog)?;
    let Begun { answers, ring, link } = begun;
    // Before the mount point can have another mount.
    drop(answers);
    if let (MountEnd::Ended, Some(ring)) = (over, ring) {
        ring.join(UNMOUNT_LIMIT);
    }
    drop(link);
    Ok(over)
}

/// Begins to serve a mount. After an error the mount does not answer.
fn begin<F: Filesystem>(
    args: &Args,
    (filesystem, threads): (F, Threads<'_>),
    client: Option<Served<'_>>,
    (device, mounted): (OwnedFd, &ActiveMount),
    send: mpsc::Sender<Event>,
    caretaker: Option<CaredMount>,
) -> Result<Begun, RunError> {
    let Threads { placement, ring, metrics, trace } = threads;
    if let Some(served) = client {
        connect(served, (&device, mounted), ring.is_some(), &send)?;
    }
    let own = device.try_clone().map(Arc::new).map_err(os("cannot reach the kernel"))?;
    let link = match caretaker {
        Some(CaredMount::Outlives(continued, facts, lock)) => {
            let kept = (continued, facts, lock);
            let user = only_user(args, mounted);
            let serving = start_kept(args, (filesystem, placement, trace), kept, (device, &own, user))?;
            return begin_kept(args, serving, client, (mounted, metrics, trace), send);
        }
        Some(CaredMount::Ends(link)) => Some(link),
        None => None,
    };
    let agreed = negotiate(filesystem, device, ring.is_some()).map_err(RunError::Handshake)?;
    let session = DeviceSession {
        devices: session_devices(args, &own, mounted.is_handed_over())?,
        kept: None,
        max_write: args.settings().max_write as usize,
        resent: Vec::new(),
        only_user: only_user(args, mounted),
        trace: Arc::clone(trace),
    };
    let threads = session.start(&agreed.filesystem, placement).map_err(os("cannot start a thread"))?;
    start_session_thread(&send, move || threads.wait())?;
    // If the kernel expects a ring, it sends no request before there is one.
    let ring = start_ring(args, (&agreed, ring), (&own, trace), mounted, send)?;
    // The threads own the file system now. The last one drops it at its end.
    drop(agreed);
    log::debug!("requests come over {}", if ring.is_some() { "io_uring" } else { "/dev/fuse" });
    let answers = answer_questions(args, mounted, client, (metrics, ring.is_some(), trace))?;
    announce(args, mounted, client.map(|served| served.client))?;
    if let Some(Err(e)) = link.as_ref().map(Link::serves) {
        log::warn!("the caretaker of the mount has ended: {e}");
    }
    Ok(Begun { answers, ring, link })
}

/// Returns the only user, beside root, whose requests are served. `None` if the kernel decides
/// alone.
fn only_user(args: &Args, mounted: &ActiveMount) -> Option<u32> {
    // The kernel checks the users of a mount that another program has made by its own options.
    let for_all = args.mount_options().allow_other || mounted.is_handed_over();
    (!for_all).then(|| rustix::process::geteuid().as_raw())
}

/// Starts the thread `fuse`, which reports the end of the session to the main thread.
fn start_session_thread(
    send: &mpsc::Sender<Event>,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(), RunError> {
    let ended = send.clone();
    let session = move || {
        // Fails only if the main thread has stopped listening.
        ended.send(Event::Ended(run())).ok();
    };
    let started = thread::Builder::new().name("fuse".into()).spawn(session);
    started.map(drop).map_err(os("cannot start a thread"))
}

/// Connects a client with the kernel and with the main thread.
fn connect(
    Served { client, link, .. }: Served<'_>,
    (device, mounted): (&OwnedFd, &ActiveMount),
    by_core: bool,
    send: &mpsc::Sender<Event>,
) -> Result<(), RunError> {
    let lost = send.clone();
    client.watch_final_loss(move |reason| {
        // Fails only if the main thread has stopped listening.
        lost.send(Event::ServerLost(reason.to_owned())).ok();
    });
    if let Some(path) = mounted.visible_path() {
        link.mounted_on(path.to_owned(), by_core);
    }
    link.connect(device.as_fd(), mounted.is_handed_over()).map_err(os("cannot reach the kernel"))
}

/// Begins to serve a mount that outlives this process.
fn begin_kept(
    args: &Args,
    KeptServing { threads, is_first, link }: KeptServing,
    client: Option<Served<'_>>,
    (mounted, metrics, trace): (&ActiveMount, Option<BoundEndpoint>, &Arc<Trace>),
    send: mpsc::Sender<Event>,
) -> Result<Begun, RunError> {
    start_session_thread(&send, move || threads.wait())?;
    let answers = answer_questions(args, mounted, client, (metrics, false, trace))?;
    match is_first {
        true => announce(args, mounted, client.map(|served| served.client))?,
        false => announce_again(args, mounted),
    }
    // Fails only if the main thread has stopped listening.
    let without_caretaker = move || drop(send.send(Event::WatchdogEnded));
    link.serves().and_then(|()| link.watch(without_caretaker)).unwrap_or_else(|e| {
        log::warn!("the caretaker of the mount has ended: {e}");
    });
    Ok(Begun { answers, ring: None, link: Some(link) })
}

/// Starts the threads of a ring, if the kernel has agreed to one.
///
/// # Errors
/// There has to be a ring, and there is none.
fn start_ring<F: Filesystem>(
    args: &Args,
    (agreed, ring): (&Negotiation<F>, Option<Ring>),
    (device, trace): (&Arc<OwnedFd>, &Arc<Trace>),
    mounted: &ActiveMount,
    send: mpsc::Sender<Event>,
) -> Result<Option<Serving>, RunError> {
    let serving = match (agreed.ring, ring) {
        (true, Some(ring)) => {
            let failed = move |e| drop(send.send(Event::Ended(Err(e))));
            ring.start(&agreed.filesystem, device, (mounted.path().to_owned(), trace), failed).map(Some)
        }
        _ if args.io_uring() == IoUring::On => Err(io::Error::other("the kernel does not agree to it")),
        _ => Ok(None),
    };
    match serving {
        Err(e) if args.io_uring() == IoUring::On => Err(RunError::Ring(e)),
        serving => Ok(serving.inspect_err(|e| log::warn!("no FUSE over io_uring: {e}")).ok().flatten()),
    }
}

/// Starts to answer questions about the mount.
fn answer_questions(
    args: &Args,
    mounted: &ActiveMount,
    client: Option<Served<'_>>,
    (metrics, io_uring, trace): (Option<BoundEndpoint>, bool, &Arc<Trace>),
) -> Result<Answers, RunError> {
    let facts = MountFacts {
        mount_point: mounted.path().to_string_lossy().into_owned(),
        source: args.source(),
        device: mounted.device().unwrap_or_default().to_owned(),
        read_only: args.read_only || client.is_some_and(|served| served.client.is_read_only()),
        cache: args.cache_name(),
        io_uring,
    };
    let observed = client.map(|served| served.observed.clone());
    let source = StatusSource { start: Instant::now(), facts, observed, metrics_address: None };
    let access = match client {
        Some(served) => args.server_access(served.client.memory()),
        None => Err("this mount has no server".into()),
    };
    let path = mounted.control_path();
    Ok(Answers::start(source, trace, (path.as_deref(), access), metrics)?)
}
