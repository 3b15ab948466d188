//! Appends the operations of transactions to the log, and describes inodes there.
//!
//! # Concurrency
//! Any thread. A thread appends while it holds the shards of its change, so the changes of an
//! inode are logged in order. The log's own lock covers the append only, and comes after all
//! other locks.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rfs_proto::{LockKind, Reply, Request, encode_reply};
use seeded_faults::seeded;

use super::describe::{CHUNK, describe_one};
use crate::{
    locks::held_locks::Locked,
    memory_object::{
        log::{Full, Log},
        op::{self, Op},
    },
    metadata::namespace::inode::Inode,
    session::{log_quota::LogQuota, open_files::OpenFiles, registry::Session},
};

thread_local! {
    /// Buffer for the operations of a transaction.
    static OPS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Buffer for the reply that is logged with them.
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with an empty buffer for operations.
pub(in crate::dispatch) fn with_ops<T>(f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    OPS.with_borrow_mut(|ops| {
        ops.clear();
        f(ops)
    })
}

/// Slot and sequence number of a request that is carried out exactly once.
pub(in crate::dispatch) type Number = (u32, u64);

/// The reply of a transaction, to be logged with its changes.
#[derive(Clone, Copy, Debug)]
pub(in crate::dispatch) struct LoggedReply<'a> {
    session: &'a Session,
    number: Number,
}

impl<'a> LoggedReply<'a> {
    /// Encodes the reply of the transaction that this thread is in.
    pub(in crate::dispatch) fn new(session: &'a Session, number: Number, reply: &Reply) -> LoggedReply<'a> {
        REPLY.with_borrow_mut(|bytes| encode_reply(reply, bytes));
        LoggedReply { session, number }
    }

    fn encode(&self, ops: &mut Vec<u8>) {
        let (slot, sequence) = self.number;
        let sequence = seeded!(ReplyMisnumbered, sequence.max(2) - 1, sequence);
        REPLY.with_borrow(|reply| op::encode(&Op::Turn(self.session.id(), slot, sequence, reply), ops));
    }

    /// Stores the logged reply with the session. A thread that rewrites the log reads it there
    /// before it reads the rest of the change.
    fn logged(&self) {
        let (slot, sequence) = self.number;
        REPLY.with_borrow(|reply| self.session.replies().logged(slot, sequence, reply));
    }
}

/// The log of transactions.
#[derive(Debug)]
pub(in crate::dispatch) struct Journal {
    log: Log,
    /// The number of changes that did not fit into the log. If it is not 0, the log must be
    /// rewritten before the next change.
    behind: AtomicU64,
    /// Quota of the sessions in the log.
    pub(in crate::dispatch) quota: LogQuota,
    /// Held while sessions are described, and while an attach or a detach is logged.
    pub(in crate::dispatch) sessions: Mutex<()>,
    #[cfg(test)]
    pub(in crate::dispatch) witness: tests::Witness,
}

impl Journal {
    pub(in crate::dispatch) fn new(log: Log) -> Journal {
        Journal {
            quota: LogQuota::new(log.room_for_sessions()),
            log,
            behind: AtomicU64::new(0),
            sessions: Mutex::new(()),
            #[cfg(test)]
            witness: tests::Witness::default(),
        }
    }

    pub(in crate::dispatch) fn log(&self) -> &Log {
        &self.log
    }

    /// Logs changes of file locks, and the reply of the transaction that made them. The caller
    /// holds the file locks.
    pub(in crate::dispatch) fn log_lock_changes(
        &self,
        changes: &[(u64, Locked)],
        reply: Option<LoggedReply<'_>>,
    ) -> Result<(), Full> {
        with_ops(|ops| {
            changes.iter().for_each(|&(ino, locked)| op::encode(&Op::Lock(ino, locked), ops));
            self.append_with(ops, reply)
        })
    }

    /// Logs a single operation.
    pub(in crate::dispatch) fn tell(&self, op: &Op<'_>) -> Result<(), Full> {
        with_ops(|ops| {
            op::encode(op, ops);
            self.append(ops)
        })
    }

    /// Appends operations, and the reply of the transaction that made the changes.
    pub(in crate::dispatch) fn append_with(
        &self,
        ops: &mut Vec<u8>,
        reply: Option<LoggedReply<'_>>,
    ) -> Result<(), Full> {
        if let Some(reply) = &reply {
            reply.encode(ops);
        }
        self.append(ops)?;
        if let Some(reply) = &reply {
            reply.logged();
        }
        Ok(())
    }

    fn append(&self, ops: &[u8]) -> Result<(), Full> {
        #[cfg(test)]
        self.witness.look();
        let appended = self.log.append(ops).inspect_err(|&full| self.falls_behind(full));
        #[cfg(test)]
        self.witness.look();
        appended
    }

