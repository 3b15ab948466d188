//! The cache rules: which state a session may cache, and which recalls a change causes.
//!
//! Each change calls a function of this module before the transaction releases its shards. From
//! then on, other sessions read the new state, and sessions that cache the old state have a
//! recall in their queue.
//!
//! # Concurrency
//! Belongs to a transaction. A transaction that returns state to a session holds the shard
//! shared, and registers the session as a cache holder. A transaction that changes state holds
//! the shard exclusively. So it finds each cache holder of the old state.

use parking_lot::Mutex;
use rfs_proto::{Attr, Errno, Marks, Recall, Reply};
use seeded_faults::seeded;

use super::view::{View, WriteView};
use crate::{
    coherence::{
        cache_holders::{CacheHolders, FinalHolders, Part},
        run_clock,
    },
    dispatch::state::shards::Mode,
    metadata::namespace::names::Place,
};

impl<M: Mode> View<'_, M> {
    /// Returns attributes that a session may not cache. The session's kernel may use the owner in
    /// them all the same, so the session becomes a holder of the owner.
    pub(in crate::dispatch) fn uncached_attrs(&self, session: u64, ino: u64) -> Result<Attr, Errno> {
        let attr = self.attr(ino)?;
        let owner = if self.caches(session) { Some(Part::Owner) } else { None };
        self.add_holder(session, &attr, owner);
        Ok(attr)
    }

    /// Returns attributes that a session may cache if it caches anything.
    pub(in crate::dispatch) fn visible_attrs(&self, session: u64, ino: u64) -> Result<Attr, Errno> {
        let mut attr = self.attr(ino)?;
        self.mark(session, &mut attr);
        Ok(attr)
    }

    /// Lets a session cache attributes, unless another session may be writing to the inode. The
    /// session becomes a holder of the owner in any case, because a kernel uses the last owner that
    /// it got.
    pub(in crate::dispatch) fn mark(&self, session: u64, attr: &mut Attr) {
        let part = match self.caches(session) {
            false => None,
            true if self.open_files(attr.ino).another_writes(session, attr.ino) => Some(Part::Owner),
            true => Some(Part::Attr),
        };
        self.add_holder(session, attr, part);
        if part == Some(Part::Attr) {
            attr.marks |= Marks::KEEP;
            self.cache_pages(session, attr.ino);
        }
    }

    /// Lets a session cache pages of an inode, if it caches anything and has the inode open.
    pub(in crate::dispatch) fn cache_pages(&self, session: u64, ino: u64) {
        if self.caches(session) && self.open_files(ino).holds(session, ino) {
            self.holders_of_parts(ino).lock().add(session, ino, Part::Pages);
        }
    }

    /// Returns the current attributes if the session caches them. Does not add a cache holder.
    pub(in crate::dispatch) fn cached_attrs(&self, session: u64, ino: u64) -> Option<Attr> {
        let keeps = self.caches(session)
            && self.namespace.inodes().shard(ino).cache_holders.lock().keeps(session, ino, Part::Attr);
        let mut attr = if keeps { self.attr(ino).ok()? } else { return None };
        attr.marks |= Marks::KEEP;
        Some(attr)
    }

    /// Lets a session cache the names of a directory, after a lookup in it that found a name or
    /// none.
    pub(in crate::dispatch) fn cache_names(&self, session: u64, parent: u64) {
        if self.caches(session) && self.namespace.directory(parent).is_ok() {
            self.holders_of_parts(parent).lock().add(session, parent, Part::Names);
        }
    }

    /// Returns whether a session caches the state that it reads. The session may have ended since
    /// its request came. The answer is valid under the shard's lock until the thread that ends the
    /// session has cleaned that shard.
    fn caches(&self, session: u64) -> bool {
        self.asker.is_some_and(|asker| asker.id() == session && asker.may_cache())
    }

    /// Registers a session as a holder of `part` of an inode. It also becomes a holder of the
    /// number if the inode has a name and the session receives recalls.
    fn add_holder(&self, session: u64, attr: &Attr, part: Option<Part>) {
        let holds =
            attr.nlink > 0 && self.asker.is_some_and(|asker| asker.id() == session && asker.holds_numbers());
        let number = if holds { Some(Part::Number) } else { None };
        if part.is_none() && number.is_none() {
            return;
        }
        let mut holders = self.holders_of_parts(attr.ino).lock();
        holders.add_all(session, attr.ino, part.into_iter().chain(number));
    }

    fn holders_of_parts(&self, ino: u64) -> &Mutex<CacheHolders> {
        &self.namespace.inodes().shard(ino).cache_holders
    }
}

