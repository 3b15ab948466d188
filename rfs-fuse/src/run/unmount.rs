//! Waits for the event that ends a mount, and unmounts.
//!
//! [`wait_and_unmount`] first tries a plain unmount. If the mount is busy, it writes the kernel's
//! cached data back and detaches the mount.
//!
//! # Concurrency
//! Runs on the main thread. Calls that the kernel may block run on separate threads with a time
//! limit.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use sd_notify::NotifyState;

use super::{
    error::{RunError, WriteBackError},
    events::Event,
    service_manager::notify_manager,
};
use crate::{
    cli::LostServer,
    fuse::{KernelLink, Losses},
    mount::{self, ActiveMount, ProbeAction, Unmounted, within},
    status::ObservedMount,
};
use rfs_client::Client;

/// Time limit for an unmount. Only a mount with pending requests exceeds it.
pub(super) const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);

/// Consequence of a missing watchdog, for log messages.
pub(super) const NO_WATCHDOG: &str = "a kill of this process leaves a dead mount";

/// The client of a mount, its connection to the kernel, and its record of lost writes.
#[derive(Clone, Copy)]
pub(super) struct Served<'a> {
    pub(super) client: &'a Arc<Client>,
    pub(super) link: &'a KernelLink,
    pub(super) losses: &'a Arc<Losses>,
    pub(super) observed: &'a ObservedMount,
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountEnd {
    /// The kernel has ended the connection.
    Ended,
    /// Programs still have files open on the detached mount.
    Detached,
}

/// The effect of a signal on a mount that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenBusy {
    /// The mount is detached.
    Detach,
    /// The mount stays: it has a swap area, and its end would destroy the pages there.
    Stay,
}

/// The behaviour of a mount in two cases.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndRules {
    pub(super) when_busy: WhenBusy,
    pub(super) lost_server: LostServer,
}

/// The event that ends the wait of a mount.
enum Wait {
    End(MountEnd),
    Signal(i32),
    ServerLost(String),
}

/// Waits for the event that ends a mount, and unmounts if the mount is still in the tree.
///
/// # Errors
/// The mount ended without an unmount, or data that the kernel had cached are lost.
pub(super) fn wait_and_unmount(
    mounted: &ActiveMount,
    events: &mpsc::Receiver<Event>,
    client: Option<Served<'_>>,
    EndRules { when_busy, lost_server }: EndRules,
    mut restart_watchdog: impl FnMut() -> Option<io::Result<()>>,
) -> Result<MountEnd, RunError> {
    let ending = Arc::<AtomicBool>::default();
    if let Some(Served { losses, .. }) = client {
        let (begun, mounted) = (Arc::clone(&ending), mounted.clone());
        let has_ended = move || mounted.visible_path().is_some() && !mounted.is_mounted();
        losses.count_if(move || begun.load(Ordering::Relaxed) || has_ended());
    }
    loop {
        let signal = match wait(mounted, events, client, &ending, &mut restart_watchdog)? {
            Wait::End(end) => return Ok(end),
            Wait::Signal(signal) => signal,
            Wait::ServerLost(_) if lost_server == LostServer::Stay => continue,
            Wait::ServerLost(reason) => return Err(leave_lost_server(mounted, lost_server, reason)),
        };
        if mounted.is_handed_over() {
            log::info!("signal {signal}: ending the connection of {}", mounted.path().display());
            notify_manager(NotifyState::Stopping);
            ending.store(true, Ordering::Relaxed);
            write_back(mounted, client)?;
            return Ok(MountEnd::Detached);
        }
        log::info!("signal {signal}: unmounting {}", mounted.path().display());
        if when_busy == WhenBusy::Detach {
            notify_manager(NotifyState::Stopping);
            ending.store(true, Ordering::Relaxed);
        }
        let mount = mounted.clone();
        let outcome = within(UNMOUNT_LIMIT, move || mount.unmount());
        if matches!(outcome, Some(Ok(Unmounted::Clean))) {
            // The session ends when the kernel closes the connection.
            let end = Instant::now() + UNMOUNT_LIMIT;
            while let Ok(Event::Signal(_) | Event::WatchdogEnded | Event::Failed(_) | Event::ServerLost(_)) =
                events.recv_timeout(end.saturating_duration_since(Instant::now()))
            {}
            return Ok(MountEnd::Ended);
        }
        if when_busy == WhenBusy::Detach {
            return detach(mounted, client, outcome);
        }
        log::warn!(
            "{} stays, because a swap area is in use there: end it with `rfs-paging swapoff`",
            mounted.path().display()
        );
    }
}

