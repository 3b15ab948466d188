//! What sessions may keep, and what is recalled from them: the rules.
//!
//! Every change comes past here after it has been made and before its shards are given up, so that whoever asks from then on is told
//! the new state, and whoever was told the old one is in the queue of a recall.
//!
//! Threading: belongs to a step, which has the shards of what is changed or told. Whoever tells has it to read, whoever changes has it
//! to himself; so that who becomes a keeper while the old state is told is found when it changes.

use parking_lot::Mutex;
use rfs_proto::{Attr, Errno, Marks, Recall, Reply};
use seeded_faults::{Fault, seeded};

use super::{
    meta::{Meta, View},
    shards::Mode,
};
use crate::{
    awake,
    keepers::{Keepers, Last, Part},
    namespace::Place,
};

impl<M: Mode> View<'_, M> {
    /// Attributes for a session to see, not to keep. Whom the inode belongs to it may show a kernel all the same.
    pub(super) fn shown(&self, session: u64, ino: u64) -> Result<Attr, Errno> {
        let attr = self.attr(ino)?;
        let owner = if self.keeps(session) { Some(Part::Owner) } else { None };
        self.add_keeper(session, &attr, owner);
        Ok(attr)
    }

    /// Attributes for a session to keep, if it may.
    pub(super) fn told(&self, session: u64, ino: u64) -> Result<Attr, Errno> {
        let mut attr = self.attr(ino)?;
        self.mark(session, &mut attr);
        Ok(attr)
    }

    /// Lets a session keep attributes, if it keeps any and nobody else may be writing to the inode. Whom it belongs to it keeps in any
    /// case: a kernel goes by what it was told last.
    pub(super) fn mark(&self, session: u64, attr: &mut Attr) {
        let part = match self.keeps(session) {
            false => None,
            true if self.leases(attr.ino).another_writes(session, attr.ino) => Some(Part::Owner),
            true => Some(Part::Attr),
        };
        self.add_keeper(session, attr, part);
        if part == Some(Part::Attr) {
            attr.marks |= Marks::KEEP;
            self.pages_held(session, attr.ino);
        }
    }

    /// A session may keep pages of an inode, if it keeps anything and has the inode open.
    pub(super) fn pages_held(&self, session: u64, ino: u64) {
        if self.keeps(session) && self.leases(ino).holds(session, ino) {
            self.keepers_of(ino).lock().add(session, ino, Part::Pages);
        }
    }

    /// Attributes that a session keeps, as they are now; `None` if it keeps none. It becomes no keeper by that.
    pub(super) fn kept(&self, session: u64, ino: u64) -> Option<Attr> {
        let keeps = self.keeps(session)
            && self.namespace.inodes().shard(ino).keepers.lock().keeps(session, ino, Part::Attr);
        let mut attr = if keeps { self.attr(ino).ok()? } else { return None };
        attr.marks |= Marks::KEEP;
        Some(attr)
    }

    /// A session was told of a name of a directory, or that there is none.
    pub(super) fn told_name(&self, session: u64, parent: u64) {
        if self.keeps(session) && self.namespace.directory(parent).is_ok() {
            self.keepers_of(parent).lock().add(session, parent, Part::Names);
        }
    }

    /// Whether a session keeps what it is told now. It may have ended since its request came: what this says under the lock of a shard
    /// holds until whoever ends the session has come past that shard.
    fn keeps(&self, session: u64) -> bool {
        self.asker.is_some_and(|asker| asker.id() == session && asker.keeps())
    }

    /// A session is told of an inode, and keeps `part` of it. It may use the number of an inode
    /// that has a name, as [`keeps`](Self::keeps) says when.
    fn add_keeper(&self, session: u64, attr: &Attr, part: Option<Part>) {
        let holds =
            attr.nlink > 0 && self.asker.is_some_and(|asker| asker.id() == session && asker.holds_numbers());
        let number = if holds { Some(Part::Number) } else { None };
        if part.is_none() && number.is_none() {
            return;
        }
        let mut keepers = self.keepers_of(attr.ino).lock();
        keepers.add_all(session, attr.ino, part.into_iter().chain(number));
    }

    fn keepers_of(&self, ino: u64) -> &Mutex<Keepers> {
        &self.namespace.inodes().shard(ino).keepers
    }
}

