//! Fuzzes servers that start with a damaged memory object: its header, its raw log, and a log of
//! transactions with valid checksums.
//!
//! An input of the last kind is a list of transactions, each with a byte for the log operation and
//! a two-byte length. A server must refuse a log or replay it to a usable file system. The
//! attribute records match the log, because a server refuses to start with any other records.

use std::sync::Arc;

use rdmabox::Memory;
use rfs_proto::{
    Identity, LockClass, LockKind, LockRange, ROOT_INO, Reply, Request, SetAttr, VERSION, XattrSet, checksum,
    record,
};
use rfs_server::{
    access_mode::AccessMode,
    bytes::Bytes,
    clock::ManualClock,
    dispatch::{Dispatcher, Outcome, RecoveredState, Root},
    memory_object::{
        Header, Log, NonzeroBitmap,
        header::PAGE,
        op::{self, Op},
        replay::State,
    },
    metadata::Table,
    namespace::Body,
    sessions::Credentials,
    space::Zeroing,
};

use super::dispatcher::{self, Bench, memory, regions};

/// Length of each of the two log segments. They are short so that inputs fill them.
const SEGMENT: usize = 32 << 10;
/// Length of the bitmap of nonzero memory, in front of the segments.
const BITMAP: usize = 4096;

/// Runs an input: the first page of an object.
pub(super) fn header(bytes: &[u8]) {
    let page = memory(PAGE);
    page.write(0, &bytes[..bytes.len().min(PAGE)]);
    let Ok((header, turn)) = Header::read(&page) else { return };
    // A header that was read can be written and read again.
    let next = Header { starts: header.starts.wrapping_add(1), ..header };
    next.write(&page, Some(turn));
    assert_eq!(Header::read(&page).ok().map(|(header, _)| header), Some(next));
}

/// Runs an input: both segments, preceded by a two-byte length of the first segment.
pub(super) fn log(bytes: &[u8]) {
    start_on_log(bytes);
}

fn start_on_log(bytes: &[u8]) -> u64 {
    let [low, high, bytes @ ..] = bytes else { return 0 };
    let (first, second) = bytes.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len()));
    let log = memory(BITMAP + 2 * SEGMENT);
    for (place, bytes) in [first, second].into_iter().enumerate() {
        log.write(BITMAP + place * SEGMENT, &bytes[..bytes.len().min(SEGMENT)]);
    }
    start_servers(&log)
}

/// Runs an input: whole transactions.
pub(super) fn transactions(bytes: &[u8]) {
    start_on_transactions(bytes);
}

fn start_on_transactions(bytes: &[u8]) -> u64 {
    start_servers(&log_with(bytes))
}

/// Writes the transactions to a log and returns its memory.
fn log_with(mut bytes: &[u8]) -> Arc<Memory> {
    let memory = memory(BITMAP + 2 * SEGMENT);
    let log = Log::new(Arc::clone(&memory), BITMAP, SEGMENT);
    while let [how, low, high, rest @ ..] = bytes {
        let (ops, rest) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
        bytes = rest;
        // A transaction that does not fit is not logged.
        let _ = match how % 4 {
            0 => log.describe(ops),
            1 => log.append(ops),
            2 => log.complete(),
            _ => {
                log.exchange();
                Ok(())
            }
        };
    }
    memory
}

