//! What sessions may keep, and what is recalled from them: the rules.
//!
//! Every change comes past here after it has been made and before its shards are given up, so that whoever asks from then on is told
//! the new state, and whoever was told the old one is in the queue of a recall.
//!
//! Threading: belongs to a step, which has the shards of what is changed or told. Whoever tells has it to read, whoever changes has it
//! to himself; so that who becomes a keeper while the old state is told is found when it changes.

use rfs_proto::{Attr, Errno, Marks, Recall};
use seeded_faults::{Fault, seeded};

use super::{
    meta::{Meta, View},
    shards::Mode,
};
use crate::{
    awake,
    keepers::{Keepers, Part},
    namespace::Place,
};

impl<M: Mode> View<'_, M> {
    /// Attributes for a session to see, not to keep. Whom the inode belongs to it may show a kernel all the same.
    pub(super) fn shown(&self, session: u64, ino: u64) -> Result<Attr, Errno> {
        let attr = self.attr(ino)?;
        if self.keeps(session) {
            self.add_keeper(session, ino, Part::Owner);
        }
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
        if !self.keeps(session) {
            return;
        }
        if self.leases(attr.ino).another_writes(session, attr.ino) {
            self.add_keeper(session, attr.ino, Part::Owner);
        } else {
            self.add_keeper(session, attr.ino, Part::Attr);
            attr.marks |= Marks::KEEP;
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
            self.add_keeper(session, parent, Part::Names);
        }
    }

    /// Whether a session keeps what it is told now. It may have ended since its request came: what this says under the lock of a shard
    /// holds until whoever ends the session has come past that shard.
    fn keeps(&self, session: u64) -> bool {
        self.asker.is_some_and(|asker| asker.id() == session && asker.keeps())
    }

    fn add_keeper(&self, session: u64, ino: u64, part: Part) {
        self.namespace.inodes().shard(ino).keepers.lock().add(session, ino, part);
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
        for keeper in self.keepers(ino).take(ino, Part::Attr, session) {
            self.recall(keeper, Recall::Pages { ino });
        }
        self.await_open(session, |recall| recall.concerns(ino));
    }

    /// An inode is gone, through what `session` did.
    pub(super) fn inode_gone(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers(ino).take(ino, Part::Names, session) {
            self.recall(keeper, Recall::Names { ino });
        }
        self.attr_changed(session, ino);
        self.keepers(ino).forget(ino);
    }

    /// These sessions have locks of an inode, and are to give up those whose files are closed.
    pub(super) fn confirm_locks(&mut self, ino: u64, holders: &[u64]) {
        for &holder in holders {
            self.recall(holder, Recall::Locks { ino });
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
            Recall::Owner { .. } => seeded(Fault::OwnerNotRecalled),
            Recall::Layout { .. } => seeded(Fault::LayoutNotRecalled),
            // A server that starts recalls that.
            Recall::All | Recall::Locks { .. } => false,
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
