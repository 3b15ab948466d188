//! The end of a mount: waits for the event that ends it, and unmounts.
//!
//! # Concurrency
//! The main thread. Calls that the kernel may hold up run on threads of their own, within a limit.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Instant,
};

use sd_notify::NotifyState;

use super::{Event, Over, RunError, Served, UNCARED, UNMOUNT_LIMIT, tell_manager};
use crate::mount::{self, Look, Mounted, Unmounted, within};

/// Waits for the end of a mount, and unmounts what is still mounted.
///
/// # Errors
/// The mount ended for another reason than an unmount, or data that the kernel kept are lost.
pub(super) fn wait_and_unmount(
    mounted: &Mounted,
    events: &mpsc::Receiver<Event>,
    client: Option<Served<'_>>,
    mut caring: impl FnMut() -> Option<io::Result<()>>,
) -> Result<Over, RunError> {
    let ending = Arc::<AtomicBool>::default();
    if let Some(Served { losses, .. }) = client {
        let (begun, mounted) = (Arc::clone(&ending), mounted.clone());
        losses.count_if(move || begun.load(Ordering::Relaxed) || !mounted.is_mounted());
    }
    let signal = loop {
        match events.recv() {
            Ok(Event::Ended(Ok(()))) => return Ok(Over::Ended),
            Ok(Event::Ended(Err(why))) if is_unmount(&why, mounted.is_mounted()) => return Ok(Over::Ended),
            Ok(Event::Ended(Err(why))) => {
                undo(mounted);
                return Err(RunError::Ended(why.to_string()));
            }
            Ok(Event::Failed(failure)) => {
                ending.store(true, Ordering::Relaxed);
                tell_manager(NotifyState::Stopping);
                let is_mounted = mounted.is_mounted();
                let lost = is_mounted.then(|| write_back(mounted.path(), client).err()).flatten();
                undo(mounted);
                let lost = lost.map(|lost| format!("; {lost}")).unwrap_or_default();
                return Err(RunError::Failed(failure + &lost));
            }
            Ok(Event::Uncared) => match caring() {
                Some(Err(e)) => log::warn!("{UNCARED}: {e}"),
                Some(Ok(())) => log::warn!(
                    "the process that unmounts after a kill of this one was killed: started another one"
                ),
                None => {}
            },
            Ok(Event::Signal(signal)) => break signal,
            // The sender is alive as long as this process has its threads.
            Err(mpsc::RecvError) => return Err(RunError::Ended("all threads are gone".into())),
        }
    };
    log::info!("signal {signal}: unmounting {}", mounted.path().display());
    tell_manager(NotifyState::Stopping);
    ending.store(true, Ordering::Relaxed);
    let mount = mounted.clone();
    match within(UNMOUNT_LIMIT, move || mount.unmount()) {
        Some(Ok(Unmounted::Clean)) => {
            // The session ends when the kernel lets go.
            let end = Instant::now() + UNMOUNT_LIMIT;
            while let Ok(Event::Signal(_) | Event::Uncared | Event::Failed(_)) =
                events.recv_timeout(end.saturating_duration_since(Instant::now()))
            {}
            return Ok(Over::Ended);
        }
        Some(Ok(Unmounted::Busy)) => log::warn!(
            "{} is busy: detached; calls on files that are still open there fail from now on",
            mounted.path().display()
        ),
        Some(Err(e)) => log::warn!("cannot unmount {}: {e}: detached", mounted.path().display()),
        None => log::warn!("cannot unmount {} within {UNMOUNT_LIMIT:?}: detached", mounted.path().display()),
    }
    let written = write_back(mounted.path(), client);
    mounted.detach().map_err(|source| RunError::Unmount { path: mounted.path().to_owned(), source })?;
    written?;
    Ok(Over::Detached)
}

/// Data that the kernel keeps of a mount may not have reached the server.
#[derive(Debug, thiserror::Error)]
#[error("{}: recent writes of programs may be lost: {why}", path.display())]
pub(super) struct WriteBackError {
    path: PathBuf,
    why: String,
}

/// Returns true if a session failed with `error` because of an unmount. fuser takes ENODEV for that. A
/// thread that has taken a request out of the queue when the connection ends (one of the last RELEASEs)
/// gets ECONNABORTED. While the mount is still in the tree, the same number means an abort of the
/// connection (`/sys/fs/fuse/connections/N/abort`).
fn is_unmount(error: &io::Error, still_mounted: bool) -> bool {
    !still_mounted && error.raw_os_error() == Some(rustix::io::Errno::CONNABORTED.raw_os_error())
}

/// Has the kernel write back what it keeps of files that are open here, also changes of mapped memory,
/// before the mount goes. Some kernels only begin with that (from 6.18 on, syncfs(2) does not wait for
/// FUSE), so that this waits file by file.
///
/// # Errors
/// The kernel fails, or takes longer than the limit.
fn write_back(path: &Path, client: Option<Served<'_>>) -> Result<(), WriteBackError> {
    let failed = |why| WriteBackError { path: path.to_owned(), why };
    let late = || format!("they were not written back within {UNMOUNT_LIMIT:?}");
    let synchronized = match mount::look(path, Look::Sync, UNMOUNT_LIMIT) {
        Some(Ok(())) => Ok(()),
        Some(Err(e)) => Err(failed(format!("syncfs: {e}"))),
        None => return Err(failed(late())),
    };
    let Some(Served { client, link, .. }) = client else { return synchronized };
    let (inodes, link) = (client.open_to_write(), link.clone());
    let waited = within(UNMOUNT_LIMIT, move || inodes.into_iter().try_for_each(|ino| link.write_back(ino)));
    match waited {
        Some(Ok(())) => synchronized,
        Some(Err(e)) => Err(failed(e.to_string())),
        None => {
            // What still waits for that fails now, and holds the end of this process up no longer.
            client.close_session();
            Err(failed(late()))
        }
    }
}

/// Takes a mount out of the tree that is of no use.
pub(super) fn undo(mounted: &Mounted) {
    if let Err(e) = mounted.detach() {
        let path = mounted.path().display();
        log::warn!("cannot unmount {path}: {e}; unmount it with `umount -l {path}`");
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// A mount that another process has unmounted already.
    fn unmounted() -> (tempfile::TempDir, Mounted) {
        let directory = tempfile::tempdir().expect("a directory");
        let mounted = Mounted::at(directory.path());
        (directory, mounted)
    }

    #[test]
    fn a_failed_thread_ends_the_mount_with_an_error() {
        let (_directory, mounted) = unmounted();
        let (send, events) = mpsc::channel();
        send.send(Event::Failed("thread x panicked: flaw".into())).expect("sent");
        let outcome = wait_and_unmount(&mounted, &events, None, || None);
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
