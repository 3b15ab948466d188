//! A mount of rfs-fuse, and the session of this process beside it.
//!
//! The session begins when a file of the mount is carried for the first time. It does not
//! reconnect: after a loss the files are the kernel's, and a later open begins another session.
//!
//! # Concurrency
//! Any thread. One lock, which is held while a thread connects; others do without the session.

use std::{
    collections::HashSet,
    os::fd::RawFd,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rfs_native::{AccessTimes, Credentials, Mount, MountOptions, TlsClientFiles};
use rfs_status::{
    control,
    mounts::access::{ACCESS, ServerAccess},
};

use super::id::MountId;
use crate::{session::protected, session::signals};

/// Limits of the wait for the mount's answer, and for the server.
const ASK_LIMIT: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Pause after an attempt that failed.
const PAUSE: Duration = Duration::from_secs(10);

/// The session of this process.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) mount: Mount,
    /// The effective user of the process when the session began.
    pub(crate) uid: u32,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    /// When the last attempt failed.
    failed: Option<Instant>,
    /// Descriptors of the session.
    descriptors: Vec<RawFd>,
}

/// A mount of rfs-fuse.
pub(crate) struct Site {
    pub(crate) id: MountId,
    socket: PathBuf,
    state: Mutex<State>,
    /// Inodes that this process has mapped. The kernel has them from then on.
    mapped: Mutex<HashSet<u64>>,
    has_mapped: AtomicBool,
}

impl Site {
    pub(crate) fn new(id: MountId, socket: PathBuf) -> Site {
        let (state, mapped, has_mapped) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Site { id, socket, state, mapped, has_mapped }
    }

    /// Returns false while there is no session, and the next attempt is not due.
    pub(crate) fn may_have_session(&self) -> bool {
        let Some(state) = self.state.try_lock() else { return true };
        state.session.is_some() || state.failed.is_none_or(|failed| failed.elapsed() >= PAUSE)
    }

    /// Returns the session, and begins it if there is none. `None` if the mount gives no access,
    /// the server cannot be reached, or another thread is connecting.
    pub(crate) fn session(&self) -> Option<Session> {
        let mut state = self.state.try_lock()?;
        if let Some(session) = state.session.as_ref().filter(|session| session.mount.is_connected()) {
            return Some(session.clone());
        }
        end_session(&mut state);
        if state.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return None;
        }
        let before = open_descriptors();
        match self.connect() {
            Ok(session) => {
                let new = |fd: &RawFd| !before.contains(fd);
                state.descriptors = open_descriptors().into_iter().filter(new).collect();
                protected::add(&state.descriptors);
                state.failed = None;
                state.session = Some(session.clone());
                Some(session)
            }
            Err(reason) => {
                log::debug!("{}: {reason}", self.socket.display());
                state.failed = Some(Instant::now());
                None
            }
        }
    }

    fn connect(&self) -> Result<Session, String> {
        let answer = control::ask(&self.socket, ACCESS, ASK_LIMIT).map_err(|e| e.to_string())?;
        let access: ServerAccess = serde_json::from_str(&answer).map_err(|e| e.to_string())?;
        let options = options_of(&access)?;
        let uid = options.user.uid;
        // The threads of the session must not run the program's signal handlers.
        let mount = signals::without(|| Mount::connect(&access.address, &options));
        let mount = mount.map_err(|e| e.to_string())?;
        if mount.memory().to_string() != access.memory {
            return Err("the server at that address is not the server of the mount".into());
        }
        Ok(Session { mount, uid })
    }

    /// Ends the session. Returns its descriptors, which may still be open.
    pub(crate) fn end(&self) -> Vec<RawFd> {
        let mut state = self.state.lock();
        state.failed = Some(Instant::now());
        end_session(&mut state)
    }

    /// Leaves an inode to the kernel, because it is mapped.
    pub(crate) fn map(&self, ino: u64) {
        self.mapped.lock().insert(ino);
        self.has_mapped.store(true, Ordering::Release);
    }

    /// Returns true if this process has mapped an inode.
    pub(crate) fn has_mapped(&self, ino: u64) -> bool {
        self.has_mapped.load(Ordering::Acquire) && self.mapped.lock().contains(&ino)
    }
}

/// Ends the session, if there is one. Returns its descriptors.
fn end_session(state: &mut State) -> Vec<RawFd> {
    if let Some(session) = state.session.take() {
        session.mount.disconnect();
    }
    protected::remove(&state.descriptors);
    std::mem::take(&mut state.descriptors)
}

/// Returns the descriptors that this process has open.
fn open_descriptors() -> HashSet<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return HashSet::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The listing itself has a descriptor, which is closed by now. It is a new one both times.
    let all: HashSet<RawFd> = numbers.collect();
    // SAFETY: the call reads the flags of a number, which may be closed.
    all.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

/// Returns the options of a session as the mount describes it.
fn options_of(access: &ServerAccess) -> Result<MountOptions, String> {
    let provider = access.provider.as_deref().map(str::parse).transpose();
    let access_times = match access.access_times.as_str() {
        "never" => AccessTimes::Never,
        "always" => AccessTimes::Always,
        "relative" => AccessTimes::Relative,
        other => return Err(format!("unknown access times {other:?}")),
    };
    let tls = access.tls.as_ref().map(|files| {
        let mut tls = TlsClientFiles::new(&files.ca);
        tls.name.clone_from(&files.name);
        tls.own.clone_from(&files.own);
        tls
    });
    Ok(MountOptions {
        export: access.export.clone(),
        user: Credentials::of_process(),
        key: access.key.clone(),
        tls,
        provider: provider
            .map_err(|e: <rfs_native::ProviderKind as std::str::FromStr>::Err| e.to_string())?,
        access_times,
        reconnects: false,
        connect_timeout: CONNECT_LIMIT,
        name: "preload".into(),
        ..MountOptions::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> ServerAccess {
        ServerAccess {
            address: "unix:/run/rfs.sock".into(),
            provider: Some("tcp".into()),
            export: "home".into(),
            memory: String::new(),
            key: Some("/etc/rfs/key".into()),
            tls: None,
            access_times: "never".into(),
        }
    }

    #[test]
    fn the_session_is_as_the_mount_says() {
        let options = options_of(&access()).expect("valid");
        assert_eq!((options.export.as_str(), options.reconnects), ("home", false));
        assert_eq!(options.provider, Some(rfs_native::ProviderKind::Tcp));
        assert_eq!((options.access_times, options.key), (AccessTimes::Never, Some("/etc/rfs/key".into())));
        assert!(options_of(&ServerAccess { provider: Some("x".into()), ..access() }).is_err());
        assert!(options_of(&ServerAccess { access_times: "x".into(), ..access() }).is_err());
    }
}
