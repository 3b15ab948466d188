//! The client, and the steps that several operations share.
//!
//! # Concurrency
//! Any number of threads.

pub(crate) mod calls;
pub(crate) mod changes;
pub(crate) mod epochs;
pub(crate) mod layouts;
pub(crate) mod pages;
pub(crate) mod recall_guard;
pub(crate) mod recalls;
pub(crate) mod records;
pub(crate) mod times;
pub(crate) mod unlinked;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use rfs_proto::{Attr, Errno, Identity};

use crate::{
    cache::Cache,
    error::ClientError,
    inode::{Inode, access::AccessTimes, table::InodeTable},
    memory::{checksums::Checksums, records::Records},
    remote::{Mapped, Remote, address::RegionBounds, clock::ServerClock},
    transfers::Transfers,
};

/// Number of attempts of an operation while the file's layout keeps changing.
pub(crate) const TRIES: usize = 16;

/// One session with one server.
#[derive(Debug)]
pub struct Client {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) arena: RegionBounds,
    /// Local mapping of the arena, if the provider maps it.
    pub(crate) arena_map: Option<Mapped>,
    pub(crate) records: Records,
    /// Checksums of the arena, if the export has them.
    pub(crate) sums: Option<Checksums>,
    pub(crate) clock: ServerClock,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) transfers: Transfers,
    pub(crate) cache: Arc<Cache>,
    pub(crate) access_times: AccessTimes,
    pub(crate) directory_access_times: AccessTimes,
    /// Held while a value goes to the server in several parts. The server stores one pending first
    /// part per session.
    pub(crate) parts: Mutex<()>,
    /// True if no other session may use the export.
    pub(crate) exclusive: bool,
    /// Number of the session at the server.
    pub(crate) session: Arc<AtomicU64>,
    /// Identity of this mount at the server, if the client reconnects.
    pub(crate) mount: Option<Identity>,
    /// True if the session may change nothing.
    pub(crate) read_only: bool,
    /// True if the session may only read the memory: the server writes data and times.
    pub(crate) confined: bool,
    /// Limit of a wait for another client.
    pub(crate) wait_limit: Duration,
}

impl Client {
    /// Returns an inode that the caller has open.
    pub(crate) fn opened(&self, ino: u64) -> Result<Arc<Inode>, ClientError> {
        self.inodes.get(ino).ok_or_else(|| Errno::EBADF.into())
    }

    /// Takes a reference to an inode whose attributes came.
    pub(crate) fn acquire(&self, attr: &Attr) -> Arc<Inode> {
        let inode = self.inodes.acquire(attr.ino);
        inode.set_slot(attr.slot);
        self.cache.prefetch.lock().remove_inode(attr.ino);
        inode
    }

    /// Returns true if the caller has a reference to the inode.
    pub fn knows(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some()
    }

    /// Returns false once the session has ended. Every operation fails then.
    pub fn is_connected(&self) -> bool {
        self.remote.status().is_connected
    }

    /// Returns the identity of this mount, if it reconnects. A process with the identity can act as
    /// the mount.
    pub fn mount(&self) -> Option<Identity> {
        self.mount
    }

    /// Returns true if the session is read-only for all users: every change fails with EROFS.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns true if the server's memory is mapped here, so that reads and writes wait for no
    /// other process.
    pub fn is_mapped(&self) -> bool {
        self.records.is_mapped()
    }

    /// Describes the transport and the checksums, for users.
    pub fn description(&self) -> String {
        let compares = if self.sums.is_some() { ", with checksums" } else { "" };
        self.remote.status().transport + compares
    }

    /// Returns the session's counters by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.remote.status().counters
    }

    /// Returns the number of referenced inodes.
    pub fn known_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// Ends the session. Operations in flight fail.
    pub fn close_session(&self) {
        self.remote.close();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.remote.close();
    }
}
