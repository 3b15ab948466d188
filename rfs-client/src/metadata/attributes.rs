//! Attributes, mostly without a call.
//!
//! # Concurrency
//! Session threads. A change of size takes the inode's `io` exclusively; all other locks are held
//! briefly.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rfs_proto::{Attr, Errno, Marks, Reply, Request, SetAttr};

use crate::{
    cache::{recall_log::RequestTime, uses::CacheKind},
    error::ClientError,
    inode::{Inode, table::InodeTable, visible_attrs::VisibleAttrs},
    remote::Remote,
    requests::{
        cache_rules::CacheRules,
        calls::{Calls, attr_of, wrong_kind},
        layouts::Layouts,
        record_reader::RecordReader,
    },
};

/// Longest time for which attributes wait for the answer to a removal of a name. Another client
/// that does not answer the server can delay a removal by seconds. Afterwards the attributes are
/// right, but the caller may count a link too few until it requests them again.
const DOUBT: Duration = Duration::from_millis(50);

/// Reads and changes attributes, and knows which ones the caller was told.
#[derive(Debug)]
pub struct Attributes {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
}

impl Attributes {
    pub(crate) fn new(layouts: &Arc<Layouts>) -> Attributes {
        let (calls, records) = (&layouts.calls, &layouts.records);
        Attributes {
            remote: Arc::clone(&calls.remote),
            calls: Arc::clone(calls),
            caching: Arc::clone(&calls.caching),
            inodes: Arc::clone(&calls.caching.inodes),
            records: Arc::clone(records),
            layouts: Arc::clone(layouts),
        }
    }

    /// Returns an inode's attributes. Reads them one-sidedly if the inode is referenced, unless a
    /// call is due to make them cacheable.
    pub fn getattr(&self, ino: u64) -> Result<Attr, ClientError> {
        let Some(inode) = self.inodes.get(ino) else {
            return self.calls.call_attr(&Request::GetAttr { ino });
        };
        inode.interest.used();
        let asks = self.caching.is_on() && {
            let attr_caching = &mut inode.caller.lock().attr_caching;
            !attr_caching.is_cacheable() && attr_caching.call_is_due()
        };
        self.of(&inode, asks)
    }

    /// Returns an inode's attributes for the caller, and the time at which they were requested.
    ///
    /// Beside a removal of a name by the caller, the number of links is in doubt. The caller is
    /// going to subtract a link, and the reply may have subtracted it already. The method then
    /// waits for the answer to the removal, and requests the attributes again, for 50 ms at most.
    pub fn getattr_to_tell(&self, ino: u64) -> (RequestTime, Result<Attr, ClientError>) {
        let removals = &self.caching.cache.name_removals;
        let mut deadline = None;
        loop {
            let since = self.caching.since();
            let got = self.getattr(ino);
            // A removal that begins from now on is not counted yet.
            if got.is_err() || !removals.any_unheard(since.answered, ino, Instant::now) {
                return (since, got);
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + DOUBT);
            if Instant::now() >= deadline {
                return (since, got);
            }
            removals.wait_for_answers(ino, deadline);
        }
    }

    /// Returns an inode's time of birth in nanoseconds since 1970. Asks the server once for a
    /// referenced inode. `None` if the server does not know it.
    pub fn birth(&self, ino: u64) -> Result<Option<i64>, ClientError> {
        let inode = self.inodes.get(ino);
        if let Some(known) = inode.as_ref().and_then(|inode| inode.birth.get()) {
            return Ok(*known);
        }
        match self.calls.call(&Request::Birth { ino }) {
            Ok(Reply::Birth(birth)) => {
                if let Some(inode) = inode {
                    // Another thread has set the same.
                    inode.birth.set(birth).ok();
                }
                Ok(birth)
            }
            // The protocol of the session does not have the request. That of the next one may.
            Err(ClientError::Errno(Errno::EOPNOTSUPP)) => Ok(None),
            Ok(_) => wrong_kind(),
            Err(e) => Err(e),
        }
    }

    /// Returns an inode's marks, from the cache if it has them.
    pub(crate) fn marks(&self, ino: u64) -> Result<Marks, ClientError> {
        let known = self.inodes.get(ino).and_then(|inode| inode.caller.lock().attr_caching.certain());
        if self.caching.is_on() {
            self.caching.cache.uses.count(CacheKind::Marks, known.is_some());
        }
        known.map_or_else(|| self.getattr(ino).map(|attr| attr.marks), |(_, marks)| Ok(marks))
    }

