//! The metadata as a transaction sees it.
//!
//! [`View`] keeps the parts of the metadata consistent. The records in the table follow the inodes,
//! and the space of files that shrink or go returns to the arena.
//!
//! # Concurrency
//! Belongs to one thread, which has locked the shards of the transaction's inodes. Under these
//! locks it zeroes little: the ends of blocks, and space that a file keeps beyond its size. Other
//! space stays dirty for [`Space::tidy`], which runs after the locks are released.

use rfs_proto::{Attr, Errno, FileKind, Reply, record};
use seeded_faults::seeded;
use smallvec::SmallVec;

use super::{
    changes,
    freed_space::{FreedSpace, Ranges},
    locked_inodes::{LockedInodes, Stop},
};
use crate::{
    coherence::{cache_holders::Part, orphans::Release, recall_queue::Need},
    dispatch::state::{
        journal::{Journal, LoggedReply, Number},
        lock_order::Guard,
        pending::{Due, Pending},
        quota::Quota,
        shards::{Mode, Reading, Writing},
        store::Store,
    },
    locks::Locks,
    memory_object::log::Full,
    metadata::{
        attr_table::{ClientFields, Table},
        namespace::{
            Namespace,
            inode::{Body, Inode},
            inodes::Inodes,
            names::{Effects, Place},
        },
    },
    session::{kept_reply::short, open_files::OpenFiles, registry::Session},
    space::{account::Space, file_extents::FileMap, quarantine::UNLOGGED},
};

/// The metadata, with the inodes that a transaction has locked.
pub(crate) struct View<'a, M: Mode> {
    pub(in crate::dispatch) namespace: Namespace<LockedInodes<'a, M>>,
    pub(in crate::dispatch) table: &'a Table,
    pub(in crate::dispatch) space: &'a Space,
    pub(in crate::dispatch) xattrs: &'a Quota,
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) pending: &'a Pending,
    /// The session whose request this is, if it is a request.
    pub(in crate::dispatch) asker: Option<&'a Session>,
    /// False if no request waits for the recalls of this transaction.
    pub(in crate::dispatch) is_awaited: bool,
    /// Recalls that the request waits for: its own, and earlier ones that concern the change.
    pub(in crate::dispatch) needs: Vec<Need>,
    /// Sessions with queued messages that the request does not wait for.
    pub(in crate::dispatch) notified: SmallVec<[u64; 1]>,
    /// The inode that lost its last name in this transaction, if the asker may still use it.
    pub(in crate::dispatch) unlinked: Option<u64>,
    /// Replies that became due in this transaction.
    pub(in crate::dispatch) due: Due,
    /// Space and slots that this transaction gives up.
    pub(in crate::dispatch) freed: FreedSpace,
    /// The file whose size this transaction changed. Its record stays open until the change is
    /// logged, so that the next server completes a truncation.
    pub(in crate::dispatch) unpublished: Option<u64>,
    /// Sizes and times that clients had written for files that this transaction cut or removed.
    /// Empty without a snapshot.
    pub(in crate::dispatch) lost: SmallVec<[ClientFields; 1]>,
    /// The reply to log with the changes.
    pub(in crate::dispatch) logged_reply: Option<LoggedReply<'a>>,
}

/// Messages of a transaction to other sessions.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct Messages {
    /// Recalls that a request waits for.
    pub(in crate::dispatch) needs: Vec<Need>,
    /// Sessions with queued messages that no request waits for.
    pub(in crate::dispatch) notified: SmallVec<[u64; 1]>,
}

impl Messages {
    pub(in crate::dispatch) fn is_empty(&self) -> bool {
        self.needs.is_empty() && self.notified.is_empty()
    }
}

/// The metadata under shared locks.
pub(crate) type ReadView<'a> = View<'a, Reading>;

/// The metadata under exclusive locks.
pub(crate) type WriteView<'a> = View<'a, Writing>;

