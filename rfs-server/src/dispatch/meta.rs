//! Everything under the metadata lock, and what keeps its parts in step: the records in the table follow the inodes,
//! space goes back to the arena when files shrink or go.
//!
//! Threading: owned by the dispatcher's lock. It zeroes little: ends of blocks, and space that a file keeps although it does not
//! reach so far; the rest is left dirty for [`Space::tidy`] after the lock.

use std::sync::Arc;

use rfs_proto::{Attr, Errno, FileKind, Reply, record};

use super::Sender;
use crate::{
    alloc::Range,
    files::{FileMap, block_up},
    grants::Grants,
    keepers::Keepers,
    leases::Leases,
    locks::Locks,
    namespace::{Body, Effects, Inode, Namespace, Place},
    recalls::{Need, Queues},
    scrub::Space,
    sessions::Sessions,
    table::Table,
    waits::Waits,
};

/// The metadata.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) namespace: Namespace,
    pub(crate) table: Table,
    pub(crate) leases: Leases,
    pub(crate) locks: Locks,
    pub(crate) grants: Grants<Sender>,
    pub(crate) sessions: Sessions,
    pub(crate) space: Arc<Space>,
    /// Memory that extended attributes take.
    pub(crate) xattr_bytes: u64,
    pub(crate) keepers: Keepers,
    pub(crate) recalls: Queues<Sender>,
    pub(crate) waits: Waits<(Sender, Reply)>,
    /// Recalls that the step under way has caused.
    pub(crate) fresh: Vec<Need>,
    /// Replies that have become due in the step under way.
    pub(crate) due: Vec<(Sender, Reply)>,
}

impl Meta {
    /// Attributes with what clients wrote to the record.
    pub(crate) fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let mut attr = self.namespace.get(ino)?.attr(ino);
        if attr.kind == FileKind::Regular {
            attr.size = self.table.size(attr.slot);
            attr.blocks = self.namespace.get(ino)?.space().visible(attr.size);
        }
        (attr.mtime, attr.ctime) =
            record::effective_times(attr.mtime, attr.ctime, self.table.write_time(attr.slot));
        Ok(attr)
    }

    /// Publishes what the server owns of an inode's record. Inodes that are gone have none.
    pub(crate) fn publish(&self, ino: u64) {
        if let Ok(inode) = self.namespace.get(ino) {
            self.table.publish(&inode.attr(ino), &inode.space());
        }
    }

    /// Publishes the whole record of a new inode.
    pub(crate) fn publish_new(&self, ino: u64) {
        if let Ok(inode) = self.namespace.get(ino) {
            self.table.publish_all(&inode.attr(ino), &inode.space());
        }
    }

    /// Publishes what an operation of a session on names changed, recalls it from others, and lets an inode go that has neither
    /// name nor opener.
    pub(crate) fn settle(&mut self, session: u64, effects: &Effects, names: &[Place<'_>]) {
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
        if let Some(ino) = effects.orphaned
            && !self.leases.is_open(ino)
        {
            self.remove(session, ino);
        }
    }

    /// The inode and the extents of a regular file. EISDIR for directories, EINVAL for the rest.
    pub(crate) fn file(&mut self, ino: u64) -> Result<&mut FileMap, Errno> {
        match &mut self.namespace.get_mut(ino)?.body {
            Body::File(map) => Ok(map),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Gives up a file's space behind `size`, but for what is kept up to `keep`, which is zeroed. `session` asked for it
    /// and writes nothing there any more; what other sessions can reach is quarantined.
    pub(crate) fn cut(&mut self, session: u64, ino: u64, size: u64, keep: u64) -> Result<(), Errno> {
        let map = self.file(ino)?;
        let keep = block_up(size).max(keep);
        let given_up = map.cut(keep);
        let rest = map.pieces(size, keep);
        self.give_up(session, ino, &given_up, &rest)
    }

    /// Hands space back that a file lost, and zeroes pieces that it keeps.
    pub(crate) fn give_up(
        &mut self,
        session: u64,
        ino: u64,
        given_up: &[Range],
        zeroed: &[(u64, Option<u64>, u64)],
    ) -> Result<(), Errno> {
        let mut changed = !given_up.is_empty();
        for &(_, place, len) in zeroed {
            if let Some(start) = place {
                self.space.zero(Range { start, len });
                changed = true;
            }
        }
        // Also where no space goes: what was zeroed may have been under somebody's write.
        if changed {
            self.namespace.get_mut(ino)?.layout_generation += 1;
        }
        if !given_up.is_empty() {
            self.space.quarantine(ino, given_up, &self.leases.others(session, ino));
        }
        Ok(())
    }

    /// A session is about to change or to read an inode. How often that was another one than the time before.
    pub(crate) fn visit(&mut self, session: u64, ino: u64) -> Result<u64, Errno> {
        let inode = self.namespace.get_mut(ino)?;
        if inode.visitor != session {
            inode.visitor = session;
            inode.visits += 1;
        }
        Ok(inode.visits)
    }

    /// A session's lease on an inode ended; if it was the last, space behind the end of the file comes back, and an
    /// inode without names goes.
    pub(crate) fn lease_ended(&mut self, session: u64, ino: u64, last: bool) {
        self.space.lease_ended(ino, session);
        self.locks.closed(session, ino);
        let Ok(inode) = self.namespace.get(ino) else { return };
        self.table.end_append(inode.slot, session);
        if last && inode.nlink == 0 {
            self.remove(session, ino);
        } else if last {
            let (size, generation) = (self.table.size(inode.slot), inode.layout_generation);
            let keep = self.file(ino).map_or(0, |map| map.kept_to());
            // It was open, so that it is a regular file, and cutting cannot fail.
            if self.cut(session, ino, size, keep).is_ok() {
                self.publish(ino);
            }
            if self.namespace.get(ino).is_ok_and(|inode| inode.layout_generation != generation) {
                self.attr_changed(session, ino);
            }
        }
    }

    /// Takes an inode out that nobody can reach, after what a session did.
    fn remove(&mut self, session: u64, ino: u64) {
        self.inode_gone(session, ino);
        let Some(inode) = self.namespace.remove_inode(ino) else { return };
        self.xattr_bytes -= inode.xattr_bytes();
        let Inode { slot, body, .. } = inode;
        if let Body::File(mut map) = body {
            let ranges: Vec<Range> = map.cut(0);
            self.space.quarantine(ino, &ranges, &[]);
        }
        self.table.release(slot);
    }
}