/// Starts three servers after one another on a log. Returns the number of servers that start.
fn start_servers(log: &Arc<Memory>) -> u64 {
    let (arena, table) = (memory(dispatcher::MEMORY), memory(dispatcher::INODES * record::LEN));
    let words = memory(checksum::region_len(dispatcher::MEMORY as u64) as usize);
    let all = Bytes::new(Arc::clone(&arena), Some(words));
    let servers = [(2, false), (3, false), (4, true)];
    for (starts, clean) in servers {
        let mut state = State::default();
        let opened = Log::open(Arc::clone(log), BITMAP, SEGMENT, |op: Op<'_>| state.apply(op));
        let Ok(opened) = opened else {
            assert_eq!(starts, 2, "the next server must be able to read a log that a server has taken over");
            return 0;
        };
        let records = Table::new(Arc::clone(&table));
        for (&ino, inode) in state.inodes.iter().filter(|(_, inode)| inode.slot < records.slots()) {
            let mut attr = inode.attr(ino);
            if let Body::File(map) = &inode.body {
                attr.size = map.kept_to();
            }
            if records.owner(inode.slot) != Some(ino) {
                records.publish_all(&attr, &inode.space());
            }
        }
        let dirt = Some(NonzeroBitmap::new(Arc::clone(log), 0));
        let kept = RecoveredState { log: Some(opened), state: Some(state), dirt, starts, clean };
        let root = Root { perm: 0o755, uid: 0, gid: 0 };
        let clock = Arc::new(ManualClock::new(0));
        let memory = (all.clone(), Arc::clone(&table));
        let Ok(made) = Dispatcher::kept(memory, Zeroing::Inline, root, clock, kept) else {
            return starts - 2;
        };
        let bench = Bench::of(made, Arc::clone(&arena), Arc::clone(&table));
        send_requests(&bench);
    }
    servers.len() as u64
}

/// Reconnects every other session of the previous server and ends the rest. Then requests many
/// inodes.
fn send_requests(bench: &Bench) {
    let all = bench.dispatcher();
    for (at, awaited) in all.previous_mounts().awaited().into_iter().enumerate() {
        match at % 2 {
            0 => {
                drop(all.attachments().resume(awaited.session, VERSION, regions(&bench.arena, &bench.table)))
            }
            _ => all.attachments().ended(awaited.session),
        }
    }
    let session = all.session_number(1);
    bench.begin(session);
    // A nearly full log has no space for a new session.
    bench.ask(session, attach(None), |_| {});
    for ino in ROOT_INO..ROOT_INO + 20 {
        for request in [
            Request::GetAttr { ino },
            Request::Open { ino, write: true },
            Request::ReadDir { ino, cookie: 0, max_entries: 50 },
        ] {
            // The reply comes now, or after the previous sessions acknowledge their recalls.
            bench.ask(session, request, |_: Reply| {});
        }
    }
    all.log_upkeep().before_is_over();
    // The log may have no space to be rewritten.
    let _ = all.log_upkeep().write_log_anew();
    all.attachments().ended(session);
    all.statfs();
}

fn attach(mount: Option<Identity>) -> Request<'static> {
    Request::Attach { version: VERSION, client: "", export: "", keeps: true, alone: false, mount }
}

/// Creates the log of a server that has worked: names, and a mount with an open and locked file.
fn made() -> Arc<Memory> {
    let (log, table) = (memory(BITMAP + 2 * SEGMENT), memory(dispatcher::INODES * record::LEN));
    let arena = memory(dispatcher::MEMORY);
    let kept = RecoveredState {
        log: Some(Log::new(Arc::clone(&log), BITMAP, SEGMENT)),
        state: None,
        dirt: Some(NonzeroBitmap::new(Arc::clone(&log), 0)),
        starts: 1,
        clean: true,
    };
    let root = Root { perm: 0o755, uid: 0, gid: 0 };
    let clock = Arc::new(ManualClock::new(0));
    let memory = (Bytes::new(Arc::clone(&arena), None), Arc::clone(&table));
    let made = Dispatcher::kept(memory, Zeroing::Inline, root, clock, kept);
    let bench = Bench::of(made.unwrap_or_else(|e| panic!("a new one: {e}")), arena, table);
    let session = bench.dispatcher().session_number(1);
    let credentials = Credentials { key: None, rights: AccessMode::Write };
    bench.dispatcher().attachments().began_as(session, regions(&bench.arena, &bench.table), credentials);
    let mut sequence = 0;
    let mut once = |request| {
        sequence += 1;
        let outcome = bench.dispatcher().handle_once(session, (0, sequence), request);
        assert!(matches!(&outcome, Outcome::Now(reply) if !matches!(reply, Reply::Error(_))), "{outcome:?}");
    };
    bench.ask(session, attach(Some(Identity([7; 16]))), |_| {});
    let (parent, uid, gid) = (ROOT_INO, 0, 0);
    once(Request::Create { parent, name: b"file", perm: 0o644, umask: 0, uid, gid, exclusive: true });
    once(Request::Allocate { ino: 2, offset: 0, len: 5000 });
    once(Request::Mkdir { parent, name: b"sub", perm: 0o755, umask: 0, uid, gid });
    once(Request::Link { ino: 2, parent: 3, name: b"other" });
    let (value, how) = (&b"value"[..], XattrSet::Any);
    once(Request::SetXattr {
        ino: 2,
        name: b"user.name",
        value,
        how,
        continued: false,
        drop_sgid: false,
        only_if: None,
    });
    let (class, range) = (LockClass::Record, LockRange { first: 5, last: 9 });
    let lock =
        Request::Lock { ino: 2, owner: 1, pid: 1, class, kind: LockKind::Exclusive, range, ticket: None };
    once(lock);
    let changes = SetAttr { size: Some(10), ..SetAttr::default() };
    once(Request::SetAttr { ino: 2, changes });
    once(Request::Unlink { parent, name: b"file" });
    log
}