    /// Returns a referenced inode's attributes, by a call or one-sidedly.
    pub(crate) fn of(&self, inode: &Inode, asks: bool) -> Result<Attr, ClientError> {
        let ino = inode.ino;
        let start = self.records.before_look();
        let since = self.caching.since();
        let kept = inode.is_cacheable();
        // Reading a mapped record costs less than this shortcut.
        if kept && !asks && !self.records.is_mapped() {
            self.remote.ready()?;
            let known = self.caching.after_own_change(since, inode);
            self.caching.cache.uses.count(CacheKind::Attributes, known.is_some());
            if let Some(attr) = known {
                return Ok(inode.with_pending(attr));
            }
        } else if self.caching.is_on() && !self.records.is_mapped() {
            self.caching.cache.uses.count(CacheKind::Attributes, false);
        }
        let read = match inode.slot() {
            Some(slot) if !asks => self.records.read(ino, slot)?,
            _ => None,
        };
        let attr = match read {
            // The attributes were cacheable before the read. They still are, unless something was
            // recalled meanwhile; the caller checks that.
            Some(seen) if kept => {
                self.caching.hold_recalls().learn(since, inode, &seen.attr);
                Attr { marks: seen.attr.marks | Marks::KEEP, ..seen.attr }
            }
            Some(seen) => seen.attr,
            None => {
                let attr = self.calls.call_attr(&Request::GetAttr { ino })?;
                self.caching.answered(since, inode, &attr);
                attr
            }
        };
        inode.set_slot(attr.slot);
        inode.saw(start, attr.layout_generation, attr.size);
        Ok(inode.with_pending(attr))
    }

    /// Changes attributes. A change of size blocks until reads and writes in flight have ended.
    pub fn setattr(&self, ino: u64, changes: &SetAttr) -> Result<Attr, ClientError> {
        let request = Request::SetAttr { ino, changes: *changes };
        let Some(inode) = self.inodes.get(ino) else {
            return self.calls.call_attr(&request);
        };
        let issued_epoch = self.remote.epochs().in_use;
        if changes.atime.is_some() && inode.caller.lock().last_read.forget() {
            // A report of an older read must not arrive after the time that is set now.
            self.remote.finish_calls()?;
        }
        let since = self.caching.since();
        let attr = if changes.size.is_some() {
            let _exclusive = inode.exclusive();
            // A failed request may have taken effect, or may do so later.
            let start = self.records.before_look();
            let attr = self.calls.call_guarded(&[&inode], issued_epoch, &request).and_then(attr_of);
            let attr = attr.inspect_err(|_| self.layouts.lose_layout(&inode))?;
            inode.file.write().changed(start, attr.layout_generation, attr.size);
            attr
        } else {
            self.calls.call_guarded(&[&inode], issued_epoch, &request).and_then(attr_of)?
        };
        self.caching.answered(since, &inode, &attr);
        if changes.size.is_some() || changes.mtime.is_some() {
            inode.times.lock().reset();
        }
        Ok(inode.with_pending(attr))
    }

    /// Notes that the caller has cached these attributes, which its thread `thread` asked for.
    pub fn told(&self, attr: &Attr, thread: u32) {
        let guard = self.caching.hold_recalls();
        guard.told(guard.now(), attr, thread);
    }

    /// Waits, for 1 ms at most, until the caller has probably heard of its removals of names of an
    /// inode. Call it before the caller is told attributes that it requested at `since`.
    pub fn wait_for_removals(&self, since: RequestTime, attr: &Attr) {
        if let Some(time) = self.caching.cache.name_removals.wait(since.answered, attr.ino, Instant::now) {
            thread::sleep(time);
        }
    }

    /// Notes that `thread` has changed an inode. Returns true if another thread has got its
    /// attributes since the last change.
    pub fn others_were_told(&self, ino: u64, thread: u32) -> bool {
        self.inodes.get(ino).is_some_and(|inode| inode.others_were_told(thread))
    }

    /// Returns the current permission bits and marks of an inode. Makes no request if the record is
    /// mapped, or while the server would recall the attributes.
    pub(crate) fn bits(&self, ino: u64) -> Result<(u32, Marks), ClientError> {
        if let Some(inode) = self.inodes.get(ino) {
            if let Some(read) = self.records.privileges(&inode) {
                return Ok(read);
            }
            let certain = inode.caller.lock().attr_caching.certain().filter(|_| !self.records.is_mapped());
            if self.caching.is_on() {
                self.caching.cache.uses.count(CacheKind::Marks, certain.is_some());
            }
            if let Some(certain) = certain {
                return Ok(certain);
            }
        }
        self.getattr(ino).map(|attr| (attr.perm, attr.marks))
    }

    /// Notes that the caller has dropped the attributes that it was told.
    pub(crate) fn forget_told(&self, ino: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.caller.lock().told = None;
        }
    }

    /// Returns true if these attributes differ from those that the caller was [`told`](Self::told)
    /// last.
    pub fn differs_from_told(&self, attr: &Attr) -> bool {
        let told = self.inodes.get(attr.ino).and_then(|inode| inode.caller.lock().told);
        told != Some(VisibleAttrs::of(attr))
    }
}
