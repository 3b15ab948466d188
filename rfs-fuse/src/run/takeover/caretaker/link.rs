//! The serving program's end of the connection with its caretaker.
//!
//! # Concurrency
//! The main thread. A thread `caretaker` waits for the end of the caretaker.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
};

use rfs_client::{KeptState, KeptStateError};

use super::{
    STARTED,
    message::{HeldMount, Message, receive, send},
};

/// A mount to continue.
#[derive(Debug)]
pub(in crate::run) struct Kept {
    pub(in crate::run) mount: HeldMount,
    pub(in crate::run) devices: Vec<Arc<OwnedFd>>,
    pub(in crate::run) state: Arc<KeptState>,
}

/// The connection with the caretaker.
#[derive(Debug)]
pub(in crate::run) struct Link(Arc<OwnedFd>);

/// The caretaker has sent nothing that this program can use.
#[derive(Debug, thiserror::Error)]
pub(in crate::run) enum LinkError {
    #[error("cannot talk to the caretaker: {0}")]
    Os(#[from] io::Error),
    #[error(transparent)]
    State(#[from] KeptStateError),
}

impl Link {
    /// Returns the connection if a caretaker has started this program, and the mount to continue.
    ///
    /// # Errors
    /// The caretaker has ended, or its state is of another format.
    pub(in crate::run) fn of_this_process() -> Result<Option<(Link, Option<Kept>)>, LinkError> {
        if std::env::var_os(STARTED).is_none() {
            return Ok(None);
        }
        // The caretaker has run the program by a descriptor, whose number is its name.
        rustix::thread::set_name(c"rfs-fuse").ok();
        let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(io::Error::from)?;
        let null = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null).map_err(io::Error::from)?;
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (message, descriptors) = receive(&socket)?.ok_or_else(gone)?;
        let Message::Start(mount) = message else { return Err(gone().into()) };
        let kept = mount.map(|mount| continued(mount, descriptors)).transpose()?;
        Ok(Some((Link(Arc::new(socket)), kept)))
    }

    /// Has the caretaker hold a mount.
    pub(in crate::run) fn keep(
        &self,
        mount: &HeldMount,
        state: &KeptState,
        devices: &[Arc<OwnedFd>],
        lock: Option<&File>,
    ) -> io::Result<()> {
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![state.file()];
        descriptors.extend(devices.iter().map(|device| device.as_fd()));
        descriptors.extend(lock.map(AsFd::as_fd));
        let message = Message::Keep { mount: mount.clone(), has_lock: lock.is_some() };
        send(&*self.0, &message, &descriptors)
    }

    /// Tells the caretaker that the mount answers.
    pub(in crate::run) fn serves(&self) -> io::Result<()> {
        send(&*self.0, &Message::Serving, &[])
    }

    /// Calls `ended` on another thread when the caretaker has ended.
    pub(in crate::run) fn watch(&self, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let socket = Arc::clone(&self.0);
        let wait = move || {
            // The caretaker sends nothing more.
            while let Ok(Some(_)) = receive(&*socket) {}
            ended();
        };
        thread::Builder::new().name("caretaker".into()).spawn(wait).map(drop)
    }
}

fn continued(mount: HeldMount, descriptors: Vec<OwnedFd>) -> Result<Kept, LinkError> {
    let mut descriptors = descriptors.into_iter();
    let state = descriptors.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let devices: Vec<_> = descriptors.map(Arc::new).collect();
    if devices.is_empty() {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    }
    Ok(Kept { mount, devices, state: KeptState::open(File::from(state))? })
}