impl Meta<'_> {
    fn keepers(&mut self, ino: u64) -> &mut Keepers {
        self.namespace.inodes_mut().shard_mut(ino).keepers.get_mut()
    }

    /// `session` opens an inode once, or is about to change its bytes in another way: others do not keep them any more.
    pub(super) fn will_write(&mut self, session: u64, ino: u64) {
        if self.leases_mut(ino).will_write(session, ino) {
            self.opens_changed(session, ino);
            self.pages_changed(session, ino);
        }
    }

    /// `session` changed what a name stands for.
    pub(super) fn name_changed(&mut self, session: u64, Place { parent, name }: Place<'_>) {
        for keeper in self.keepers(parent).name_changed(parent, session) {
            self.recall(keeper, Recall::Name { parent, name: name.to_vec() });
        }
        self.await_open(session, |recall| recall.concerns_name(parent, name));
    }

    /// `session` does not use a directory any more: all names of it are recalled from the session, and later changes are not.
    pub(super) fn names_returned(&mut self, session: u64, ino: u64) {
        if self.keepers(ino).take_from(session, ino, Part::Names) {
            self.recall(session, Recall::Names { ino });
        }
    }

    /// `session` changed an inode's attributes or extended attributes.
    pub(super) fn attr_changed(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers(ino).take(ino, Part::Attr, session) {
            self.recall(keeper, Recall::Attr { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// `session` changed whom an inode belongs to.
    pub(super) fn owner_changed(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers(ino).take(ino, Part::Owner, session) {
            self.recall(keeper, Recall::Owner { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// `session` changed an inode's bytes, or will.
    pub(super) fn pages_changed(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers(ino).take_contents(ino, session) {
            self.recall(keeper, Recall::Pages { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// Has other sessions drop their pages of an inode for `session`, which has written to it.
    /// Tells whether others have it open.
    ///
    /// # Errors
    /// EBADF if the session does not have the inode open to write.
    pub(super) fn drop_pages(&mut self, session: u64, ino: u64) -> Result<Attr, Errno> {
        if !self.leases(ino).of(session, ino).1 {
            return Err(Errno::EBADF);
        }
        self.pages_written(session, ino);
        let mut attr = self.shown(session, ino)?;
        self.mark_shared(session, &mut attr);
        Ok(attr)
    }

    /// Marks the attributes of an inode that others have open, too.
    pub(super) fn mark_shared(&self, session: u64, attr: &mut Attr) {
        if self.leases(attr.ino).another_has(session, attr.ino) {
            attr.marks |= Marks::SHARED;
        }
    }

    /// `session` has changed an inode's bytes, which it has open to write: other sessions drop
    /// their pages. The session waits also for those that are dropping pages for the sake of
    /// another change.
    pub(super) fn pages_written(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers(ino).take(ino, Part::Pages, session) {
            self.recall(keeper, Recall::Written { ino });
        }
        self.await_open(session, |recall| recall.concerns_pages(ino));
    }

    /// `session` has an inode open no more: pages that it keeps are good until attributes are.
    pub(super) fn pages_let_go(&mut self, session: u64, ino: u64) {
        self.keepers(ino).take_from(session, ino, Part::Pages);
    }

    /// An inode is gone, through what `session` did.
    pub(super) fn inode_gone(&mut self, session: u64, ino: u64) {
        let last = self.keepers(ino).gone(ino, session);
        for keeper in last.names {
            self.recall(keeper, Recall::Names { ino });
        }
        for keeper in last.attrs {
            self.recall(keeper, Recall::Attr { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// An inode has lost its last name, by a request of `session`. It stays for the sessions that
    /// were told of it, and they hear of the loss: `session` by the reply. `idle_bytes`: the space
    /// of the inode if no session has it open. Returns true if the inode stays for any session.
    pub(super) fn orphaned(&mut self, session: u64, ino: u64, idle_bytes: Option<u64>) -> bool {
        let Last { names, numbers: mut holders, .. } = self.keepers(ino).unnamed(ino, session);
        // A directory has no names any more and never gets one again.
        for keeper in names {
            self.recall(keeper, Recall::Names { ino });
        }
        let earlier = self.store.returned.holders_of(ino);
        holders.extend(earlier.into_iter().filter(|earlier| !holders.contains(earlier)).collect::<Vec<_>>());
        if seeded(Fault::OrphanFreed) {
            holders.clear();
        }
        holders.retain(|holder| *holder == session || self.tell_unlinked(*holder, ino));
        self.unlinked = holders.contains(&session).then_some(ino);
        let is_held = !holders.is_empty();
        self.namespace.inodes_mut().shard_mut(ino).orphans.add(ino, holders, idle_bytes);
        is_held
    }

    /// Tells a session that an inode is unlinked. False if the session has ended, or does not ask.
    /// A session of the server before that has not asked yet is told when it does.
    fn tell_unlinked(&mut self, holder: u64, ino: u64) -> bool {
        let recall = Recall::Unlinked { ino };
        let returned = &self.store.returned;
        let told = self.pending.locked(|state| match returned.is_awaited(holder) {
            true => None,
            false => Some(state.recalls.push(holder, recall, awake::now()).is_some()),
        });
        if told == Some(true) {
            self.heard.push(holder);
        }
        told != Some(false)
    }

    /// The reply to a request that has removed or replaced a name.
    pub(super) fn removed(&self) -> Reply {
        self.unlinked.map_or(Reply::Done, Reply::Unlinked)
    }

    /// These sessions have locks of an inode, and are to give up those whose files are closed.
    ///
    /// A session without a connection is not asked: it keeps its locks until its mount is back or its lease ends.
    pub(super) fn confirm_locks(&mut self, ino: u64, holders: &[u64]) {
        for &holder in holders {
            if self.pending.locked(|state| state.recalls.is_connected(holder)) {
                self.recall(holder, Recall::Locks { ino });
            }
        }
    }

    /// An inode has given up space that these sessions can reach by layouts before a generation: it is nobody's until they have
    /// given those back.
    pub(super) fn recall_layout(&mut self, (ino, generation): (u64, u64), holders: &[u64]) {
        for &holder in holders {
            self.recall(holder, Recall::Layout { ino, generation });
        }
    }

    fn recall(&mut self, keeper: u64, recall: Recall) {
        let unsaid = match recall {
            Recall::Name { .. } | Recall::Names { .. } => seeded(Fault::NameNotRecalled),
            Recall::Attr { .. } | Recall::Pages { .. } => seeded(Fault::AttrNotRecalled),
            Recall::Written { .. } => seeded(Fault::WriteNotRecalled),
            Recall::Owner { .. } => seeded(Fault::OwnerNotRecalled),
            Recall::Layout { .. } => seeded(Fault::LayoutNotRecalled),
            // A server that starts recalls that.
            Recall::All | Recall::Locks { .. } | Recall::Unlinked { .. } => false,
        };
        if unsaid {
            return;
        }
        self.needs.extend(self.pending.locked(|state| state.recalls.push(keeper, recall, awake::now())));
    }

    /// Has `session` wait for recalls that others caused: who has not acknowledged one may keep what was before, though he is no
    /// keeper any more.
    fn await_open(&mut self, session: u64, concerns: impl Fn(&Recall) -> bool) {
        if !seeded(Fault::OthersRecallNotAwaited) {
            self.needs.extend(self.pending.open(session, concerns));
        }
    }
}
