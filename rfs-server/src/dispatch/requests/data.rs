//! Requests about open files, their space, and attributes.
//!
//! # Concurrency
//! As the dispatcher. An allocation that has to wait for clean space releases its inode, waits,
//! and starts again.

use rfs_proto::{Errno, FileKind, Layout, MAX_FILE_SIZE, Opened, Reply, Request, SetAttr, SetTime};
use seeded_faults::seeded;

use crate::{
    dispatch::{
        state::shards::Mode,
        transaction::{
            call::Call,
            view::{View, WriteView},
        },
    },
    session::log_quota::OPEN_BYTES,
    space::{
        alloc::{Short, Want},
        file_extents::block_up,
    },
};

/// The outcome of one attempt to allocate space.
pub(in crate::dispatch) enum Attempt {
    Done(Layout),
    NotClean,
}

impl Call<'_> {
    pub(in crate::dispatch) fn answer_data(
        &self,
        session: u64,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
        match request {
            Request::Open { ino, write } => self.answered(&[ino], |meta| {
                meta.may_open(ino, write)?;
                meta.open(session, ino, write)
            }),
            Request::Close { ino } => self.answered(&[ino], |meta| meta.close(session, ino)),
            Request::Layout { ino, offset } => {
                self.look(&[ino], |look| look.layout_of_open(session, ino, offset)).map(Reply::Layout)
            }
            Request::Allocate { ino, offset, len } => {
                self.allocate(session, ino, offset, len).map(Reply::Layout)
            }
            Request::SetAttr { ino, changes } => {
                let now = self.clock.now();
                self.answered(&[ino], |meta| {
                    meta.may_set(ino, &changes)?;
                    meta.set_attr(session, ino, &changes, now)
                })
            }
            Request::Accessed { ino, at } => self.locked(&[ino], |meta| {
                meta.may_read(ino)?;
                meta.accessed(ino, at)
            }),
            // Other modules handle the other requests.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn allocate(&self, session: u64, ino: u64, offset: u64, len: u64) -> Result<Layout, Errno> {
        let end = offset.checked_add(len).filter(|&end| end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
        loop {
            match self.locked(&[ino], |meta| meta.try_allocate(session, ino, offset, end, true))? {
                Attempt::Done(layout) => return Ok(layout),
                Attempt::NotClean => self.space.gain_clean(),
            }
        }
    }
}

impl<M: Mode> View<'_, M> {
    fn layout_of_open(&self, session: u64, ino: u64, offset: u64) -> Result<Layout, Errno> {
        if !self.open_files(ino).holds(session, ino) {
            return Err(Errno::EBADF);
        }
        self.layout(ino, offset)
    }

    fn layout(&self, ino: u64, offset: u64) -> Result<Layout, Errno> {
        let (extents, complete) = self.file(ino)?.layout(offset);
        Ok(Layout { generation: self.namespace.get(ino)?.layout_generation, extents, complete })
    }
}

