//! Opening and closing of files.
//!
//! The first open of an inode here, and the first one for writing, is an open at the server. It
//! grants the use of the file's layout. Other opens only read the attribute record. The last
//! close here closes the file at the server.
//!
//! # Concurrency
//! Session threads. An open or close holds the inode's `opens` over its calls; the last close
//! also takes `io` exclusively.

use std::sync::{Arc, atomic::Ordering};

use rdmabox::RequestError;
use rfs_proto::{Attr, Errno, Marks, Opened, Reply, Request};

use crate::{
    cache::recall_log::RequestTime,
    error::ClientError,
    inode::{
        Inode, Opens, known_file::AtServer, layout::LayoutCache, size::LookStart, table::InodeTable,
        write_times::WriteTimes,
    },
    metadata::{
        access_times::AccessReports,
        attributes::Attributes,
        names::{Creator, check_name},
    },
    remote::Remote,
    remote::kept_state::{Counter, current},
    requests::{
        TRIES,
        cache_rules::CacheRules,
        calls::{Calls, wrong_kind},
        file_times::FileTimes,
        layouts::Layouts,
        record_reader::RecordReader,
    },
};

/// The time before an open.
#[derive(Clone, Copy, Debug)]
struct OpenStart {
    since: RequestTime,
    look: LookStart,
    /// Count of voided layouts at that time; `None` if the layout in the reply must not be used.
    voids: Option<u64>,
}

/// Opens, creates and closes files.
#[derive(Debug)]
pub struct OpenFiles {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
    times: Arc<FileTimes>,
    attributes: Arc<Attributes>,
    accesses: Arc<AccessReports>,
}

impl OpenFiles {
    pub(crate) fn new(
        layouts: &Arc<Layouts>,
        times: &Arc<FileTimes>,
        attributes: &Arc<Attributes>,
        accesses: &Arc<AccessReports>,
    ) -> OpenFiles {
        let calls = &layouts.calls;
        OpenFiles {
            remote: Arc::clone(&calls.remote),
            calls: Arc::clone(calls),
            caching: Arc::clone(&calls.caching),
            inodes: Arc::clone(&calls.caching.inodes),
            records: Arc::clone(&layouts.records),
            layouts: Arc::clone(layouts),
            times: Arc::clone(times),
            attributes: Arc::clone(attributes),
            accesses: Arc::clone(accesses),
        }
    }

    fn before_open(&self) -> OpenStart {
        OpenStart {
            look: self.records.before_look(),
            voids: Some(self.inodes.void_count()),
            since: self.caching.since(),
        }
    }

    /// Opens a regular file for reading, and with `write` for writing, until
    /// [`close`](Self::close). Returns its current attributes.
    pub fn open(&self, ino: u64, write: bool) -> Result<Attr, ClientError> {
        let inode = self.inodes.acquire(ino);
        let mut opens = inode.opens.lock();
        // If the previous process had opened the file for this request, the server counts that.
        let is_counted = current().is_some_and(|request| request.has_replies());
        let opened = if opens.local == 0 || is_counted || (write && !inode.file.read().at_server.to_write) {
            self.open_there(&inode, &mut opens, write)
        } else {
            self.look_again(&inode)
        };
        match opened {
            Ok(attr) => {
                opens.local += 1;
                inode.note(Counter::Opens, 1);
                Ok(attr)
            }
            Err(e) => {
                drop(opens);
                self.inodes.release(ino, 1);
                Err(e)
            }
        }
    }

    /// Opens the file at the server, and again if a new epoch began meanwhile.
    fn open_there(&self, inode: &Inode, opens: &mut Opens, write: bool) -> Result<Attr, ClientError> {
        let request = Request::Open { ino: inode.ino, write };
        for _ in 0..TRIES {
            let start = self.before_open();
            match self.call_opened(&request) {
                Err(ClientError::Request(RequestError::Disconnected))
                    if self.remote.epochs().newest != start.look.epoch && self.calls.is_connected() => {}
                opened => {
                    let attr = self.adopt(inode, opens, opened?, start, write)?;
                    // A reclaim of a later epoch finds the file open.
                    if self.remote.epochs().newest == start.look.epoch {
                        return Ok(attr);
                    }
                }
            }
        }
        Err(ClientError::Unstable)
    }

    /// Reads the attributes of a file that is open here, and asks for caching if that may be
    /// granted.
    fn look_again(&self, inode: &Inode) -> Result<Attr, ClientError> {
        let asks = self.caching.is_on() && !inode.is_cacheable();
        let attr = self.attributes.of(inode, asks)?;
        // Another client may have truncated and rewritten the file.
        self.layouts.follow_generation(inode, attr.layout_generation)?;
        Ok(attr)
    }

    /// Creates a regular file and opens it. Takes a reference, besides that of the open.
    pub fn create(
        &self,
        parent: u64,
        name: &[u8],
        perm: u32,
        by: Creator,
        exclusive: bool,
    ) -> Result<Attr, ClientError> {
        check_name(name)?;
        let _arrival = self.inodes.arrival();
        let mut start = self.before_open();
        if !exclusive {
            // The file may exist. This client may have forgotten it, and with it a recall of its
            // layout.
            start.voids = None;
        }
        let Creator { uid, gid, umask } = by;
        let opened = self.call_opened(&Request::Create { parent, name, perm, umask, uid, gid, exclusive })?;
        self.open_created(opened, start)
    }