/// How a transaction ends.
pub(crate) trait Commit: Mode + Sized {
    /// Completes a transaction, which still holds its shards.
    fn settle(view: &mut View<'_, Self>);
}

impl Commit for Reading {
    #[inline]
    fn settle(_: &mut View<'_, Reading>) {}
}

impl Commit for Writing {
    #[inline]
    fn settle(view: &mut View<'_, Writing>) {
        view.commit();
    }
}

impl<M: Mode> View<'_, M> {
    /// Locks an inode. A transaction locks all inodes before it changes the first.
    pub(in crate::dispatch) fn need(&mut self, ino: u64) -> Result<(), Stop> {
        self.namespace.need(ino)
    }

    /// Releases the locks, and returns the messages and replies to send.
    pub(in crate::dispatch) fn into_outcome(self) -> (Messages, Due) {
        (Messages { needs: self.needs, notified: self.notified }, self.due)
    }

    /// Returns the open files of the inode's shard.
    pub(in crate::dispatch) fn open_files(&self, ino: u64) -> &OpenFiles {
        &self.namespace.inodes().shard(ino).open_files
    }

    /// Locks the file locks. The holder asks for no further inode.
    pub(in crate::dispatch) fn locks(&self) -> Guard<'_, Locks> {
        self.store.locks()
    }

