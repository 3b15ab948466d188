//! A mount of rfs-fuse, and the session of this process beside it.
//!
//! The session begins when a file of the mount is carried for the first time. It does not
//! reconnect: after a loss the files are the kernel's, and a later open begins another session.
//!
//! # Concurrency
//! Any thread. One lock, which is held while a thread connects; others do without the session.

use std::{
    collections::HashSet,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rfs_native::{AccessTimes, Credentials, Mount, MountOptions, TlsClientFiles};
use rfs_status::{
    control,
    mounts::access::{ACCESS, ServerAccess, TlsFiles},
};

use super::id::MountId;
use crate::{next, session::session_fds, session::signals};

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
                let new = |fd: &RawFd| !before.contains(fd) && !is_on_fuse(*fd);
                state.descriptors = open_descriptors().into_iter().filter(new).collect();
                session_fds::add(&state.descriptors);
                // Threads of the session open and close some meanwhile.
                let is_closed = |fd: &RawFd| !next::is_open(*fd);
                let closed: Vec<RawFd> = state.descriptors.iter().copied().filter(is_closed).collect();
                session_fds::remove(&closed);
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
        let answer = control::ask_for_files(&self.socket, ACCESS, ASK_LIMIT).map_err(|e| e.to_string())?;
        let access: ServerAccess = serde_json::from_str(&answer.document).map_err(|e| e.to_string())?;
        // The session reads the files when it connects, and never again.
        let options = options_of(&access, &answer.files)?;
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

    /// Forgets a descriptor that a session closes. While a thread connects or ends the session, it
    /// has the list, and looks which ones are open.
    pub(crate) fn forget(&self, fd: RawFd) {
        if let Some(mut state) = self.state.try_lock() {
            state.descriptors.retain(|own| *own != fd);
        }
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
    let mut descriptors = std::mem::take(&mut state.descriptors);
    // The session has closed the others: their numbers may be the program's.
    descriptors.retain(|fd| session_fds::contains(*fd));
    session_fds::remove(&descriptors);
    descriptors
}

/// Returns the descriptors that this process has open.
fn open_descriptors() -> HashSet<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return HashSet::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The listing itself has a descriptor, which is closed by now. It is a new one both times.
    let all: HashSet<RawFd> = numbers.collect();
    all.into_iter().filter(|fd| next::is_open(*fd)).collect()
}

/// Returns true for a file of a FUSE file system: a session has none. Another thread of the program
/// has opened it.
fn is_on_fuse(fd: RawFd) -> bool {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the result has room.
    let outcome = unsafe { libc::fstatfs(fd, found.as_mut_ptr()) };
    // SAFETY: the call has filled the result.
    outcome == 0 && unsafe { found.assume_init() }.f_type == libc::FUSE_SUPER_MAGIC
}

fn is_regular(fd: RawFd) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the result has room.
    let outcome = unsafe { next::fstat64(fd, stat.as_mut_ptr()) };
    // SAFETY: the call has filled the result.
    outcome == 0 && unsafe { stat.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Returns the options of a session as the mount describes it. `files` came with the description.
fn options_of(access: &ServerAccess, files: &[OwnedFd]) -> Result<MountOptions, String> {
    let provider = access.provider.as_deref().map(str::parse).transpose();
    let access_times = match access.access_times.as_str() {
        "never" => AccessTimes::Never,
        "always" => AccessTimes::Always,
        "relative" => AccessTimes::Relative,
        other => return Err(format!("unknown access times {other:?}")),
    };
    let path = |at: usize| path_of(files.get(at).ok_or("a file is missing")?);
    let tls = |files: &TlsFiles| -> Result<TlsClientFiles, String> {
        let mut tls = TlsClientFiles::new(path(files.ca)?);
        tls.name.clone_from(&files.name);
        tls.own = files.own.map(|(own, key)| Ok::<_, String>((path(own)?, path(key)?))).transpose()?;
        Ok(tls)
    };
    Ok(MountOptions {
        export: access.export.clone(),
        user: Credentials::of_process(),
        key: access.key.map(path).transpose()?,
        tls: access.tls.as_ref().map(tls).transpose()?,
        provider: provider
            .map_err(|e: <rfs_native::ProviderKind as std::str::FromStr>::Err| e.to_string())?,
        access_times,
        reconnects: false,
        connect_timeout: Duration::from_millis(access.connect_timeout_ms).min(CONNECT_LIMIT),
        timeout: Duration::from_millis(access.timeout_ms),
        name: "preload".into(),
        ..MountOptions::default()
    })
}

/// Returns a path of an open file. To open a file of another type could wait for ever.
fn path_of(file: &OwnedFd) -> Result<PathBuf, String> {
    match is_regular(file.as_raw_fd()) {
        true => Ok(format!("/proc/self/fd/{}", file.as_raw_fd()).into()),
        false => Err("the mount gives something else than a file".into()),
    }
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
            key: Some(1),
            tls: Some(TlsFiles { ca: 0, name: Some("server".into()), own: None }),
            access_times: "never".into(),
            timeout_ms: 3000,
            connect_timeout_ms: 9000,
        }
    }

    #[test]
    fn the_session_is_as_the_mount_says() {
        let open = |_| std::fs::File::open("/etc/passwd").expect("a file").into();
        let files: [OwnedFd; 2] = std::array::from_fn(open);
        let options = options_of(&access(), &files).expect("valid");
        assert_eq!((options.export.as_str(), options.reconnects), ("home", false));
        assert_eq!(options.provider, Some(rfs_native::ProviderKind::Tcp));
        assert_eq!(options.access_times, AccessTimes::Never);
        assert_eq!((options.timeout, options.connect_timeout), (Duration::from_secs(3), CONNECT_LIMIT));
        assert_eq!(options.key, Some(format!("/proc/self/fd/{}", files[1].as_raw_fd()).into()));
        let tls = options.tls.expect("as the mount says");
        assert_eq!(tls.ca, PathBuf::from(format!("/proc/self/fd/{}", files[0].as_raw_fd())));
        let refused = |access: ServerAccess| options_of(&access, &files).is_err();
        assert!(refused(ServerAccess { provider: Some("x".into()), ..access() }));
        assert!(refused(ServerAccess { access_times: "x".into(), ..access() }));
        assert!(refused(ServerAccess { key: Some(2), ..access() }), "no such file");
        let pipe = std::io::pipe().expect("a pipe").0.into();
        assert!(options_of(&ServerAccess { key: Some(0), tls: None, ..access() }, &[pipe]).is_err());
    }

    #[test]
    fn files_of_a_session_are_on_no_fuse_file_system() {
        // The memory of a server may be a file with a name, on a tmpfs.
        let named = std::fs::File::open("/etc/passwd").expect("a file");
        let (pipe, _end) = std::io::pipe().expect("a pipe");
        assert!(!is_on_fuse(named.as_raw_fd()) && !is_on_fuse(pipe.as_raw_fd()) && !is_on_fuse(-1));
    }
}
