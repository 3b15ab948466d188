//! What a snapshot asks of a file system that is in use: everything about its inodes as of one moment, and the space that they had then, which
//! nobody else gets until it has been copied.
//!
//! Threading: one snapshot of a dispatcher at a time, on a thread of its own. Requests go on; each of them may wait for the description of
//! one shard, which only reads.

use std::convert::Infallible;

use rdmabox::Memory;
use rfs_proto::Identity;

use super::{
    Dispatcher,
    held::Plan,
    journal,
    meta::Look,
    shards::SHARDS,
    tape::{TapeFull, Told, Written},
};
use crate::{
    alloc::Range,
    durable::op::{self, Op},
    scrub::Hold,
};

impl Dispatcher {
    /// Tells `sink` of all inodes, in pieces, as they are at the moment at which it is told the last one. From then on
    /// nothing of the space that they have then is given to anybody, until what is returned lets it go.
    pub(crate) fn describe<E: From<TapeFull>>(
        &self,
        mut sink: impl FnMut(Told) -> Result<(), E>,
    ) -> Result<Hold<'_>, E> {
        let tape = self.store.tape.start();
        for at in 0..SHARDS {
            let describe = |look: &mut Look<'_>| {
                let (table, mut ops) = (look.table, Vec::new());
                let shard = look.namespace.inodes_mut().only();
                for (&ino, inode) in &shard.inodes {
                    let mut flush = |ops: &mut Vec<u8>| -> Result<(), Infallible> {
                        tape.describe(ops, std::iter::empty(), table);
                        ops.clear();
                        Ok(())
                    };
                    let Ok(()) = journal::describe_one(ino, inode, &mut ops, &mut flush);
                    tape.describe(&ops, std::iter::once((ino, inode)), table);
                    ops.clear();
                }
            };
            self.store.once(Plan::shard(at), None, describe);
            sink(tape.take()?)?;
        }
        // Before the end of the tape: what a step gives up whose change is not on it is not there for others yet.
        let hold = self.store.space.hold();
        let mut said = tape.stop()?;
        let mut counters = Vec::new();
        op::encode(
            &Op::Counters(self.store.shards.last_number(), self.store.table.used_slots()),
            &mut counters,
        );
        said.pieces.push(counters);
        sink(said)?;
        Ok(hold)
    }

    /// What clients have written of all records by now, of those that are not just being changed.
    pub(crate) fn written(&self) -> impl Iterator<Item = Written> + '_ {
        let table = &self.store.table;
        (0..table.used_slots()).filter_map(|slot| table.written(slot))
    }

    /// The bytes of the files.
    pub(crate) fn arena(&self) -> &Memory {
        self.store.space.memory()
    }

    /// What of a range of them is not known to be free and zero, in order.
    pub(crate) fn not_clean(&self, range: Range) -> Vec<Range> {
        self.store.space.not_clean(range)
    }

    /// Which memory it is over.
    pub(crate) fn identity(&self) -> Identity {
        self.memory.0
    }

    /// A word that changes with each request, if nobody could have changed anything without one: nobody is attached, and nobody
    /// of the servers before is there.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let stats = self.stats();
        (stats.sessions == 0 && !self.store.space.is_before())
            .then(|| stats.calls.iter().map(|(_, count)| count).sum())
    }
}
