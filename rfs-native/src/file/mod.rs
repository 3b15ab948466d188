//! Open files.

mod async_io;
mod cursor;
mod data;
mod locks;
pub(crate) mod open;
mod scratch;
mod space;
mod vectored;
mod view;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rdmabox::RequestError;
use rfs_client::ClientError;
use rfs_proto::Errno;

pub use self::{async_io::Started, cursor::Cursor, locks::LockMode, open::OpenOptions, view::View};
use crate::{
    access::credentials::Credentials,
    attributes::stat::Stat,
    cache::nodes::Node,
    error::{Result, on},
    session::core::Core,
};

/// An open file. A clone is the same open file; the last one closes it.
///
/// The file lives until its last close on any mount, also without a name. It keeps the session of
/// its mount.
///
/// # Concurrency
/// Any number of threads call every method. Reads and writes run in parallel.
#[derive(Clone)]
pub struct File {
    pub(crate) inner: Arc<OpenFile>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("ino", &self.inner.node.ino).finish_non_exhaustive()
    }
}

/// The shared part of an open file.
pub(crate) struct OpenFile {
    pub(crate) core: Arc<Core>,
    pub(crate) user: Arc<Credentials>,
    pub(crate) node: Arc<Node>,
    /// Number of the open file in this mount.
    handle: u64,
    reads: bool,
    writes: bool,
    appends: bool,
    /// True until the first read, which may change the access time.
    is_unread: AtomicBool,
    /// True once a lock was requested.
    locks: AtomicBool,
    is_closed: AtomicBool,
}

impl OpenFile {
    fn new(
        (core, user): (&Arc<Core>, &Arc<Credentials>),
        node: Arc<Node>,
        options: &OpenOptions,
    ) -> OpenFile {
        OpenFile {
            core: Arc::clone(core),
            user: Arc::clone(user),
            node,
            handle: core.new_handle(),
            reads: options.is_to_read(),
            writes: options.is_to_write(),
            appends: options.is_to_append(),
            is_unread: AtomicBool::new(true),
            locks: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Checks that the file may be read, and that it has lost no lock.
    pub(crate) fn check_read(&self) -> std::result::Result<(), ClientError> {
        if !self.reads {
            return Err(Errno::EBADF.into());
        }
        self.check_locks()
    }

    /// Checks that the file may be written, and that it has lost no lock.
    pub(crate) fn check_write(&self) -> std::result::Result<(), ClientError> {
        if !self.writes {
            return Err(Errno::EBADF.into());
        }
        self.check_locks()
    }

    /// Checks that no lock of this file was lost with a session.
    fn check_locks(&self) -> std::result::Result<(), ClientError> {
        self.core.client.locks.check_locks(self.node.ino, self.handle)
    }

    /// Notes a read: the first one may change the access time.
    pub(crate) fn was_read(&self) {
        if self.is_unread.load(Ordering::Relaxed) && self.is_unread.swap(false, Ordering::Relaxed) {
            self.node.changed();
        }
    }

    /// Closes the file, once.
    fn close(&self) -> std::result::Result<(), ClientError> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (client, ino) = (&self.core.client, self.node.ino);
        let unlocked = match self.locks.load(Ordering::Acquire) {
            true => {
                client.locks.will_release();
                client.locks.unlock_handle(ino, self.handle)
            }
            false => Ok(()),
        };
        let closed = client.files.close(ino);
        match self.writes {
            true => self.node.end_writes(),
            false => self.node.changed(),
        }
        closed.and(unlocked)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        match self.close() {
            // The session has ended, and the server has closed all its files.
            Ok(()) | Err(ClientError::Request(RequestError::Disconnected)) => {}
            Err(e) => log::warn!("cannot close inode {}: {e}", self.node.ino),
        }
    }
}

impl File {
    /// Returns the file of an open that the client has made.
    pub(crate) fn opened(
        of: (&Arc<Core>, &Arc<Credentials>),
        node: Arc<Node>,
        options: &OpenOptions,
    ) -> File {
        File { inner: Arc::new(OpenFile::new(of, node, options)) }
    }

    /// Returns the number of the inode.
    pub fn ino(&self) -> u64 {
        self.inner.node.ino
    }

    /// Returns the attributes, with the effects of all writes that have returned.
    ///
    /// # Errors
    /// Any error of the session.
    pub fn stat(&self) -> Result<Stat> {
        self.inner.node.attr().map(|attr| Stat::of(&attr)).map_err(on("stat", self.ino()))
    }

    /// Publishes the exact time of the last write to other mounts. The bytes of a write are at the
    /// server when the write returns.
    ///
    /// # Errors
    /// Any error of the session.
    pub fn sync(&self) -> Result<()> {
        self.inner.core.client.files.fsync(self.ino()).map_err(on("sync", self.ino()))
    }

    /// Closes the file if this is its last clone, and returns the error of that. A drop logs it.
    ///
    /// # Errors
    /// Any error of the session. The file is closed also then.
    pub fn close(self) -> Result<()> {
        let ino = self.ino();
        match Arc::into_inner(self.inner) {
            Some(file) => file.close().map_err(on("close", ino)),
            None => Ok(()),
        }
    }
}
