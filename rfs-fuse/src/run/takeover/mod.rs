//! The choice of a mount that outlives its program, and the beginning of its programs.
//!
//! # Concurrency
//! The main thread. A connection that takes too long stays on a thread of its own.

mod caretaker;
mod continued_mount;

use std::{
    ffi::OsString,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, SessionOptions};
use rfs_client::{AttachError, AttachOptions, Client};
use rfs_status::logging;

use super::error::{RunError, os};
use crate::{
    cli::{Args, IoUring, LostServer},
    daemon,
    mount::{mount_point, within},
};

pub(in crate::run) use caretaker::{HeldMount, Kept, Link, command_line, format_if_asked, upgrade};
pub(in crate::run) use continued_mount::{Cared, ContinuedMount, KeptServing, start_kept};

/// Oldest kernel whose mounts can outlive a program: it sends requests again (6.9), and drops all
/// cached names at once (6.16).
const KERNEL: (u32, u32) = (6, 16);
/// Time for which a program that continues tries to reach the server. The caretaker allows more.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Exit codes of programs that a signal has ended begin here.
const KILLED: u8 = 128;

/// The role of this process.
pub(in crate::run) enum Prepared {
    /// It serves, for a caretaker if there is one.
    Serve(Option<(Link, Option<Kept>)>),
    /// It was a caretaker, whose mount has ended with this exit code.
    Ended(u8),
}

/// Returns the release of the kernel.
fn kernel() -> Option<(u32, u32)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Runs the caretaker if the mount is to outlive this program. Returns the connection with the
/// caretaker if one has started this program.
pub(in crate::run) fn prepare(args: &Args, arguments: &[OsString]) -> Result<Prepared, RunError> {
    let caretaker = Link::of_this_process().map_err(|e| RunError::Caretaker(e.to_string()))?;
    if let Some(caretaker) = caretaker {
        return Ok(Prepared::Serve(Some(caretaker)));
    }
    if !args.takeover {
        return Ok(Prepared::Serve(None));
    }
    check(args)?;
    if kernel().is_none_or(|kernel| kernel < KERNEL) {
        log::warn!("--takeover needs Linux {}.{}: the mount ends with its program", KERNEL.0, KERNEL.1);
        return Ok(Prepared::Serve(None));
    }
    let ready = || {
        if args.detached {
            if args.log_file.is_none() {
                // Without a system's log there is no place for messages.
                logging::log_to_syslog("rfs-caretaker").ok();
            }
            if let Err(e) = daemon::detach(args.log_file.as_deref()) {
                log::warn!("cannot go to the background: {e}");
            }
        }
    };
    if args.detached {
        daemon::start_session();
    }
    let code =
        caretaker::run(arguments, directory(args), ready).map_err(os("the caretaker of the mount ends"))?;
    if code >= KILLED {
        // A program that was killed before the caretaker held its mount has left it dead.
        mount_point(&args.mount_point(), &args.mount_options().fs_type).ok();
    }
    Ok(Prepared::Ended(code))
}

/// Returns the directory that relative paths of the command line begin in. A caretaker that looked
/// into its own mount would wait for the program that it has to start.
fn directory(args: &Args) -> PathBuf {
    let mount_point = std::path::absolute(args.mount_point()).unwrap_or_default();
    let here = std::env::current_dir().ok().filter(|here| !here.starts_with(&mount_point));
    here.unwrap_or_else(|| "/".into())
}

/// Checks that the mount can outlive its program.
fn check(args: &Args) -> Result<(), RunError> {
    let refused = |with, why| Err(RunError::Takeover { with, why });
    if args.settings().writeback {
        return refused(
            "--cache writeback",
            "written data is in the kernel only, and other mounts are locked out",
        );
    }
    if args.memory.is_some() {
        return refused("--private-memory", "the server ends with the program");
    }
    if args.io_uring() == IoUring::On {
        return refused("--io-uring=on", "the kernel does not send requests of a ring again");
    }
    if args.for_swap {
        return refused("--for-swap", "the memory of the caretaker is not locked");
    }
    if args.lost_server() == LostServer::Remount {
        return refused("--lost-server remount", "the caretaker holds the mount that ends");
    }
    if !args.attach_options().reconnects {
        return refused("--no-return", "the next program needs the session of the previous one");
    }
    if args.descriptor()?.is_some() {
        return refused("an open descriptor as mount point", "the program that mounts has to hold it");
    }
    if args.address()?.is_none() {
        return refused("the null file system", "its files end with the program");
    }
    Ok(())
}

/// Connects, and continues the session of a previous process if there is one. `None` after a limit:
/// `limit` for a new mount. A process that continues must end then, without destructors: the thread
/// that connects goes on, and two clients must not share one state.
pub(in crate::run) fn connect_kept(
    continued: &ContinuedMount,
    (address, options, attach): (Address, SessionOptions, AttachOptions),
    limit: Duration,
) -> Option<Result<Client, AttachError>> {
    let continues = continued.has_previous();
    let give_up = Instant::now() + if continues { CONNECT_LIMIT } else { limit };
    loop {
        let left = give_up.saturating_duration_since(Instant::now());
        let (state, repeated) = (continued.state().clone(), continued.repeated());
        let (address, options, attach) = (address.clone(), options.clone(), attach.clone());
        let connected =
            within(left, move || Client::connect_kept(&address, &options, &attach, (&state, &repeated)));
        match connected {
            // There is no client yet.
            Some(Err(AttachError::Connect(_))) if continues && Instant::now() < give_up => {
                thread::sleep(CONNECT_PAUSE);
            }
            connected => return connected,
        }
    }
}
