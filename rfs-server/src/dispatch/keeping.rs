//! What sessions may keep, and what is recalled from them: the rules.
//!
//! Every change comes past here after it has been made and before its lock is given up, so that whoever asks from then on is told
//! the new state, and whoever was told the old one is in the queue of a recall.
//!
//! Threading: under the metadata lock.

use std::time::Instant;

use rfs_proto::{Attr, Errno, Marks, Recall, Reply};

use super::meta::Meta;
use crate::{
    keepers::Part,
    namespace::Place,
    sessions::{Refused, Regions},
};

impl Meta {
    /// Attributes for a session to keep, if it may.
    pub(super) fn told(&mut self, session: u64, ino: u64) -> Result<Attr, Errno> {
        let mut attr = self.attr(ino)?;
        self.mark(session, &mut attr);
        Ok(attr)
    }

    /// Lets a session keep attributes, if it keeps any and nobody else may be writing to the inode.
    pub(super) fn mark(&mut self, session: u64, attr: &mut Attr) {
        if self.sessions.keeps(session) && !self.leases.another_writes(session, attr.ino) {
            self.keepers.add(session, attr.ino, Part::Attr);
            attr.marks |= Marks::KEEP;
        }
    }

    /// A session was told of a name of a directory, or that there is none.
    pub(super) fn told_name(&mut self, session: u64, parent: u64) {
        if self.sessions.keeps(session) && self.namespace.directory(parent).is_ok() {
            self.keepers.add(session, parent, Part::Names);
        }
    }

    /// `session` opens an inode once, or is about to change its bytes in another way: others do not keep them any more.
    pub(super) fn will_write(&mut self, session: u64, ino: u64) {
        if self.leases.will_write(session, ino) {
            self.pages_changed(session, ino);
        }
    }

    /// `session` changed what a name stands for.
    pub(super) fn name_changed(&mut self, session: u64, Place { parent, name }: Place<'_>) {
        for keeper in self.keepers.name_changed(parent, session) {
            self.recall(keeper, Recall::Name { parent, name: name.to_vec() });
        }
        self.await_open(session, |recall| match recall {
            Recall::Name { parent: p, name: n } => (*p, &n[..]) == (parent, name),
            Recall::Names { ino } => *ino == parent,
            Recall::Attr { .. } | Recall::Pages { .. } => false,
        });
    }

    /// `session` changed an inode's attributes or extended attributes.
    pub(super) fn attr_changed(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers.take(ino, Part::Attr, session) {
            self.recall(keeper, Recall::Attr { ino });
        }
        self.await_open(session, |recall| recall.inode() == ino);
    }

    /// `session` changed an inode's bytes, or will.
    pub(super) fn pages_changed(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers.take(ino, Part::Attr, session) {
            self.recall(keeper, Recall::Pages { ino });
        }
        self.await_open(session, |recall| recall.inode() == ino);
    }

    /// An inode is gone, through what `session` did.
    pub(super) fn inode_gone(&mut self, session: u64, ino: u64) {
        for keeper in self.keepers.take(ino, Part::Names, session) {
            self.recall(keeper, Recall::Names { ino });
        }
        self.attr_changed(session, ino);
        self.keepers.forget(ino);
    }

    /// Attaches a session.
    pub(super) fn attach(&mut self, session: u64, keeps: bool, alone: bool) -> Result<Regions, Refused> {
        let regions = self.sessions.attach(session, keeps, alone)?;
        if keeps {
            self.recalls.begin(session);
        }
        Ok(regions)
    }

    /// A session keeps nothing any more: nobody waits for it.
    pub(super) fn keeps_no_longer(&mut self, session: u64) {
        let asker = self.recalls.take_asker(session);
        self.due.extend(asker.map(|sender| (sender, Reply::Error(Errno::EPROTO))));
        if self.recalls.end(session) {
            self.keepers.end_session(session);
        }
        let released = self.waits.session_ended(session);
        self.due.extend(released);
    }

    /// Tells a session what is recalled from it, if it waits for that.
    pub(super) fn answer_asker(&mut self, session: u64) {
        if let Some((sender, recalls)) = self.recalls.answer(session) {
            self.due.push((sender, Reply::Recalls(recalls)));
        }
    }

    fn recall(&mut self, keeper: u64, recall: Recall) {
        self.fresh.extend(self.recalls.push(keeper, recall, Instant::now()));
    }

    /// Has `session` wait for recalls that others caused: who has not acknowledged one may keep what was before, though he is no
    /// keeper any more.
    fn await_open(&mut self, session: u64, concerns: impl Fn(&Recall) -> bool) {
        self.fresh.extend(self.recalls.open(session, concerns));
    }
}