    fn falls_behind(&self, full: Full) {
        if self.behind.fetch_add(1, Ordering::Relaxed) == 0 {
            log::error!("{full}: changes are refused until the log is rewritten");
        }
    }

    /// Returns whether a change is missing in the log.
    pub(in crate::dispatch) fn is_behind(&self) -> bool {
        self.times_behind() > 0
    }

    /// Returns the number of changes that the log has missed.
    pub(in crate::dispatch) fn times_behind(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }

    /// Records that the log contains all changes again that it had missed when `times_behind`
    /// returned `then`. If it has missed more since, it stays behind: the later ones would depend
    /// on them.
    pub(in crate::dispatch) fn caught_up(&self, then: u64) {
        // An error means that the log has missed another change.
        self.behind.compare_exchange(then, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    /// Returns whether the log has no room for the additions of a request.
    pub(in crate::dispatch) fn refuses(&self, request: &Request<'_>) -> bool {
        self.log.is_nearly_full() && adds(request)
    }

    /// Logs the whole state of inodes, which no thread changes meanwhile.
    pub(in crate::dispatch) fn describe<'a>(
        &self,
        inodes: impl Iterator<Item = (u64, &'a Inode)>,
    ) -> Result<(), Full> {
        let mut ops = Vec::new();
        let mut flush = |ops: &mut Vec<u8>| {
            let result = self.log.describe(ops);
            ops.clear();
            result
        };
        for (ino, inode) in inodes {
            describe_one(ino, inode, &mut ops, &mut flush)?;
        }
        flush(&mut ops)
    }

    /// Logs the open files of sessions that reconnect.
    pub(in crate::dispatch) fn describe_opens(
        &self,
        open_files: &OpenFiles,
        returns: impl Fn(u64) -> bool,
    ) -> Result<(), Full> {
        let mut ops = Vec::new();
        for (session, ino) in open_files.all().filter(|(session, _)| returns(*session)) {
            let (times, writes) = open_files.of(session, ino);
            op::encode(&Op::Open(session, ino, times, writes), &mut ops);
            if ops.len() >= CHUNK {
                self.log.describe(&ops)?;
                ops.clear();
            }
        }
        self.log.describe(&ops)
    }

    /// Logs operations as part of a description.
    pub(in crate::dispatch) fn describe_ops<'a>(
        &self,
        described: impl IntoIterator<Item = Op<'a>>,
    ) -> Result<(), Full> {
        with_ops(|ops| {
            described.into_iter().for_each(|op| op::encode(&op, ops));
            self.log.describe(ops)
        })
    }

    /// Logs the whole state of inodes. If there is no room, further changes are refused.
    pub(in crate::dispatch) fn describe_or_stop<'a>(&self, inodes: impl Iterator<Item = (u64, &'a Inode)>) {
        self.or_stop(self.describe(inodes));
    }

    /// Logs a single operation. If there is no room, further changes are refused.
    pub(in crate::dispatch) fn tell_or_stop(&self, op: &Op<'_>) {
        self.or_stop(self.tell(op));
    }

    fn or_stop(&self, logged: Result<(), Full>) {
        if let Err(full) = logged {
            self.falls_behind(full);
        }
    }

    /// Logs the highest inode number, and the number of table slots that have been used.
    pub(in crate::dispatch) fn count(&self, last_ino: u64, slots: u32) -> Result<(), Full> {
        let mut ops = Vec::new();
        op::encode(&Op::Counters(last_ino, slots), &mut ops);
        self.log.describe(&ops)
    }
}

/// Returns true for requests that can make the state of the file system larger.
fn adds(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Mknod { .. }
            | Request::Create { .. }
            | Request::Tmpfile { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Rename { .. }
            | Request::Allocate { .. }
            | Request::SetXattr { .. }
            | Request::XattrPart { .. }
            | Request::Fallocate { .. }
            | Request::Copy { .. }
            | Request::Lock { kind: LockKind::Shared | LockKind::Exclusive, .. }
    )
}

#[cfg(test)]
pub(in crate::dispatch) mod tests {
    use parking_lot::Mutex;

    type Looks = Option<Box<dyn FnMut() + Send>>;

    /// A callback just before and just after each append. Tests use it to copy the memory as a
    /// killed server would leave it.
    #[derive(Default)]
    pub(in crate::dispatch) struct Witness(pub(in crate::dispatch) Mutex<Looks>);

    impl std::fmt::Debug for Witness {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Witness")
        }
    }

    impl Witness {
        pub(super) fn look(&self) {
            if let Some(look) = self.0.lock().as_mut() {
                look();
            }
        }
    }
}
