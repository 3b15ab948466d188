//! What a snapshot asks of a file system that is in use: everything about its inodes as of one moment, and the space that they had then, which
//! nobody else gets until it has been copied.
//!
//! Threading: one snapshot of a dispatcher at a time, on a thread of its own. Requests go on; each of them may wait for the description of
//! one shard, which only reads.

use std::convert::Infallible;

use rfs_proto::Identity;

use super::{
    Dispatcher,
    held::Plan,
    journal,
    meta::Look,
    shards::SHARDS,
    tape::{Recording, TapeFull, Told, Written},
};
use crate::{
    alloc::Range,
    bytes::Bytes,
    durable::op::{self, Op},
    space::Hold,
    table::BeingChanged,
};

/// The moment of a snapshot, of which everything has been told but for what clients have written.
pub(crate) struct Moment<'a> {
    dispatcher: &'a Dispatcher,
    tape: Recording<'a>,
    hold: Hold<'a>,
}

impl<'a> Moment<'a> {
    /// Tells `sink` what clients have written of all records by now; at last, of files that were cut or removed since the moment, what they had
    /// written by then.
    pub(crate) fn written<E: From<TapeFull>>(
        self,
        mut sink: impl FnMut(Written) -> Result<(), E>,
    ) -> Result<Hold<'a>, E> {
        let Moment { dispatcher, tape, hold } = self;
        for slot in 0..dispatcher.store.table.used_slots() {
            dispatcher.written(slot).map_or(Ok(()), &mut sink)?;
        }
        // Steps that have cut a file by now have told so when their shards are free.
        for at in 0..SHARDS {
            dispatcher.store.once(Plan::shard(at), None, |_: &mut Look<'_>| {});
        }
        tape.losses()?.into_iter().try_for_each(sink)?;
        Ok(hold)
    }
}

/// So often a record is looked at again that is being changed.
const LOOKS: u32 = 8;

impl Dispatcher {
    /// Tells `sink` of all inodes, in pieces, as they are at the moment at which it is told the last one. From then on
    /// nothing of the space that they have then is given to anybody, until what is returned lets it go.
    pub(crate) fn describe<E: From<TapeFull>>(
        &self,
        mut sink: impl FnMut(Told) -> Result<(), E>,
    ) -> Result<Moment<'_>, E> {
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
        Ok(Moment { dispatcher: self, tape, hold })
    }

    /// What clients have written of a record by now. One that is being changed is looked at again when the step is over that does that.
    fn written(&self, slot: u32) -> Option<Written> {
        let mut seen = self.store.table.written(slot);
        for _ in 0..LOOKS {
            // Each time it is another one's: the slot of a file that goes may be given to the next one.
            let Err(BeingChanged(Written { ino, .. })) = seen else { break };
            let look = |look: &mut Look<'_>| look.table.written(slot);
            seen = self.store.once(Plan::new(&[ino]), None, look).0;
        }
        // No step is changing it then: clients can write there, too, and this is what they have written.
        seen.unwrap_or_else(|BeingChanged(written)| Some(written))
    }

    /// The bytes of the files.
    pub(crate) fn bytes(&self) -> &Bytes {
        self.store.space.bytes()
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