/// Takes a mount out of the tree whose operations all fail. Nothing can be written back.
fn leave_lost_server(mounted: &ActiveMount, lost_server: LostServer, reason: String) -> RunError {
    let path = mounted.path().to_owned();
    if lost_server == LostServer::Remount {
        log::warn!("unmounting {}, to mount the server's new export", path.display());
    } else {
        log::error!("unmounting {}, because of --lost-server end", path.display());
        notify_manager(NotifyState::Stopping);
    }
    undo(mounted);
    if let Err(e) = mounted.abort() {
        log::debug!("calls that wait for a reply end with this process: {e}");
    }
    RunError::ServerLost { path, reason }
}

/// Detaches a mount that could not be unmounted.
fn detach(
    mounted: &ActiveMount,
    client: Option<Served<'_>>,
    outcome: Option<io::Result<Unmounted>>,
) -> Result<MountEnd, RunError> {
    match outcome {
        Some(Ok(Unmounted::Clean)) => {}
        Some(Ok(Unmounted::Busy)) => log::warn!(
            "{} is busy: detached; calls on files that are still open there fail from now on",
            mounted.path().display()
        ),
        Some(Err(e)) => log::warn!("cannot unmount {}: {e}: detached", mounted.path().display()),
        None => log::warn!("cannot unmount {} within {UNMOUNT_LIMIT:?}: detached", mounted.path().display()),
    }
    let written = write_back(mounted, client);
    mounted.detach().map_err(|source| RunError::Unmount { path: mounted.path().to_owned(), source })?;
    written?;
    Ok(MountEnd::Detached)
}

/// Waits for a signal or for an event that ends the mount. Sets `ending` when it unmounts.
fn wait(
    mounted: &ActiveMount,
    events: &mpsc::Receiver<Event>,
    client: Option<Served<'_>>,
    ending: &AtomicBool,
    restart_watchdog: &mut impl FnMut() -> Option<io::Result<()>>,
) -> Result<Wait, RunError> {
    loop {
        match events.recv() {
            Ok(Event::Ended(Ok(()))) => return Ok(Wait::End(MountEnd::Ended)),
            Ok(Event::Ended(Err(why))) if is_unmount(&why, mounted.is_mounted()) => {
                return Ok(Wait::End(MountEnd::Ended));
            }
            Ok(Event::Ended(Err(why))) => {
                undo(mounted);
                return Err(RunError::Ended(why.to_string()));
            }
            Ok(Event::Failed(failure)) => {
                ending.store(true, Ordering::Relaxed);
                notify_manager(NotifyState::Stopping);
                let is_mounted = mounted.is_mounted();
                let lost = is_mounted.then(|| write_back(mounted, client).err()).flatten();
                undo(mounted);
                let lost = lost.map(|lost| format!("; {lost}")).unwrap_or_default();
                return Err(RunError::Failed(failure + &lost));
            }
            Ok(Event::WatchdogEnded) => match restart_watchdog() {
                Some(Err(e)) => log::warn!("{NO_WATCHDOG}: {e}"),
                Some(Ok(())) => log::warn!("the watchdog of this mount was killed: started another one"),
                None => {}
            },
            Ok(Event::Signal(signal)) => return Ok(Wait::Signal(signal)),
            Ok(Event::ServerLost(reason)) => return Ok(Wait::ServerLost(reason)),
            // The thread `signals` has a sender as long as this process runs.
            Err(mpsc::RecvError) => return Err(RunError::Ended("all threads have ended".into())),
        }
    }
}