impl WriteView<'_> {
    /// Opens a file. Returns its attributes and layout.
    pub(in crate::dispatch) fn open(&mut self, session: u64, ino: u64, write: bool) -> Result<Reply, Errno> {
        self.file(ino)?;
        if !self.open_files(ino).holds(session, ino) {
            self.may_open_one_more()?;
        }
        self.open_made(session, ino, write)
    }

    /// Checks that the log has room for another open file of the asker. Only open files of sessions
    /// that reconnect are logged.
    pub(in crate::dispatch) fn may_open_one_more(&self) -> Result<(), Errno> {
        match self.asker_in_log() {
            Some((journal, asker)) if !journal.quota.is_due(asker.log_quota(), OPEN_BYTES) => {
                Err(Errno::ENFILE)
            }
            _ => Ok(()),
        }
    }

    /// Opens a file that has just been made, after a check with
    /// [`may_open_one_more`](WriteView::may_open_one_more).
    pub(in crate::dispatch) fn open_made(
        &mut self,
        session: u64,
        ino: u64,
        write: bool,
    ) -> Result<Reply, Errno> {
        // A session may end while its request is in progress. It must not leave an open file
        // behind.
        if !self.asker.is_some_and(|asker| asker.id() == session && asker.is_attached()) {
            return Err(Errno::EPROTO);
        }
        if let (Some((journal, asker)), false) =
            (self.asker_in_log(), self.open_files(ino).holds(session, ino))
        {
            journal.quota.take(asker.log_quota(), OPEN_BYTES);
        }
        self.wake(ino);
        self.open_files_mut(ino).open(session, ino);
        self.opens_changed(session, ino);
        self.track_open(ino);
        if write {
            self.will_write(session, ino);
        }
        self.visit(session, ino)?;
        let mut attr = self.visible_attrs(session, ino)?;
        if write {
            self.mark_shared(session, &mut attr);
        }
        Ok(Reply::Opened(Opened { attr, layout: self.layout(ino, 0)? }))
    }

    fn close(&mut self, session: u64, ino: u64) -> Result<Reply, Errno> {
        let closed = self.open_files_mut(ino).close(session, ino).ok_or(Errno::EBADF)?;
        self.opens_changed(session, ino);
        if let (Some((journal, asker)), true) = (self.asker_in_log(), closed.session_done) {
            journal.quota.give_back(asker.log_quota(), OPEN_BYTES);
        }
        if closed.session_done {
            self.pages_let_go(session, ino);
            self.note_last_close(session, ino, closed.all_done);
        }
        Ok(Reply::Done)
    }

    /// Tries to allocate the space of a range. With `ahead`, the file may get more space behind the
    /// range.
    pub(in crate::dispatch) fn try_allocate(
        &mut self,
        session: u64,
        ino: u64,
        offset: u64,
        end: u64,
        ahead: bool,
    ) -> Result<Attempt, Errno> {
        if !self.open_files(ino).holds(session, ino) {
            return Err(Errno::EBADF);
        }
        self.may_write(ino)?;
        self.will_write(session, ino);
        if end > offset {
            let free = if ahead { self.space.totals().available() } else { 0 };
            let size = self.table.size(self.namespace.get(ino)?.slot);
            let wants = self.file(ino)?.wants(offset, end, size, free);
            let asked: Vec<Want> = wants.iter().map(|&(_, want)| Want { shift: ino, ..want }).collect();
            match self.space.allocate(&asked) {
                Ok(granted) => {
                    let map = self.file_mut(ino)?;
                    // A request for space that exists already must not change the file's visible
                    // blocks.
                    if !wants.is_empty() || !ahead {
                        map.note_need(end);
                    }
                    for ((file, _), ranges) in wants.iter().zip(&granted) {
                        map.insert(*file, ranges);
                    }
                    if !wants.is_empty() {
                        self.publish(ino);
                    }
                }
                Err(Short::Dirty) => return Ok(Attempt::NotClean),
                Err(Short::Full) => return Err(Errno::ENOSPC),
            }
        }
        self.layout(ino, offset).map(Attempt::Done)
    }

    /// Changes attributes. A request sets ctime even if all other attributes stay the same.
    fn set_attr(&mut self, session: u64, ino: u64, changes: &SetAttr, now: i64) -> Result<Reply, Errno> {
        let inode = self.namespace.get(ino)?;
        inode.belongs(changes.only_if)?;
        let (kind, gid) = (inode.kind, inode.gid);
        if let Some(size) = changes.size {
            match kind {
                FileKind::Regular if size > MAX_FILE_SIZE => return Err(Errno::EFBIG),
                FileKind::Regular => {}
                FileKind::Directory => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        if changes.size.is_some() {
            self.visit(session, ino)?;
        }
        if let Some(size) = changes.size
            && let Err(e) = self.set_size(session, ino, size)
        {
            self.publish(ino);
            return Err(e);
        }
        let perm = changes.perm.map(|perm| self.permissions(perm, changes.gid.unwrap_or(gid), kind));
        // With a squash, the server does not rely on the client's kernel for this.
        let drop_privileges = changes.drop_privileges || (changes.size.is_some() && self.is_squashed());
        let inode = self.namespace.get_mut(ino)?;
        // As the kernel's own file systems do. An explicit mode is taken as it is.
        let owner_changes = changes.uid.is_some() || changes.gid.is_some();
        let before = (inode.uid, inode.gid);
        let xattr_bytes = inode.xattr_bytes();
        match perm {
            Some(perm) => inode.set_perm(perm),
            None if drop_privileges || owner_changes => inode.drop_privileges(),
            None => {}
        }
        let xattr_bytes = xattr_bytes - inode.xattr_bytes();
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        inode.atime = changes.atime.map_or(inode.atime, time);
        if changes.perm.is_none() || !seeded!(ChmodKeepsCtime) {
            inode.ctime = changes.ctime.unwrap_or(now);
        }
        if changes.size.is_some() && !seeded!(TruncateKeepsMtime) {
            inode.mtime = now;
        }
        inode.mtime = changes.mtime.map_or(inode.mtime, time);
        let (attr, space) = (inode.record_attr(ino), inode.space());
        let belongs_to_another = (attr.uid, attr.gid) != before;
        self.xattrs.give_back(xattr_bytes);
        if changes.size.is_some() && self.store.journal.is_some() {
            self.table.begin_times(&attr, &space);
            self.unpublished = Some(ino);
        } else if changes.mtime.is_some() || changes.size.is_some() {
            self.table.publish_times(&attr, &space);
        } else {
            self.table.publish(&attr, &space);
        }
        match changes.size {
            Some(_) => self.pages_changed(session, ino),
            None if belongs_to_another => {}
            None => self.attr_changed(session, ino),
        }
        if belongs_to_another {
            self.owner_changed(session, ino);
        }
        self.visible_attrs(session, ino).map(Reply::Attr)
    }

    /// Sets the time of the last access. Recalls nothing: other sessions keep the old time in their
    /// caches.
    fn accessed(&mut self, ino: u64, at: i64) -> Result<Reply, Errno> {
        // Not logged: the next server reads it from the record.
        let inode = self.namespace.inodes_mut().unlogged_mut(ino)?;
        inode.atime = inode.atime.max(at);
        self.publish(ino);
        Ok(Reply::Done)
    }

    /// Sets the size of a file before its space goes: a reader finds the end of the file, its old
    /// bytes, or zeroes. The record stays open until the caller publishes it.
    fn set_size(&mut self, session: u64, ino: u64, size: u64) -> Result<(), Errno> {
        let inode = self.namespace.get(ino)?;
        let (slot, generation) = (inode.slot, inode.layout_generation);
        self.loses(ino, slot);
        let old = self.table.set_size(slot, size);
        seeded!(SizeKept => if size < old { self.table.set_size(slot, old); return Ok(()) });
        let map = self.file(ino)?;
        // A session that has asked for space may be writing there.
        let asked = map.needed_to().max(old);
        let cut_to = match size < old || map.kept_to() > 0 {
            true => Some(size),
            // Space that was given ahead of need becomes a hole; otherwise it would count as data.
            false => (size > asked && map.end() > block_up(asked)).then_some(asked),
        };
        if let Some(Err(errno)) = cut_to.map(|to| self.cut(session, ino, to, 0)) {
            // A store does not answer: the file stays as long as it was.
            self.table.set_size(slot, old);
            return Err(errno);
        }
        if size < old {
            self.size_fell(session, ino, generation)?;
        }
        Ok(())
    }
}
