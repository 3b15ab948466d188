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
    cache::{Cache, uses::CacheUse},
    error::ClientError,
    inode::{access::AccessTimes, table::InodeTable},
    io::{
        append::{AppendMode, Appends},
        async_io::AsyncIo,
        checksum_read::CheckedReads,
        checksum_write::ServerWrites,
        read::Reads,
        space::Space,
        write::Writes,
        writeback::WriteBack,
    },
    metadata::{
        access_times::AccessReports, attributes::Attributes, export::Export, locks::Locks, lookup::Lookups,
        names::Names, open_files::OpenFiles, privileges::Privileges, readdir::Directories, xattr::Xattrs,
    },
    recalls::{Recalls, pages::PageHolds},
    remote::{
        Mapped, Remote, Status, address::RegionBounds, checksums::Checksums, clock::ServerClock,
        final_loss::FinalLoss, records::Records,
    },
    requests::{
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
    /// Identity of the export's memory.
    pub(crate) memory: Identity,
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

/// One session with one server. Each job has its own struct, and a field here.
///
/// The structs share parts by references, which are cloned once, when the client is made. A struct
/// refers to lower ones only: `metadata` and `io` to `requests`, and `requests` to the session, the
/// inodes and the cache.
#[derive(Debug)]
pub struct Client {
    /// The cache rules of this client and its caller.
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
    /// Rights that files lend, and that changes of their contents end.
    pub privileges: Privileges,
    /// Reads that change access times.
    pub access_times: Arc<AccessReports>,
    /// Files to open, create and close.
    pub files: Arc<OpenFiles>,
    /// Reads that block.
    pub reads: Arc<Reads>,
    /// Writes that block.
    pub writes: Arc<Writes>,
    /// Atomic appends.
    pub appends: Appends,
    /// Small reads and writes that do not block.
    pub async_io: Arc<AsyncIo>,
    /// Data and times that the caller has cached.
    pub write_back: WriteBack,
    /// Allocation, copies, data and holes.
    pub space: Space,
    /// File locks.
    pub locks: Locks,
    /// Queries about the whole export.
    pub export: Export,
    pub(crate) calls: Arc<Calls>,
    pub(crate) records: Arc<RecordReader>,
    /// Number of the session at the server.
    pub(crate) session: Arc<AtomicU64>,
    mount: Option<Identity>,
    /// Reason why no session follows, if the client reconnects.
    pub(crate) final_loss: Option<Arc<FinalLoss>>,
    memory: Identity,
    is_read_only: bool,
    has_checksums: bool,
}

impl Client {
    /// Creates the client of an attached session.
    pub(crate) fn new(attachment: Attachment) -> Client {
        let Attachment { remote, clock, mount, memory, arena, sums, .. } = attachment;
        let Attachment { read_only, confined, exclusive, wait_limit, .. } = attachment;
        let inodes = Arc::<InodeTable>::default();
        // The root directory is referenced without a lookup.
        inodes.acquire(ROOT_INO);
        let caching = Arc::new(CacheRules { inodes, cache: Arc::new(Cache::new(attachment.caches)) });
        let table = Records::new(Arc::clone(&remote), attachment.table_len);
        let arena_map = Mapped::of(&*remote, arena);
        let calls = Arc::new(Calls { remote, caching: Arc::clone(&caching) });
        let records = Arc::new(RecordReader::new(&calls, table));
        let layouts = Arc::new(Layouts::new(&calls, &records, arena));
        let access_times = attachment.access_times;
        let times = FileTimes { records: Arc::clone(&records), clock, access_times, confined };
        let times = Arc::new(times);

        let directories = Arc::new(Directories::new(&calls));
        let attributes = Arc::new(Attributes::new(&layouts));
        let rules = (access_times, attachment.directory_access_times);
        let access_times = Arc::new(AccessReports::new(&calls, &attributes, clock, rules));
        let files = Arc::new(OpenFiles::new(&layouts, &times, &attributes, &access_times));

        let (has_checksums, session) = (sums.is_some(), Arc::new(AtomicU64::new(attachment.session)));
        let server = || Arc::new(ServerWrites::new(&layouts, wait_limit));
        let by_server = (has_checksums || confined).then(server);
        let mode = AppendMode::of(confined, by_server.as_ref());
        let checked = sums.map(|sums| CheckedReads::new(&layouts, sums, arena_map.clone(), wait_limit));
        let transfers = Arc::<Transfers>::default();
        let reads = Arc::new(Reads::new(&layouts, &times, &transfers, arena_map, checked));
        let writes = Arc::new(Writes::new(&layouts, &times, &transfers, by_server));
        Client {
            recalls: Recalls::new(&calls, &layouts),
            pages: PageHolds::new(&calls, &records),
            lookups: Lookups::new(&calls, &directories),
            names: Names::new(&calls),
            xattrs: Xattrs::new(&calls, &attributes),
            privileges: Privileges::new(&calls, &attributes),
            appends: Appends::new(&layouts, &times, &writes, mode, &session, wait_limit),
            async_io: Arc::new(AsyncIo::new(&layouts, &times, &transfers, &reads, &writes)),
            write_back: WriteBack::new(&layouts, &writes, confined),
            space: Space::new(&layouts),
            locks: Locks::new(&calls, &files, exclusive),
            export: Export { calls: Arc::clone(&calls) },
            caching,
            directories,
            attributes,
            access_times,
            files,
            reads,
            writes,
            calls,
            records,
            session,
            mount,
            final_loss: None,
            memory,
            is_read_only: read_only,
            has_checksums,
        }
    }

    /// Returns false once the session has ended. Every operation fails then.
    pub fn is_connected(&self) -> bool {
        self.calls.is_connected()
    }

    /// Blocks until there is a session, if a reconnect is in progress. Callers that answer from a
    /// cache call it first.
    ///
    /// # Errors
    /// Disconnected if there is no session in time.
    pub fn ready(&self) -> Result<(), ClientError> {
        Ok(self.calls.remote.ready()?)
    }

    /// Returns the identity of this mount, if it reconnects. A process with the identity can act as
    /// the mount.
    pub fn mount(&self) -> Option<Identity> {
        self.mount
    }

    /// Returns the identity of the export's memory. Sessions with the same memory share its inodes.
    pub fn memory(&self) -> Identity {
        self.memory
    }

    /// Returns true if the session is read-only for all users: every change fails with EROFS.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns true if the server's memory is mapped here, so that reads and writes wait for no
    /// other process.
    pub fn is_mapped(&self) -> bool {
        self.records.is_mapped()
    }

    /// Describes the transport and the checksums, for users.
    pub fn description(&self) -> String {
        let compares = if self.has_checksums { ", with checksums" } else { "" };
        self.calls.remote.status().transport + compares
    }

    /// Returns the session's counters by name. `started_peak` is the largest number of asynchronous
    /// reads and writes that were under way at once.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.calls.remote.status().counters;
        counters.push(("started_peak", self.async_io.transfers.started_peak() as u64));
        counters
    }

    /// Returns the state of the session, with its counters and latencies. Waits for no request.
    pub fn status(&self) -> Status {
        self.calls.remote.status()
    }

    /// Returns by name how often each cache of this client answered, since the client was made.
    pub fn cache_uses(&self) -> impl Iterator<Item = (&'static str, CacheUse)> {
        self.caching.cache.uses.sums()
    }

    /// Has `hear` run with the reason once no session can follow the lost one: the server came back
    /// without its memory, for example. It runs at once if that is so already.
    pub fn watch_final_loss(&self, hear: impl FnOnce(&str) + Send + 'static) {
        if let Some(loss) = &self.final_loss {
            loss.watch(Box::new(hear));
        }
    }

    /// Returns how often the server has lost the state of this mount.
    pub fn state_losses(&self) -> u64 {
        self.calls.remote.epochs().newest.0.into()
    }

    /// Returns true if a next process can continue the session. For this, the client has to place
    /// appended bytes itself, so that it can tell how far an append came.
    pub fn can_be_continued(&self) -> bool {
        self.mount.is_some() && self.appends.are_one_sided()
    }

    /// Returns true if the export has checksums.
    pub fn has_checksums(&self) -> bool {
        self.has_checksums
    }

    /// Returns the number of referenced inodes.
    pub fn known_inodes(&self) -> usize {
        self.caching.inodes.len()
    }

    /// Ends the session. Operations in flight fail.
    pub fn close_session(&self) {
        self.calls.remote.close();
    }
}