    /// Returns the attributes, with the values that clients wrote to the record.
    pub(in crate::dispatch) fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let mut attr = self.namespace.get(ino)?.attr(ino);
        if attr.kind == FileKind::Regular {
            attr.size = self.table.size(attr.slot);
            attr.blocks = self.namespace.get(ino)?.space().visible(attr.size);
        }
        (attr.mtime, attr.ctime) =
            record::effective_times(attr.mtime, attr.ctime, self.table.write_time(attr.slot));
        Ok(attr)
    }

    /// Returns the extents of a regular file. EISDIR for directories, EINVAL for other kinds.
    pub(in crate::dispatch) fn file(&self, ino: u64) -> Result<&FileMap, Errno> {
        match &self.namespace.get(ino)?.body {
            Body::File(map) => Ok(map),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl WriteView<'_> {
    /// Returns the open files of the inode's shard, to change.
    pub(in crate::dispatch) fn open_files_mut(&mut self, ino: u64) -> &mut OpenFiles {
        &mut self.namespace.inodes_mut().shard_mut(ino).open_files
    }

    /// Notes for the log that a session's open files of an inode have changed. Only sessions that
    /// reconnect are logged.
    pub(in crate::dispatch) fn opens_changed(&mut self, session: u64, ino: u64) {
        if self.asker.is_some_and(|asker| asker.id() == session && asker.reconnects()) {
            self.namespace.inodes_mut().opens_changed(session, ino);
        }
    }

    /// Returns the journal and the asker, if the journal records the asker's open files.
    pub(in crate::dispatch) fn asker_in_log(&self) -> Option<(&Journal, &Session)> {
        Some((self.store.journal.as_ref()?, self.asker.filter(|asker| asker.reconnects())?))
    }

    /// Sets the reply to log with the changes, if the request is carried out exactly once.
    pub(in crate::dispatch) fn set_reply(&mut self, number: Option<Number>, reply: &Reply) {
        if let (Some(asker), Some(number)) = (self.asker, number) {
            self.logged_reply = Some(LoggedReply::new(asker, number, &short(reply)));
        }
    }

    /// Logs the changes, and then releases the space and slots that the transaction gives up.
    #[inline]
    pub(in crate::dispatch) fn commit(&mut self) {
        if self.log_changes().is_some_and(|logged| logged.is_err()) {
            // Not logged: the space stays in quarantine and the slots stay taken until the next
            // start. When the log is rewritten, it records the space as quarantined and the slots
            // as free.
            self.freed.slots.clear();
            self.freed.space.iter_mut().for_each(|given| given.holders.push(UNLOGGED));
        }
        if !self.lost.is_empty() {
            self.store.change_log.record_losses(&self.lost);
        }
        if let Some(ino) = self.unpublished.take() {
            self.publish(ino);
        }
        for Ranges { of, ranges, holders } in std::mem::take(&mut self.freed.space) {
            self.space.quarantine(of, &ranges, &holders);
            self.recall_layout(of, &holders);
        }
        for slot in self.freed.slots.drain(..) {
            self.table.release(slot);
        }
    }

    /// Encodes the changes and the reply, and appends them to the change log of a snapshot and to
    /// the journal.
    #[inline]
    fn log_changes(&mut self) -> Option<Result<(), Full>> {
        let (journal, log) = (self.store.journal.as_ref(), self.store.change_log.recording());
        if journal.is_none() && log.is_none() {
            return None;
        }
        let lost = &mut self.lost;
        let (freed, logged_reply) = (&self.freed, self.logged_reply.take().filter(|_| journal.is_some()));
        changes::encode(&mut self.namespace, logged_reply.is_some(), |inodes, changes, ops| {
            if let Some(log) = log.filter(|_| !ops.is_empty()) {
                let inode = |&ino: &u64| Some((ino, inodes.get(ino).ok()?));
                if log.record(ops, changes.inodes.iter().filter_map(inode), self.table) {
                    // The change is part of the snapshot, so the old values are not needed.
                    lost.clear();
                }
            }
            journal.map_or(Ok(()), |journal| changes::log(journal, inodes, changes, freed, logged_reply, ops))
        })
    }

    /// Publishes the server's fields of an inode's record. Does nothing for an inode that is gone.
    pub(in crate::dispatch) fn publish(&self, ino: u64) {
        if let Ok(inode) = self.namespace.get(ino) {
            self.table.publish(&inode.record_attr(ino), &inode.space());
        }
    }

    /// Publishes the whole record of a new inode.
    pub(in crate::dispatch) fn publish_new(&self, ino: u64) {
        if let Ok(inode) = self.namespace.get(ino) {
            self.table.publish_all(&inode.record_attr(ino), &inode.space());
        }
    }

    /// Completes an operation on names: publishes the changed records, recalls the changes from
    /// other sessions, and frees an inode without names that no session uses.
    pub(in crate::dispatch) fn settle(&mut self, session: u64, effects: &Effects, names: &[Place<'_>]) {
        for &name in names {
            self.name_changed(session, name);
        }
        for &ino in &effects.moved {
            self.name_changed(session, Place { parent: ino, name: b".." });
        }
        for &ino in &effects.touched {
            self.publish(ino);
            self.attr_changed(session, ino);
        }
        self.track_names(effects, names);
        if let Some(ino) = effects.orphaned {
            let open = self.open_files(ino).is_open(ino) && !seeded!(UnlinkedFreed);
            let idle_bytes = if open { None } else { Some(self.file(ino).map_or(0, FileMap::bytes)) };
            let held = self.orphaned(session, ino, idle_bytes) && !seeded!(UnlinkedFreed);
            match (idle_bytes, held) {
                (None, _) => {}
                (Some(bytes), true) => self.store.idle.add(bytes),
                (Some(_), false) => self.remove(session, ino),
            }
        }
    }

    /// Marks an unlinked inode as idle: it is not open, and stays for the sessions that may use it.
    /// Its space counts as free.
    fn rest(&mut self, ino: u64) {
        let bytes = self.file(ino).map_or(0, FileMap::bytes);
        if self.namespace.inodes_mut().shard_mut(ino).orphans.rest(ino, bytes) {
            self.store.idle.add(bytes);
        }
    }

    /// Marks an unlinked inode as not idle, because a session opens it again.
    pub(in crate::dispatch) fn wake(&mut self, ino: u64) {
        if self.namespace.inodes().shard(ino).orphans.is_empty() {
            return;
        }
        if let Some(bytes) = self.namespace.inodes_mut().shard_mut(ino).orphans.wake(ino) {
            self.store.idle.remove(bytes);
        }
    }

    /// Completes the first name of a file that was made without a name. From now on, sessions that
    /// may use the number hear when the file loses its last name.
    pub(in crate::dispatch) fn got_name(&mut self, ino: u64) {
        self.wake(ino);
        let shard = self.namespace.inodes_mut().shard_mut(ino);
        for holder in shard.orphans.take(ino) {
            shard.cache_holders.get_mut().add(holder, ino, Part::Number);
        }
    }

    /// Removes a session from the holders of an unlinked inode.
    pub(in crate::dispatch) fn forget(&mut self, session: u64, ino: u64) {
        let shard = self.namespace.inodes_mut().shard_mut(ino);
        let release = shard.orphans.release(ino, session);
        if let Release::Free(Some(bytes)) = release {
            self.store.idle.remove(bytes);
        }
        match release {
            Release::Unknown => {}
            Release::Free(_) if !shard.open_files.is_open(ino) => self.remove(session, ino),
            Release::Held | Release::Free(_) => shard.cache_holders.get_mut().forget_one(ino, session),
        }
    }

    /// Frees an unlinked inode that has no holders left, unless a session has it open.
    pub(in crate::dispatch) fn orphan_released(&mut self, session: u64, ino: u64) {
        if let Some(bytes) = self.namespace.inodes_mut().shard_mut(ino).orphans.remove(ino) {
            self.store.idle.remove(bytes);
        }
        if !self.open_files(ino).is_open(ino) {
            self.remove(session, ino);
        }
    }

    /// Sets the sessions that may use an unlinked inode of the previous server.
    pub(in crate::dispatch) fn restore_orphan(&mut self, ino: u64, holders: &[u64]) {
        self.namespace.inodes_mut().shard_mut(ino).orphans.add(ino, holders.into(), None);
    }

    /// Returns the extents of a regular file, to change. EISDIR for directories, EINVAL for other
    /// kinds.
    pub(in crate::dispatch) fn file_mut(&mut self, ino: u64) -> Result<&mut FileMap, Errno> {
        match &mut self.namespace.get_mut(ino)?.body {
            Body::File(map) => Ok(map),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Records that a session is about to read or change an inode. Returns how often the inode's
    /// visitor has changed.
    pub(in crate::dispatch) fn visit(&mut self, session: u64, ino: u64) -> Result<u64, Errno> {
        let inode = self.namespace.inodes_mut().unlogged_mut(ino)?;
        if inode.visitor != session {
            inode.visitor = session;
            inode.visits += 1;
        }
        Ok(inode.visits)
    }

    /// Completes the last close of an inode by a session. If no session has the inode open, space
    /// beyond the end of the file is given up, and an inode without names goes.
    pub(in crate::dispatch) fn note_last_close(&mut self, session: u64, ino: u64, last: bool) {
        self.space.note_last_close(ino, session);
        let Ok(inode) = self.namespace.get(ino) else { return };
        if inode.was_locked && !seeded!(LocksOutlive) {
            self.store.change_locks(|locks| locks.closed(session, ino));
        }
        self.table.end_append(inode.slot, session);
        if last && inode.nlink == 0 {
            match self.namespace.inodes().shard(ino).orphans.is_held(ino) {
                true => self.rest(ino),
                false => self.remove(session, ino),
            }
        } else if last {
            let (size, generation) = (self.table.size(inode.slot), inode.layout_generation);
            let keep = self.file(ino).map_or(0, |map| map.kept_to());
            // It was open, so it is a regular file and `cut` cannot fail.
            if self.cut(session, ino, size, keep).is_ok() {
                self.publish(ino);
            }
            if self.namespace.get(ino).is_ok_and(|inode| inode.layout_generation != generation) {
                self.attr_changed(session, ino);
            }
            self.track_last_close(ino);
        }
    }

    /// Removes an inode that no session can reach, because of a request of `session`.
    fn remove(&mut self, session: u64, ino: u64) {
        self.inode_gone(session, ino);
        let Some(inode) = self.namespace.remove_inode(ino) else { return };
        self.xattrs.give_back(inode.xattr_bytes());
        let Inode { slot, body, layout_generation, .. } = inode;
        if let Body::File(mut map) = body {
            self.loses(ino, slot);
            let mut ranges = map.cut(0);
            seeded!(SpaceLeaked => ranges.pop());
            self.freed.space.push(Ranges { of: (ino, layout_generation), ranges, holders: Vec::new() });
        }
        self.freed.slots.push(slot);
    }
}
