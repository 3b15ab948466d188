//! Encodes the changes of transactions as operations, and appends them to the log.
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
use rfs_proto::{Extent, LockKind, Reply, Request, encode_reply};
use seeded_faults::{Fault, seeded};

use super::{
    locked_inodes::{Changes, LockedInodes},
    log_quota::LogQuota,
    meta::Freed,
    shards::Writing,
};
use crate::{
    durable::{
        Log,
        log::Full,
        op::{self, Locked, Op},
        replay,
    },
    namespace::{Body, Inode, Inodes, Namespace, XattrName},
    open_files::OpenFiles,
    sessions::Session,
};

/// Approximate size in bytes of the pieces in which a description is logged, which need not be
/// atomic.
const CHUNK: usize = 64 << 10;
/// The number of extents in one operation.
const EXTENTS: usize = 1024;

thread_local! {
    /// Buffer for the operations of a transaction.
    static OPS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Buffer for the reply that is logged with them.
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Slot and sequence number of a request that is carried out exactly once.
pub(super) type Number = (u32, u64);

/// The reply of a transaction, to be logged with its changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoggedReply<'a> {
    session: &'a Session,
    number: Number,
}

impl<'a> LoggedReply<'a> {
    /// Encodes the reply of the transaction that this thread is in.
    pub(super) fn new(session: &'a Session, number: Number, reply: &Reply) -> LoggedReply<'a> {
        REPLY.with_borrow_mut(|bytes| encode_reply(reply, bytes));
        LoggedReply { session, number }
    }

    fn encode(&self, ops: &mut Vec<u8>) {
        let (slot, sequence) = self.number;
        let sequence = if seeded(Fault::ReplyMisnumbered) { sequence.max(2) - 1 } else { sequence };
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
pub(super) struct Journal {
    log: Log,
    /// The number of changes that did not fit into the log. If it is not 0, the log must be
    /// rewritten before the next change.
    behind: AtomicU64,
    /// Quota of the sessions in the log.
    pub(super) quota: LogQuota,
    /// Held while sessions are described, and while an attach or a detach is logged.
    pub(super) sessions: Mutex<()>,
    #[cfg(test)]
    pub(super) witness: tests::Witness,
}

impl Journal {
    pub(super) fn new(log: Log) -> Journal {
        Journal {
            quota: LogQuota::new(log.room_for_sessions()),
            log,
            behind: AtomicU64::new(0),
            sessions: Mutex::new(()),
            #[cfg(test)]
            witness: tests::Witness::default(),
        }
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// Logs the changes of a transaction, whose inodes are in `ops` already, and its reply.
    ///
    /// # Errors
    /// The log has no room. The caller must not report success, nor reuse the space of
    /// `freed`.
    pub(super) fn log_changes(
        &self,
        inodes: &LockedInodes<'_, Writing>,
        changes: &Changes,
        freed: &Freed,
        reply: Option<LoggedReply<'_>>,
        ops: &mut Vec<u8>,
    ) -> Result<(), Full> {
        if seeded(Fault::RenameNotLogged) && changes.names.len() > 1 {
            return Ok(());
        }
        for &(session, ino) in &changes.opens {
            let (times, writes) = inodes.shard(ino).open_files.of(session, ino);
            op::encode(&Op::Open(session, ino, times, writes), ops);
        }
        for (ino, ranges, holders) in freed.reachable().filter(|_| !seeded(Fault::GivenUpForgotten)) {
            let ranges = ranges.iter().map(|range| (range.start, range.len)).collect();
            op::encode(&Op::GivenUp(ino, ranges, holders.to_vec()), ops);
        }
        self.append_with(ops, reply)
    }

    /// Logs changes of file locks, and the reply of the transaction that made them. The caller
    /// holds the file locks.
    pub(super) fn log_lock_changes(
        &self,
        changes: &[(u64, Locked)],
        reply: Option<LoggedReply<'_>>,
    ) -> Result<(), Full> {
        OPS.with_borrow_mut(|ops| {
            ops.clear();
            changes.iter().for_each(|&(ino, locked)| op::encode(&Op::Lock(ino, locked), ops));
            self.append_with(ops, reply)
        })
    }

    /// Logs a single operation.
    pub(super) fn tell(&self, op: &Op<'_>) -> Result<(), Full> {
        OPS.with_borrow_mut(|ops| {
            ops.clear();
            op::encode(op, ops);
            self.append(ops)
        })
    }

    fn append_with(&self, ops: &mut Vec<u8>, reply: Option<LoggedReply<'_>>) -> Result<(), Full> {
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
    pub(super) fn is_behind(&self) -> bool {
        self.times_behind() > 0
    }

    /// Returns the number of changes that the log has missed.
    pub(super) fn times_behind(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }

    /// Records that the log contains all changes again that it had missed when `times_behind`
    /// returned `then`. If it has missed more since, it stays behind: the later ones would depend
    /// on them.
    pub(super) fn caught_up(&self, then: u64) {
        // An error means that the log has missed another change.
        self.behind.compare_exchange(then, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    /// Returns whether the log has no room for the additions of a request.
    pub(super) fn refuses(&self, request: &Request<'_>) -> bool {
        self.log.is_nearly_full() && adds(request)
    }

    /// Logs the whole state of inodes, which no thread changes meanwhile.
    pub(super) fn describe<'a>(&self, inodes: impl Iterator<Item = (u64, &'a Inode)>) -> Result<(), Full> {
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
    pub(super) fn describe_opens(
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
    pub(super) fn describe_ops<'a>(&self, described: impl IntoIterator<Item = Op<'a>>) -> Result<(), Full> {
        OPS.with_borrow_mut(|ops| {
            ops.clear();
            described.into_iter().for_each(|op| op::encode(&op, ops));
            self.log.describe(ops)
        })
    }

    /// Logs the whole state of inodes. If there is no room, further changes are refused.
    pub(super) fn describe_or_stop<'a>(&self, inodes: impl Iterator<Item = (u64, &'a Inode)>) {
        self.or_stop(self.describe(inodes));
    }

    /// Logs a single operation. If there is no room, further changes are refused.
    pub(super) fn tell_or_stop(&self, op: &Op<'_>) {
        self.or_stop(self.tell(op));
    }

    fn or_stop(&self, logged: Result<(), Full>) {
        if let Err(full) = logged {
            self.falls_behind(full);
        }
    }

    /// Logs the highest inode number, and the number of table slots that have been used.
    pub(super) fn count(&self, last_ino: u64, slots: u32) -> Result<(), Full> {
        let mut ops = Vec::new();
        op::encode(&Op::Counters(last_ino, slots), &mut ops);
        self.log.describe(&ops)
    }
}

/// Encodes the changes of a transaction and passes them to `append`. Does nothing if there are no
/// changes and no reply.
pub(super) fn encode_changes<T>(
    namespace: &mut Namespace<LockedInodes<'_, Writing>>,
    has_reply: bool,
    append: impl FnOnce(&LockedInodes<'_, Writing>, &Changes, &mut Vec<u8>) -> T,
) -> Option<T> {
    let changes = namespace.inodes_mut().take_changes();
    if changes.is_empty() && !has_reply {
        return None;
    }
    let inodes = namespace.inodes_mut();
    OPS.with_borrow_mut(|ops| {
        ops.clear();
        for &ino in &changes.inodes {
            match inodes.unlogged_mut(ino) {
                Ok(inode) => changed(ino, inode, ops),
                Err(_) => op::encode(&Op::Gone(ino), ops),
            }
        }
        for (parent, name) in &changes.names {
            let Some(directory) = inodes.get(*parent).ok().and_then(Inode::directory) else { continue };
            let entry = directory.get(name).zip(directory.cookie(name));
            op::encode(&Op::Name(*parent, name, entry), ops);
        }
        Some(append(inodes, &changes, ops))
    })
}

/// Encodes the whole state of an inode. Calls `flush` when the buffer is full; `flush` empties
/// it.
pub(super) fn describe_one<E>(
    ino: u64,
    inode: &Inode,
    ops: &mut Vec<u8>,
    flush: &mut impl FnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mut add = |op: Op<'_>, ops: &mut Vec<u8>| {
        op::encode(&op, ops);
        if ops.len() < CHUNK { Ok(()) } else { flush(ops) }
    };
    add(Op::Inode(ino, replay::attributes(inode)), ops)?;
    match &inode.body {
        Body::Directory(directory) => {
            for (name, entry) in replay::names(directory) {
                add(Op::Name(ino, name, Some(entry)), ops)?;
            }
        }
        Body::File(map) => {
            let all: Vec<Extent> = map.extents().collect();
            let mut from = 0;
            let mut rest = &all[..];
            while from < u64::MAX {
                let (now, later) = rest.split_at(rest.len().min(EXTENTS));
                let to = later.first().map_or(u64::MAX, |extent| extent.file);
                add(Op::Extents(ino, (from, to), now.to_vec()), ops)?;
                (from, rest) = (to, later);
            }
        }
        Body::Symlink(_) | Body::Special => {}
    }
    let names = inode.xattrs.as_ref().map_or_else(Vec::new, |xattrs| xattrs.names());
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if let Some(value) = xattr(inode, name) {
            add(Op::Xattr(ino, name, Some(serde_bytes::Bytes::new(&value))), ops)?;
        }
    }
    Ok(())
}

/// Encodes the changes of an inode: all attributes, and those extents and extended attributes
/// that have changed.
fn changed(ino: u64, inode: &mut Inode, ops: &mut Vec<u8>) {
    op::encode(&Op::Inode(ino, replay::attributes(inode)), ops);
    if let Body::File(map) = &mut inode.body
        && let Some((from, to)) = map.take_touched()
    {
        op::encode(&Op::Extents(ino, (from, to), map.within(from, to).collect()), ops);
    }
    let touched = inode.xattrs.as_mut().map_or_else(Vec::new, |xattrs| xattrs.take_touched());
    for name in touched {
        let value = xattr(inode, &name);
        op::encode(&Op::Xattr(ino, &name, value.as_deref().map(serde_bytes::Bytes::new)), ops);
    }
}

fn xattr(inode: &Inode, name: &[u8]) -> Option<Vec<u8>> {
    inode.xattrs.as_ref()?.get(XattrName::parse(name).ok()?).ok()
}

/// Returns true for requests that can make the state of the file system larger.
fn adds(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Mknod { .. }
            | Request::Create { .. }
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
pub(super) mod tests {
    use parking_lot::Mutex;

    type Looks = Option<Box<dyn FnMut() + Send>>;

    /// A callback just before and just after each append. Tests use it to copy the memory as a
    /// killed server would leave it.
    #[derive(Default)]
    pub(in super::super) struct Witness(pub(in super::super) Mutex<Looks>);

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
