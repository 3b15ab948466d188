//! From a decoded request to a reply, for any transport or none.
//!
//! Threading: [`Dispatcher::handle`] runs on any number of threads at once. One lock protects the metadata; it is
//! taken in one place, held for one step of a request, and never while large ranges are
//! zeroed or messages are encoded. The arena's account has a lock of its own, taken after this one.
//!
//! It does not decode, encode, or move file data.

mod data;
mod extents;
mod locks;
mod meta;
mod names;
#[cfg(test)]
mod tests;
mod xattr;

use std::sync::Arc;

use parking_lot::Mutex;
use rdmabox::Memory;
use rfs_proto::{Attached, Errno, FileKind, Reply, Request, ServerStats, StatFs, VERSION};

use crate::{
    clock::Clock,
    leases::Leases,
    locks::Locks,
    namespace::{Namespace, New},
    scrub::Space,
    sessions::{Regions, Sessions},
    stats::{Counters, request_name},
    table::Table,
};
use meta::Meta;

/// The root directory of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Handles requests.
pub struct Dispatcher {
    meta: Mutex<Meta>,
    space: Arc<Space>,
    counters: Counters,
    clock: Arc<dyn Clock>,
    started: i64,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("space", &self.space.totals()).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// An empty file system over `space`, with its attribute records in `table`: zeroed memory of at least one record.
    pub fn new(
        space: Arc<Space>,
        table: Arc<Memory>,
        root: Root,
        clock: Arc<dyn Clock>,
    ) -> Result<Dispatcher, Errno> {
        let started = clock.now();
        let mut table = Table::new(table);
        let slot = table.take().ok_or(Errno::ENOSPC)?;
        let root = New {
            kind: FileKind::Directory,
            perm: root.perm,
            umask: 0,
            uid: root.uid,
            gid: root.gid,
            rdev: 0,
            target: b"",
            slot,
        };
        let namespace = Namespace::new(root, started);
        let meta = Meta {
            namespace,
            table,
            leases: Leases::default(),
            locks: Locks::default(),
            sessions: Sessions::default(),
            space: Arc::clone(&space),
            xattr_bytes: 0,
        };
        meta.publish_new(rfs_proto::ROOT_INO);
        Ok(Dispatcher { meta: Mutex::new(meta), space, counters: Counters::default(), clock, started })
    }

    /// A session came up.
    pub fn session_began(&self, session: u64, regions: Regions) {
        self.locked(|meta| meta.sessions.begin(session, regions));
    }

    /// A session is gone, and none of its one-sided operations can arrive any more: everything it had open is
    /// closed.
    pub fn session_ended(&self, session: u64) {
        self.locked(|meta| {
            meta.sessions.end(session);
            for (ino, last) in meta.leases.end_session(session) {
                meta.lease_ended(session, ino, last);
            }
        });
        self.space.tidy();
    }

    /// Handles a request of a session.
    pub fn handle(&self, session: u64, request: Request<'_>) -> Reply {
        self.counters.count(&request);
        let reply = self.answer(session, request);
        self.space.tidy();
        reply.unwrap_or_else(|errno| {
            log::trace!("session {session}: {}: {errno}", request_name(&request));
            Reply::Error(errno)
        })
    }

    /// Counters.
    pub fn stats(&self) -> ServerStats {
        let elapsed = self.clock.now().saturating_sub(self.started);
        ServerStats {
            calls: self.counters.calls(),
            sessions: self.locked(|meta| meta.sessions.attached()),
            uptime_secs: u64::try_from(elapsed / 1_000_000_000).unwrap_or(0),
        }
    }

    /// Totals.
    pub fn statfs(&self) -> StatFs {
        let totals = self.space.totals();
        let (inodes, inodes_free) =
            self.locked(|meta| (u64::from(meta.table.slots()), u64::from(meta.table.free_slots())));
        StatFs {
            blocks: totals.len / rfs_proto::BLOCK,
            blocks_free: totals.available() / rfs_proto::BLOCK,
            inodes,
            inodes_free,
        }
    }

    fn answer(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        if let Request::Attach { version, client, .. } = request {
            return self.attach(session, version, client);
        }
        if !self.locked(|meta| meta.sessions.is_attached(session)) {
            return Err(Errno::EPROTO);
        }
        match request {
            Request::StatFs => Ok(Reply::StatFs(self.statfs())),
            Request::Stats => Ok(Reply::Stats(self.stats())),
            Request::GetXattr { .. }
            | Request::SetXattr { .. }
            | Request::XattrPart { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. } => self.answer_xattr(session, request),
            Request::Lock { .. } | Request::StopWaiting { .. } | Request::TestLock { .. } => {
                self.answer_locks(session, request)
            }
            Request::Fallocate { .. } | Request::Copy { .. } => self.answer_extents(session, request),
            Request::Open { .. }
            | Request::Close { .. }
            | Request::Layout { .. }
            | Request::Allocate { .. }
            | Request::SetAttr { .. } => self.answer_data(session, request),
            _ => self.answer_names(session, request),
        }
    }

    fn attach(&self, session: u64, version: u32, client: &str) -> Result<Reply, Errno> {
        if version != VERSION {
            log::warn!("session {session}: {client:?} speaks version {version}, this is version {VERSION}");
            return Err(Errno::EPROTO);
        }
        let regions = self.locked(|meta| meta.sessions.attach(session)).ok_or(Errno::EPROTO)?;
        log::debug!("session {session}: {client:?} attached");
        let Regions { arena, table } = regions;
        Ok(Reply::Attached(Attached { arena, table, now: self.clock.now(), session }))
    }

    fn locked<T>(&self, step: impl FnOnce(&mut Meta) -> T) -> T {
        step(&mut self.meta.lock())
    }
}
