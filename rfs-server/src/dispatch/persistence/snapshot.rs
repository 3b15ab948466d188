//! Snapshots of a file system in use.
//!
//! A snapshot reads the state of all inodes as of one moment. It also keeps the space that they
//! have at that moment, until it has copied the bytes.
//!
//! # Concurrency
//! One snapshot at a time, on its own thread. Requests go on; a request may wait while one shard
//! is described under a shared lock.

use std::convert::Infallible;

use crate::{
    dispatch::{
        state::{
            change_log::{ChangeLogFull, Recording, SnapshotDelta},
            describe::describe_one,
            shards::SHARDS,
            store::Store,
        },
        transaction::{locked_inodes::Plan, view::ReadView},
    },
    memory_object::op::{self, Op},
    metadata::attr_table::{ChangeInProgress, ClientFields},
    space::{bytes::Bytes, snapshot_hold::Hold},
};

/// A snapshot at its moment. All state is recorded but the sizes and times that clients have
/// written.
pub(crate) struct Moment<'a> {
    source: SnapshotSource<'a>,
    log: Recording<'a>,
    hold: Hold<'a>,
}

impl<'a> Moment<'a> {
    /// Passes the sizes and times in all records to `sink`. At last it passes those of files that
    /// were cut or removed since the moment, as they were before.
    pub(crate) fn written<E: From<ChangeLogFull>>(
        self,
        mut sink: impl FnMut(ClientFields) -> Result<(), E>,
    ) -> Result<Hold<'a>, E> {
        let Moment { source, log, hold } = self;
        for slot in 0..source.store.table.used_slots() {
            source.written(slot).map_or(Ok(()), &mut sink)?;
        }
        // A transaction that has cut a file by now has recorded the loss when its shards are free.
        for at in 0..SHARDS {
            source.store.transact(Plan::shard(at), None, |_: &mut ReadView<'_>| {});
        }
        log.losses()?.into_iter().try_for_each(sink)?;
        Ok(hold)
    }
}

/// How often a record that is being changed is read again.
const LOOKS: u32 = 8;

/// The state that a snapshot reads.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotSource<'a> {
    pub(in crate::dispatch) store: &'a Store,
}

impl<'a> SnapshotSource<'a> {
    /// Passes the state of all inodes to `sink`, in pieces, as of the moment of the last piece.
    /// Space that files have then is given to no other file until the returned value is dropped.
    pub(crate) fn describe<E: From<ChangeLogFull>>(
        self,
        mut sink: impl FnMut(SnapshotDelta) -> Result<(), E>,
    ) -> Result<Moment<'a>, E> {
        let log = self.store.change_log.start();
        for at in 0..SHARDS {
            let describe = |look: &mut ReadView<'_>| {
                let (table, mut ops) = (look.table, Vec::new());
                let shard = look.namespace.inodes_mut().only();
                for (&ino, inode) in &shard.inodes {
                    let mut flush = |ops: &mut Vec<u8>| -> Result<(), Infallible> {
                        log.describe(ops, std::iter::empty(), table);
                        ops.clear();
                        Ok(())
                    };
                    let Ok(()) = describe_one(ino, inode, &mut ops, &mut flush);
                    log.describe(&ops, std::iter::once((ino, inode)), table);
                    ops.clear();
                }
            };
            self.store.transact(Plan::shard(at), None, describe);
            sink(log.take()?)?;
        }
        // Before the recording stops: space that a later transaction gives up is then held already.
        let mut hold = self.store.space.hold();
        let mut last = log.stop()?;
        hold.leave_out_free();
        let mut counters = Vec::new();
        op::encode(
            &Op::Counters(self.store.shards.last_number(), self.store.table.used_slots()),
            &mut counters,
        );
        last.pieces.push(counters);
        sink(last)?;
        Ok(Moment { source: self, log, hold })
    }

    /// Returns the size and time that clients have written to a record. If a transaction is
    /// changing the record, reads it again after the transaction.
    fn written(self, slot: u32) -> Option<ClientFields> {
        let mut seen = self.store.table.written(slot);
        for _ in 0..LOOKS {
            // The slot may belong to another inode each time: the slot of a removed file is reused.
            let Err(ChangeInProgress(ClientFields { ino, .. })) = seen else { break };
            let look = |look: &mut ReadView<'_>| look.table.written(slot);
            seen = self.store.transact(Plan::new(&[ino]), None, look).0;
        }
        // No transaction is changing the record: a client left it so, as clients can write to it,
        // too.
        seen.unwrap_or_else(|ChangeInProgress(written)| Some(written))
    }

    /// Returns the bytes of the files.
    pub(crate) fn bytes(self) -> &'a Bytes {
        self.store.space.bytes()
    }
}