impl WriteView<'_> {
    fn cache_holders(&mut self, ino: u64) -> &mut CacheHolders {
        self.namespace.inodes_mut().shard_mut(ino).cache_holders.get_mut()
    }

    /// Prepares a write: `session` opens an inode to write, or is about to change its bytes in
    /// another way. Recalls attributes and pages from other sessions.
    pub(in crate::dispatch) fn will_write(&mut self, session: u64, ino: u64) {
        if self.open_files_mut(ino).will_write(session, ino) {
            self.opens_changed(session, ino);
            self.pages_changed(session, ino);
            self.note_dropped_pages(ino);
        }
    }

    /// Lets a session cache pages of an inode that others may have open for writing. The record
    /// tells them before the session reads any page.
    pub(in crate::dispatch) fn hold_pages(&mut self, session: u64, ino: u64) {
        self.cache_pages(session, ino);
        self.note_pages(ino, true);
    }

    /// Notes whether sessions may cache pages of an inode after recalls. A session that has not
    /// acknowledged its recall still may: the next `DropPages` finds out.
    fn note_dropped_pages(&mut self, ino: u64) {
        let may_hold = !self.needs.is_empty() || self.cache_holders(ino).has_any(ino, Part::Pages);
        self.note_pages(ino, may_hold);
    }

    fn note_pages(&mut self, ino: u64, held: bool) {
        let inode = self.namespace.inodes_mut().unlogged_mut(ino);
        if inode.is_ok_and(|inode| std::mem::replace(&mut inode.pages_held, held) != held) {
            self.publish(ino);
        }
    }

    /// Recalls a name that `session` has changed.
    pub(in crate::dispatch) fn name_changed(&mut self, session: u64, Place { parent, name }: Place<'_>) {
        for holder in self.cache_holders(parent).name_changed(parent, session) {
            self.recall(holder, Recall::Name { parent, name: name.to_vec() });
        }
        self.await_open(session, |recall| recall.concerns_name(parent, name));
    }

    /// Recalls all names of a directory from `session`, which has stopped using the directory.
    /// Later changes are not recalled from it.
    pub(in crate::dispatch) fn names_returned(&mut self, session: u64, ino: u64) {
        if self.cache_holders(ino).take_from(session, ino, Part::Names) {
            self.recall(session, Recall::Names { ino });
        }
    }

    /// Recalls the attributes of an inode whose attributes or extended attributes `session` has
    /// changed.
    pub(in crate::dispatch) fn attr_changed(&mut self, session: u64, ino: u64) {
        for holder in self.cache_holders(ino).take(ino, Part::Attr, session) {
            self.recall(holder, Recall::Attr { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// Recalls the owner of an inode, which `session` has changed.
    pub(in crate::dispatch) fn owner_changed(&mut self, session: u64, ino: u64) {
        for holder in self.cache_holders(ino).take(ino, Part::Owner, session) {
            self.recall(holder, Recall::Owner { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// Recalls the attributes and pages of an inode whose bytes `session` has changed or is about
    /// to change.
    pub(in crate::dispatch) fn pages_changed(&mut self, session: u64, ino: u64) {
        for holder in self.cache_holders(ino).take_contents(ino, session) {
            self.recall(holder, Recall::Pages { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// Makes other sessions drop their pages of an inode, which `session` has written to. The
    /// attributes say whether others have the inode open.
    ///
    /// # Errors
    /// EBADF if the session does not have the inode open to write.
    pub(in crate::dispatch) fn drop_pages(&mut self, session: u64, ino: u64) -> Result<Attr, Errno> {
        if !self.open_files(ino).of(session, ino).1 {
            return Err(Errno::EBADF);
        }
        self.pages_written(session, ino);
        self.note_dropped_pages(ino);
        let mut attr = self.uncached_attrs(session, ino)?;
        self.mark_shared(session, &mut attr);
        Ok(attr)
    }

    /// Marks the attributes of an inode that other sessions have open, too.
    pub(in crate::dispatch) fn mark_shared(&self, session: u64, attr: &mut Attr) {
        if self.open_files(attr.ino).another_has(session, attr.ino) {
            attr.marks |= Marks::SHARED;
        }
    }

    /// Makes other sessions drop their pages of an inode that `session` has open and has changed.
    /// The session also waits for drops that an earlier change has caused.
    pub(in crate::dispatch) fn pages_written(&mut self, session: u64, ino: u64) {
        for holder in self.cache_holders(ino).take(ino, Part::Pages, session) {
            self.recall(holder, Recall::Written { ino });
        }
        self.await_open(session, |recall| recall.concerns_pages(ino));
    }

    /// Removes a session that has closed an inode from the holders of its pages. Its pages stay
    /// valid until the attributes are recalled.
    pub(in crate::dispatch) fn pages_let_go(&mut self, session: u64, ino: u64) {
        self.cache_holders(ino).take_from(session, ino, Part::Pages);
    }

    /// Recalls everything of an inode that is gone because of a request of `session`.
    pub(in crate::dispatch) fn inode_gone(&mut self, session: u64, ino: u64) {
        let last = self.cache_holders(ino).gone(ino, session);
        for holder in last.names {
            self.recall(holder, Recall::Names { ino });
        }
        for holder in last.attrs {
            self.recall(holder, Recall::Attr { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// Makes an orphan of an inode that has lost its last name by a request of `session`.
    ///
    /// The inode stays for the sessions that know its number. They receive a recall; `session` gets
    /// it with the reply. `idle_bytes` is the space of the inode, if no session has it open.
    /// Returns true if the inode stays for any session.
    pub(in crate::dispatch) fn orphaned(&mut self, session: u64, ino: u64, idle_bytes: Option<u64>) -> bool {
        let FinalHolders { names, numbers: mut holders, .. } = self.cache_holders(ino).unnamed(ino, session);
        // A directory without a name has no entries, and never gets one again.
        for holder in names {
            self.recall(holder, Recall::Names { ino });
        }
        let previous = self.store.previous_sessions.holders_of(ino);
        holders.extend(previous.into_iter().filter(|session| !holders.contains(session)).collect::<Vec<_>>());
        seeded!(OrphanFreed => holders.clear());
        holders.retain(|holder| *holder == session || self.tell_unlinked(*holder, ino));
        self.unlinked = holders.contains(&session).then_some(ino);
        let is_held = !holders.is_empty();
        self.namespace.inodes_mut().shard_mut(ino).orphans.add(ino, holders, idle_bytes);
        is_held
    }

    /// Queues a recall that an inode is unlinked. Returns false if the session has ended or takes
    /// no recalls. A session of the previous server that has not asked for recalls gets it when it
    /// does.
    fn tell_unlinked(&mut self, holder: u64, ino: u64) -> bool {
        let recall = Recall::Unlinked { ino };
        let previous = &self.store.previous_sessions;
        let queued = self.pending.locked(|state| match previous.has_not_asked(holder) {
            true => None,
            false => Some(state.recalls.push(holder, recall, run_clock::now()).is_some()),
        });
        if queued == Some(true) {
            self.notified.push(holder);
        }
        queued != Some(false)
    }

    /// Returns the reply to a request that has removed or replaced a name.
    pub(in crate::dispatch) fn removed(&self) -> Reply {
        self.unlinked.map_or(Reply::Done, Reply::Unlinked)
    }

    /// Asks sessions to release the locks of an inode whose files are closed.
    ///
    /// A session without a connection is not asked: it keeps its locks until its mount reconnects
    /// or its lease ends.
    pub(in crate::dispatch) fn confirm_locks(&mut self, ino: u64, holders: &[u64]) {
        for &holder in holders {
            if self.pending.locked(|state| state.recalls.is_connected(holder)) {
                self.recall(holder, Recall::Locks { ino });
            }
        }
    }

    /// Recalls layouts before `generation` from sessions that can reach space that the inode has
    /// given up. The space stays in quarantine until they acknowledge.
    pub(in crate::dispatch) fn recall_layout(&mut self, (ino, generation): (u64, u64), holders: &[u64]) {
        for &holder in holders {
            self.recall(holder, Recall::Layout { ino, generation });
        }
    }

    fn recall(&mut self, holder: u64, recall: Recall) {
        let unsaid = match recall {
            Recall::Name { .. } | Recall::Names { .. } => seeded!(NameNotRecalled),
            Recall::Attr { .. } | Recall::Pages { .. } => seeded!(AttrNotRecalled),
            Recall::Written { .. } => seeded!(WriteNotRecalled),
            Recall::Owner { .. } => seeded!(OwnerNotRecalled),
            Recall::Layout { .. } => seeded!(LayoutNotRecalled),
            // A server that starts recalls everything.
            Recall::All | Recall::Locks { .. } | Recall::Unlinked { .. } => false,
        };
        if unsaid {
            return;
        }
        let is_awaited = self.is_awaited;
        let need = self.pending.locked(|state| match is_awaited {
            true => state.recalls.push(holder, recall, run_clock::now()),
            false => state.recalls.push_unawaited(holder, recall),
        });
        match need {
            Some(need) if is_awaited => self.needs.push(need),
            Some(_) => self.notified.push(holder),
            None => {}
        }
    }

    /// Makes `session` wait for earlier recalls that concern its change. A session that has not
    /// acknowledged such a recall may still use the old state, although it is no holder any more.
    /// A session of the previous server that is still away hears of everything when it is back.
    fn await_open(&mut self, session: u64, concerns: impl Fn(&Recall) -> bool) {
        seeded!(OthersRecallNotAwaited => return);
        if !self.is_awaited {
            return;
        }
        self.needs.extend(self.pending.open(session, concerns));
    }
}