    /// Takes in a file that the server has created and opened, with a reference besides that of the
    /// open.
    fn open_created(&self, opened: Opened, start: OpenStart) -> Result<Attr, ClientError> {
        let ino = opened.attr.ino;
        let inode = self.caching.acquire(&opened.attr);
        if opened.attr.nlink == 0 {
            // The server keeps the file until this client reports that it is forgotten.
            inode.unlinked.store(true, Ordering::Relaxed);
        }
        self.inodes.acquire(ino);
        let mut opens = inode.opens.lock();
        let adopted = match self.adopt(&inode, &mut opens, opened, start, true) {
            Ok(_) if self.remote.epochs().newest != start.look.epoch => {
                self.open_there(&inode, &mut opens, true)
            }
            adopted => adopted,
        };
        match adopted {
            Ok(attr) => {
                opens.local += 1;
                inode.note(Counter::Opens, 1);
                Ok(attr)
            }
            Err(e) => {
                drop(opens);
                self.inodes.release(ino, 2);
                Err(e)
            }
        }
    }

    /// Creates a regular file without a name and opens it. Takes a reference, besides that of the
    /// open. [`Names::link`](super::names::Names::link) gives it a name.
    pub fn create_unnamed(&self, parent: u64, perm: u32, by: Creator) -> Result<Attr, ClientError> {
        let _arrival = self.inodes.arrival();
        let start = self.before_open();
        let Creator { uid, gid, umask } = by;
        let opened = self.call_opened(&Request::Tmpfile { parent, perm, umask, uid, gid })?;
        self.open_created(opened, start)
    }

    /// Returns true if the inode is open here.
    pub fn is_open(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some_and(|inode| inode.open.load(Ordering::Acquire))
    }

    /// Returns true if the inode has been opened here for writing.
    pub fn is_open_to_write(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some_and(|inode| inode.file.read().at_server.to_write)
    }

    /// Returns the inodes that are open here for writing.
    pub fn open_to_write(&self) -> Vec<u64> {
        self.inodes.numbers().into_iter().filter(|&ino| self.is_open_to_write(ino)).collect()
    }

    fn call_opened(&self, request: &Request<'_>) -> Result<Opened, ClientError> {
        match self.calls.call(request)? {
            Reply::Opened(opened) => Ok(opened),
            _ => wrong_kind(),
        }
    }

    /// Takes in the reply to an open at the server.
    fn adopt(
        &self,
        inode: &Inode,
        opens: &mut Opens,
        opened: Opened,
        OpenStart { since, look, voids }: OpenStart,
        write: bool,
    ) -> Result<Attr, ClientError> {
        let Opened { mut attr, layout } = opened;
        let shared = attr.marks.contains(Marks::SHARED);
        attr.marks -= Marks::SHARED;
        if let Err(why) = self.layouts.validate(&layout) {
            // The server counts this open, but the client does not have it.
            self.calls.call_done(&Request::Close { ino: attr.ino }).ok();
            return Err(why);
        }
        inode.set_slot(attr.slot);
        {
            let at_server = &mut inode.file.write().at_server;
            at_server.opens += 1;
            inode.note(Counter::AtServer, 1);
            if write && !at_server.to_write {
                inode.note(Counter::ToWrite, 1);
            }
            at_server.to_write |= write;
        }
        if shared {
            inode.shared.begin(self.inodes.sharing());
        }
        if current().is_some_and(|request| request.is_repeated()) {
            // The layout may be older than a recall that the previous process has obeyed.
            inode.forget_layout();
            inode.open.store(true, Ordering::Release);
            return Ok(inode.with_pending(attr));
        }
        self.caching.answered(since, inode, &attr);
        if opens.local == 0 || inode.layout_epoch() != look.epoch {
            inode.saw(look, attr.layout_generation, attr.size);
            if !voids
                .is_some_and(|voids| self.layouts.take_in(inode, LayoutCache::of(&layout, look.epoch), voids))
            {
                inode.forget_layout();
            }
            inode.open.store(true, Ordering::Release);
        }
        Ok(inode.with_pending(attr))
    }

    /// Publishes the pending time of the last write. Written data is in place before a write
    /// returns.
    pub fn flush(&self, ino: u64) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else { return Ok(()) };
        self.layouts.retry_in_new_epoch(&inode, self.remote.epochs().in_use, || {
            self.times.publish_time(&inode, WriteTimes::take_pending)
        })
    }

    /// Publishes as [`flush`](Self::flush).
    pub fn fsync(&self, ino: u64) -> Result<(), ClientError> {
        self.flush(ino)
    }

    /// Ends one open. The file counts as closed even after an error.
    pub fn close(&self, ino: u64) -> Result<(), ClientError> {
        let inode = self.inodes.get(ino).ok_or(Errno::EBADF)?;
        let mut opens = inode.opens.lock();
        if opens.local == 0 {
            return Err(Errno::EBADF.into());
        }
        let mut outcome = self.times.publish_time(&inode, WriteTimes::take_pending);
        opens.local -= 1;
        inode.note(Counter::Opens, -1);
        if opens.local == 0 {
            // Reads and writes have ended when the server may give the space to another file.
            let _exclusive = inode.exclusive();
            inode.open.store(false, Ordering::Release);
            inode.hold.end(self.inodes.sharing());
            inode.shared.end(self.inodes.sharing());
            inode.file.write().layout.clear(0);
            outcome = outcome.and(self.accesses.tell_access(&inode));
            let AtServer { opens, to_write } = std::mem::take(&mut inode.file.write().at_server);
            inode.note(Counter::AtServer, -i64::from(opens));
            inode.note(Counter::ToWrite, -i64::from(to_write));
            for _ in 0..opens {
                // Only a query of the free space waits for this call.
                outcome = outcome.and(self.calls.start(&Request::Close { ino }));
            }
        }
        drop(opens);
        self.inodes.release(ino, 1);
        outcome
    }
}