/// Returns both segments without their trailing zeros.
fn segments(log: &Memory) -> [Vec<u8>; 2] {
    [0, 1].map(|place| {
        let mut bytes = vec![0; SEGMENT];
        log.read(BITMAP + place * SEGMENT, &mut bytes);
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(used.next_multiple_of(8));
        bytes
    })
}

/// Returns whole header pages.
pub(super) fn header_seeds() -> Vec<Vec<u8>> {
    use rfs_server::memory_object::Shape;
    let page = memory(PAGE);
    let shape = Shape { arena: 1 << 20, inodes: 64, checked: true };
    let header = Header { shape, segment: 4096, identity: 5, knows_sessions: true, starts: 1, clean: false };
    let turn = header.write(&page, None);
    Header { clean: true, ..header }.write(&page, Some(turn));
    let mut bytes = vec![0; PAGE];
    page.read(0, &mut bytes);
    // The second copy of the header begins in the middle of the page.
    vec![bytes[..128].to_vec(), bytes[..PAGE / 2 + 128].to_vec()]
}

/// Returns a whole log.
pub(super) fn log_seeds() -> Vec<Vec<u8>> {
    let [first, second] = segments(&log_with(&transactions_seed()));
    let len = (first.len() as u16).to_le_bytes();
    vec![[&len[..], &first, &second].concat()]
}

/// Returns the transactions of that log.
pub(super) fn transactions_seeds() -> Vec<Vec<u8>> {
    vec![transactions_seed()]
}

fn transactions_seed() -> Vec<u8> {
    const BEGIN: usize = 24;
    let ([first, second], mut seed) = (segments(&made()), Vec::new());
    let newest = if second.len() > first.len() { second } else { first };
    let mut rest = &newest[BEGIN..];
    while let Some((front, behind)) = rest.split_first_chunk::<16>().filter(|(front, _)| **front != [0; 16]) {
        let len = u64::from_le_bytes(std::array::from_fn(|at| front[8 + at])) as usize;
        let Some(ops) = behind.get(..len) else { break };
        rest = &behind[len.next_multiple_of(8).min(behind.len())..];
        // Skip the empty descriptions that the log has for parts of tables without entries.
        if ops.is_empty() {
            continue;
        }
        let is_complete = op::decode(ops).any(|op| matches!(op, Ok(Op::Complete)));
        seed.push(if is_complete { 2 } else { 1 });
        seed.extend((len as u16).to_le_bytes());
        seed.extend(ops);
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers would refuse mutations of a bad seed early.
    #[test]
    fn three_servers_start_with_each_seed() {
        assert_eq!(log_seeds().iter().map(|seed| start_on_log(seed)).collect::<Vec<_>>(), [3]);
        assert_eq!(
            transactions_seeds().iter().map(|seed| start_on_transactions(seed)).collect::<Vec<_>>(),
            [3]
        );
    }
}