/// Returns true if a session failed with `error` because of an unmount. Session threads handle
/// ENODEV. A thread that has dequeued a request (such as a last RELEASE) when the connection ends
/// gets ECONNABORTED. If the mount is still in the tree, ECONNABORTED means that the connection
/// was aborted (`/sys/fs/fuse/connections/N/abort`).
fn is_unmount(error: &io::Error, still_mounted: bool) -> bool {
    !still_mounted && error.raw_os_error() == Some(rustix::io::Errno::CONNABORTED.raw_os_error())
}

/// Has the kernel write back its dirty pages of open files, also those of mappings, before the
/// mount ends. From Linux 6.18 on, syncfs(2) only starts the writeback of FUSE, so this function
/// then waits file by file.
///
/// # Errors
/// The kernel fails, or takes longer than the limit.
fn write_back(mounted: &ActiveMount, client: Option<Served<'_>>) -> Result<(), WriteBackError> {
    let failed = |why| WriteBackError { path: mounted.path().to_owned(), why };
    let late = || format!("they were not written back within {UNMOUNT_LIMIT:?}");
    let looked = mounted.visible_path().map(|path| mount::look(path, ProbeAction::Sync, UNMOUNT_LIMIT));
    // Out of reach, the files are written back one by one.
    let synchronized = match looked.unwrap_or(Some(Ok(()))) {
        Some(Ok(())) => Ok(()),
        Some(Err(e)) if mounted.may_refuse(&e) => Ok(()),
        Some(Err(e)) => Err(failed(format!("syncfs: {e}"))),
        None => return Err(failed(late())),
    };
    let Some(Served { client, link, .. }) = client else { return synchronized };
    let (inodes, link) = (client.files.open_to_write(), link.clone());
    let waited = within(UNMOUNT_LIMIT, move || inodes.into_iter().try_for_each(|ino| link.write_back(ino)));
    match waited {
        Some(Ok(())) => synchronized,
        Some(Err(e)) => Err(failed(e.to_string())),
        None => {
            // Fails the calls that still wait for the server. They would block this process's end.
            client.close_session();
            Err(failed(late()))
        }
    }
}

/// Takes a failed mount out of the tree.
pub(super) fn undo(mounted: &ActiveMount) {
    if let Err(e) = mounted.detach() {
        let path = mounted.path().display();
        log::warn!("cannot unmount {path}: {e}; unmount it with `umount -l {path}`");
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// Returns a mount that another process has unmounted.
    fn unmounted() -> (tempfile::TempDir, ActiveMount) {
        let directory = tempfile::tempdir().expect("a directory");
        let mounted = ActiveMount::at(directory.path());
        (directory, mounted)
    }

    #[test]
    fn a_failed_thread_ends_the_mount_with_an_error() {
        let (_directory, mounted) = unmounted();
        let (send, events) = mpsc::channel();
        send.send(Event::Failed("thread x panicked: flaw".into())).expect("sent");
        let rules = EndRules { when_busy: WhenBusy::Detach, lost_server: LostServer::End };
        let outcome = wait_and_unmount(&mounted, &events, None, rules, || None);
        let error = outcome.expect_err("an error").to_string();
        assert_eq!(error, "unmounted after a failure: thread x panicked: flaw");
    }

    #[test]
    fn a_connection_that_ends_with_the_mount_is_no_failure() {
        assert!(is_unmount(&Errno::CONNABORTED.into(), false));
        assert!(!is_unmount(&Errno::CONNABORTED.into(), true));
        assert!(!is_unmount(&Errno::IO.into(), false));
        assert!(!is_unmount(&io::ErrorKind::ConnectionAborted.into(), false));
    }
}
