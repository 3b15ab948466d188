//! The client: one session with one server, and a struct for each of its jobs.
//!
//! # Concurrency
//! Any number of threads.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use rfs_proto::{Identity, ROOT_INO};

use crate::{
    cache::Cache,
    inode::{access::AccessTimes, table::InodeTable},
    metadata::{
        access_times::AccessReports, attributes::Attributes, export::Export, locks::Locks, lookup::Lookups,
        names::Names, open::OpenFiles, readdir::Directories, xattr::Xattrs,
    },
    recalls::{Recalls, pages::PageHolds},
    remote::{
        Mapped, Remote, address::RegionBounds, checksums::Checksums, clock::ServerClock, records::Records,
    },
    steps::{
        cache_rules::CacheRules, calls::Calls, file_times::FileTimes, layouts::Layouts,
        record_reader::RecordReader,
    },
    transfers::Transfers,
};

/// An attached session, and the rules that the caller has set for it.
pub(crate) struct Attachment {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) clock: ServerClock,
    /// Number of the session at the server.
    pub(crate) session: u64,
    /// Identity of this mount at the server, if the client reconnects.
    pub(crate) mount: Option<Identity>,
    pub(crate) arena: RegionBounds,
    /// Length of the table of records in bytes.
    pub(crate) table_len: u64,
    /// Checksums of the arena, if the export has them.
    pub(crate) sums: Option<Checksums>,
    /// True if the session may change nothing.
    pub(crate) read_only: bool,
    /// True if the session may only read the memory: the server writes data and times.
    pub(crate) confined: bool,
    /// True if no other session may use the export.
    pub(crate) exclusive: bool,
    /// True if this client may cache.
    pub(crate) caches: bool,
    pub(crate) access_times: AccessTimes,
    pub(crate) directory_access_times: AccessTimes,
    /// Limit of a wait for another client.
    pub(crate) wait_limit: Duration,
}

/// One session with one server.
#[derive(Debug)]
pub struct Client {
    pub(crate) remote: Arc<dyn Remote>,
    /// What this client and its caller may cache.
    pub caching: Arc<CacheRules>,
    /// Recalls from the server.
    pub recalls: Recalls,
    /// Pages of files that other mounts have open, too.
    pub pages: PageHolds,
    /// Lookups of names, and the references that they take.
    pub lookups: Lookups,
    /// Names to make, remove and rename.
    pub names: Names,
    /// Listings of directories.
    pub directories: Arc<Directories>,
    /// Attributes.
    pub attributes: Arc<Attributes>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// Reads that change access times.
    pub access_times: Arc<AccessReports>,
    /// Files to open, create and close.
    pub files: Arc<OpenFiles>,
    /// File locks.
    pub locks: Locks,
    /// Queries about the whole export.
    pub export: Export,
    pub(crate) calls: Arc<Calls>,
    pub(crate) records: Arc<RecordReader>,
    pub(crate) layouts: Arc<Layouts>,
    pub(crate) times: Arc<FileTimes>,
    /// Local mapping of the arena, if the provider maps it.
    pub(crate) arena_map: Option<Mapped>,
    /// Checksums of the arena, if the export has them.
    pub(crate) sums: Option<Checksums>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) transfers: Transfers,
    /// Number of the session at the server.
    pub(crate) session: Arc<AtomicU64>,
    /// Identity of this mount at the server, if the client reconnects.
    mount: Option<Identity>,
    /// True if the session may change nothing.
    read_only: bool,
    /// True if the session may only read the memory: the server writes data and times.
    pub(crate) confined: bool,
    /// Limit of a wait for another client.
    pub(crate) wait_limit: Duration,
}

impl Client {
    /// Creates the client of an attached session.
    pub(crate) fn new(attachment: Attachment) -> Client {
        let Attachment { remote, clock, session, mount, arena, table_len, sums, .. } = attachment;
        let Attachment { read_only, confined, exclusive, caches, wait_limit, .. } = attachment;
        let Attachment { access_times, directory_access_times, .. } = attachment;
        let inodes = Arc::<InodeTable>::default();
        // The root directory is referenced without a lookup.
        inodes.acquire(ROOT_INO);
        let cache = Arc::new(Cache::new(caches));
        let caching = Arc::new(CacheRules { inodes: Arc::clone(&inodes), cache });
        let calls = Arc::new(Calls { remote: Arc::clone(&remote), caching: Arc::clone(&caching) });
        let table = Records::new(Arc::clone(&remote), table_len);
        let records = Arc::new(RecordReader::new(&calls, table));
        let layouts = Arc::new(Layouts::new(&calls, &records, arena));
        let times = FileTimes { records: Arc::clone(&records), clock, access_times, confined };
        let times = Arc::new(times);
        let directories = Arc::new(Directories::new(&calls));
        let attributes = Arc::new(Attributes::new(&layouts));
        let rules = (access_times, directory_access_times);
        let access_times = Arc::new(AccessReports::new(&calls, &attributes, clock, rules));
        let files = Arc::new(OpenFiles::new(&layouts, &times, &attributes, &access_times));
        Client {
            lookups: Lookups::new(&calls, &directories),
            names: Names::new(&calls),
            xattrs: Xattrs::new(&calls, &attributes),
            locks: Locks::new(&calls, &files, exclusive),
            export: Export { calls: Arc::clone(&calls) },
            directories,
            attributes,
            access_times,
            files,
            recalls: Recalls::new(&calls, &layouts),
            pages: PageHolds::new(&calls),
            caching,
            calls,
            records,
            layouts,
            times,
            arena_map: Mapped::of(&*remote, arena),
            sums,
            remote,
            inodes,
            transfers: Transfers::default(),
            session: Arc::new(AtomicU64::new(session)),
            mount,
            read_only,
            confined,
            wait_limit,
        }
    }

    /// Returns true if the caller has a reference to the inode.
    pub fn knows(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some()
    }

    /// Returns false once the session has ended. Every operation fails then.
    pub fn is_connected(&self) -> bool {
        self.calls.is_connected()
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
