//! A mount: a session, and its root directory.

use std::{fmt, ops::Deref, sync::Arc};

use rdmabox::Address;
use rfs_client::{Client, ClientError};
use rfs_proto::{BLOCK, Identity};

use crate::{
    access::credentials::Credentials,
    dir::Dir,
    error::{ConnectError, Error, Result},
    session::{core::Core, options::MountOptions},
};

/// Space of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size in bytes.
    pub bytes: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Maximum number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}

/// State that a mount has in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Number of cached names.
    pub names: usize,
    /// Number of inodes that cached names, open files and directories refer to.
    pub inodes: usize,
}

/// A session with a server. It is its own root directory: all calls of [`Dir`] are calls of a
/// mount. A clone is the same mount.
///
/// # Concurrency
/// Any number of threads call every method.
#[derive(Clone)]
pub struct Mount {
    root: Dir,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mount").field(&self.description()).finish()
    }
}

impl Mount {
    /// Connects to a server: `HOST:PORT`, `rdma:HOST:PORT`, or the path of a Unix socket. On the
    /// server's own host the session uses shared memory.
    ///
    /// # Errors
    /// The server cannot be reached, refuses the key, or has no such export. A retry is safe.
    pub fn connect(address: &str, options: &MountOptions) -> std::result::Result<Mount, ConnectError> {
        let parsed = address.parse::<Address>();
        let address = parsed.map_err(|e| ConnectError::Address(format!("{address}: {e}")))?;
        Mount::connect_to(&address, options)
    }

    /// Connects as [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to(address: &Address, options: &MountOptions) -> std::result::Result<Mount, ConnectError> {
        let core = Arc::new(Core::connect(address, options)?);
        let (user, node) = (Arc::new(options.user.clone()), Arc::clone(&core.root));
        Ok(Mount { root: Dir { core, user, node } })
    }

    /// Returns this mount for another user, in the same session.
    pub fn as_user(&self, user: Credentials) -> Mount {
        Mount { root: self.root.as_user(user) }
    }

    /// Returns the root directory.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    pub(crate) fn client(&self) -> &Client {
        &self.root.core.client
    }

    /// Returns size and free space of the export.
    ///
    /// # Errors
    /// Any error of the session.
    pub fn space(&self) -> Result<Space> {
        let failed = |e: ClientError| Error::new("space", "of the export", e);
        let totals = self.client().export.statfs().map_err(failed)?;
        Ok(Space {
            bytes: totals.blocks.saturating_mul(BLOCK),
            bytes_free: totals.blocks_free.saturating_mul(BLOCK),
            inodes: totals.inodes,
            inodes_free: totals.inodes_free,
        })
    }

    /// Ends the session. All calls of the mount and its files fail with EHOSTDOWN from then on.
    pub fn disconnect(&self) {
        self.client().close_session();
    }

    /// Returns false once the session has ended for good.
    pub fn is_connected(&self) -> bool {
        self.client().is_connected()
    }

    /// Returns true if the server's memory is mapped in this process.
    pub fn is_mapped(&self) -> bool {
        self.client().is_mapped()
    }

    /// Returns true if every change fails with EROFS, because of the key.
    pub fn is_read_only(&self) -> bool {
        self.client().is_read_only()
    }

    /// Returns the identity of the export's memory. Mounts with the same memory share its inodes.
    pub fn memory(&self) -> Identity {
        self.client().memory()
    }

    /// Describes the transport, for users.
    pub fn description(&self) -> String {
        self.client().description()
    }

    /// Returns the counters of the session by name, such as `calls`.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.client().counters()
    }

    /// Returns the number of cached names and known inodes.
    pub fn usage(&self) -> Usage {
        Usage { names: self.root.core.names.len(), inodes: self.root.core.nodes.len() }
    }
}

impl Deref for Mount {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        &self.root
    }
}
