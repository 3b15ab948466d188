//! Fuzzes the server's dispatcher with the requests of three sessions.
//!
//! An input is a list of messages. A message has a byte for its session and two bytes for its
//! length. At the end all sessions end and all files are removed. Then the free space must equal
//! the initial free space, and every block must match its checksum.

use std::sync::{Arc, Mutex, PoisonError};

use rdmabox::Memory;
use rfs_proto::{
    DirPage, FallocateFlags, FileKind, Growth, LockClass, LockKind, LockRange, MAX_MESSAGE, MAX_NAME, Owner,
    ROOT_INO, RegionRef, RenameFlags, Reply, Request, SetAttr, StatFs, VERSION, XattrSet, checksum,
    decode_reply, decode_request, encode_reply, encode_request, record,
};
use rfs_server::{
    alloc::Range,
    bytes::Bytes,
    clock::ManualClock,
    dispatch::{Dispatcher, Outcome, Root, Sender},
    sessions::Regions,
    space::{Space, Zeroing},
};

pub(super) const MEMORY: usize = 1 << 20;
pub(super) const INODES: usize = 64;
/// Number of sessions of an input. The last session has not attached.
const SESSIONS: u64 = 3;
/// The session that removes all files at the end.
const TIDY: u64 = 9;

pub(super) fn memory(len: usize) -> Arc<Memory> {
    Memory::private(len).map(Arc::new).unwrap_or_else(|e| panic!("no memory: {e}"))
}

/// A dispatcher with its own memory, created for each input.
pub(super) struct Bench {
    dispatcher: Dispatcher,
    pub(super) arena: Arc<Memory>,
    pub(super) table: Arc<Memory>,
}

/// Returns the regions with fixed keys: 1 for the arena, 2 for the table.
pub(super) fn regions(arena: &Memory, table: &Memory) -> Regions {
    let region = |memory: &Memory, rkey| RegionRef { addr: memory.addr(), len: memory.len() as u64, rkey };
    Regions { arena: region(arena, 1), table: region(table, 2), sums: None }
}

impl Bench {
    /// Creates an empty file system.
    pub(super) fn new() -> Bench {
        let arena = memory(MEMORY);
        Bench::over(Arc::clone(&arena).into(), arena)
    }

    fn over(bytes: Bytes, arena: Arc<Memory>) -> Bench {
        let table = memory(INODES * record::LEN);
        let space = Arc::new(Space::new(bytes, Zeroing::Inline));
        let root = Root { perm: 0o755, uid: 0, gid: 0 };
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
        let dispatcher = Dispatcher::new(space, Arc::clone(&table), root, clock);
        let dispatcher = dispatcher.unwrap_or_else(|e| panic!("no room for the root: {e}"));
        Bench::of(dispatcher, arena, table)
    }

    /// Wraps an existing dispatcher.
    pub(super) fn of(dispatcher: Dispatcher, arena: Arc<Memory>, table: Arc<Memory>) -> Bench {
        Bench { dispatcher, arena, table }
    }

    /// Returns the dispatcher.
    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Begins a session, which may then attach.
    pub(super) fn begin(&self, session: u64) {
        self.dispatcher.session_began(session, regions(&self.arena, &self.table));
    }

    /// Returns the reply to a request. If the reply is deferred, returns `None` and calls `later`
    /// with the reply.
    pub(super) fn ask(
        &self,
        session: u64,
        request: Request<'_>,
        later: impl FnOnce(Reply) + Send + 'static,
    ) -> Option<Reply> {
        match self.dispatcher.handle(session, request) {
            Outcome::Now(reply) => Some(reply),
            Outcome::Later(promise) => {
                self.dispatcher.redeem(promise, Sender::new(later));
                None
            }
        }
    }

    /// Begins a session and attaches it.
    pub(super) fn attach(&self, session: u64, keeps: bool) {
        self.begin(session);
        let attach = Request::Attach {
            version: VERSION,
            client: "fuzz",
            export: "",
            keeps,
            alone: false,
            mount: None,
        };
        let reply = self.ask(session, attach, |_| {});
        assert!(matches!(reply, Some(Reply::Attached(_))), "{reply:?}");
    }

    /// Ends all sessions and removes all files. Asserts that the statistics then equal `free`.
    fn tidy(&self, free: StatFs) {
        (1..=SESSIONS).for_each(|session| self.dispatcher.session_ended(session));
        self.attach(TIDY, false);
        self.empty(ROOT_INO, 0);
        self.dispatcher.session_ended(TIDY);
        assert_eq!(self.dispatcher.statfs(), free, "everything has been removed");
        assert_eq!(self.dispatcher.stats().sessions, 0);
    }

    fn empty(&self, directory: u64, depth: usize) {
        assert!(depth <= INODES, "directories in a circle");
        loop {
            let list = Request::ReadDir { ino: directory, cookie: 0, max_entries: 100 };
            let Some(Reply::Dir(DirPage { entries, end, .. })) = self.ask(TIDY, list, |_| {}) else {
                panic!("no listing of {directory}");
            };
            for entry in &entries {
                let (parent, name) = (directory, &entry.name[..]);
                assert!((1..=MAX_NAME).contains(&name.len()) && !name.contains(&0) && !name.contains(&b'/'));
                let remove = match entry.attr.kind {
                    FileKind::Directory => {
                        self.empty(entry.attr.ino, depth + 1);
                        Request::Rmdir { parent, name }
                    }
                    _ => Request::Unlink { parent, name },
                };
                assert_eq!(self.ask(TIDY, remove, |_| {}), Some(Reply::Done), "{name:?}");
            }
            if end || entries.is_empty() {
                return;
            }
        }
    }
}

/// Asserts that a reply fits into a message and decodes to itself.
fn check(reply: &Reply, bytes: &mut Vec<u8>) {
    encode_reply(reply, bytes);
    assert!(bytes.len() <= MAX_MESSAGE, "{} bytes: {reply:?}", bytes.len());
    assert_eq!(decode_reply(bytes).as_ref(), Ok(reply));
}

/// Runs an input.
pub(super) fn requests(mut bytes: &[u8]) {
    let arena = memory(MEMORY);
    let all = Bytes::new(Arc::clone(&arena), Some(memory(checksum::region_len(MEMORY as u64) as usize)));
    let bench = Bench::over(all.clone(), arena);
    let free = bench.dispatcher.statfs();
    bench.attach(1, true);
    bench.attach(2, false);
    bench.begin(SESSIONS);
    let (late, mut encoded) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    while let [session, low, high, rest @ ..] = bytes {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, rest) = rest.split_at(len);
        bytes = rest;
        // A message that does not decode ends its session in the server, which then sends no more.
        let Ok(request) = decode_request(message) else { continue };
        let late = Arc::clone(&late);
        let later = move |reply| late.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
        if let Some(reply) = bench.ask(1 + u64::from(*session) % SESSIONS, request, later) {
            check(&reply, &mut encoded);
        }
    }
    bench.tidy(free);
    assert_eq!(all.bad(Range { start: 0, len: all.len() }), [], "blocks that do not fit their checksums");
    for reply in &*late.lock().unwrap_or_else(PoisonError::into_inner) {
        check(reply, &mut encoded);
    }
}

/// Encodes a message of an input.
fn step(session: u8, request: Request<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    encode_request(&request, &mut message);
    let len = (message.len() as u16).to_le_bytes();
    [&[session][..], &len, &message].concat()
}

/// Returns inputs of honest sessions. The first created inode has number 2.
pub(super) fn requests_seeds() -> Vec<Vec<u8>> {
    let (uid, gid, umask, parent) = (0, 0, 0o022, ROOT_INO);
    let create = |name| Request::Create { parent, name, perm: 0o644, umask, uid, gid, exclusive: true };
    let mkdir = |name| Request::Mkdir { parent, name, perm: 0o755, umask, uid, gid };
    let allocate = |offset, len| Request::Allocate { ino: 2, offset, len };
    let lock = |kind, ticket| Request::Lock {
        ino: 2,
        owner: 7,
        class: LockClass::Record,
        kind,
        range: LockRange { first: 0, last: 99 },
        pid: 5,
        ticket,
    };
    let set = |value| Request::SetXattr {
        ino: 2,
        name: b"user.a",
        value,
        how: XattrSet::Any,
        continued: false,
        drop_sgid: false,
        only_if: None,
    };
    let space = |offset, len, flags| Request::Fallocate { ino: 2, offset, len, flags };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let resize =
        |size| Request::SetAttr { ino: 2, changes: SetAttr { size: Some(size), ..SetAttr::default() } };
    let write = |offset, growth, data| {
        let check = checksum::check_data(data);
        Request::Write { ino: 2, offset, check, growth, data }
    };
    let rename = |new_name, flags, whiteout| Request::Rename {
        parent,
        name: b"a",
        new_parent: 3,
        new_name,
        flags,
        whiteout,
    };
    let of = |requests: &[(u8, Request<'_>)]| {
        requests.iter().flat_map(|(session, request)| step(*session, *request)).collect::<Vec<u8>>()
    };
    let (exclusive, unlock) = (LockKind::Exclusive, LockKind::Unlock);
    vec![
        of(&[
            (0, create(b"a")),
            (0, allocate(0, 10_000)),
            (0, resize(9000)),
            (1, Request::Lookup { parent, name: b"a" }),
            (1, Request::Open { ino: 2, write: true }),
            (1, Request::Layout { ino: 2, offset: 4096 }),
            (0, Request::Recalls { done: 0 }),
            (0, Request::Recalls { done: 1 }),
            (1, Request::Unlink { parent, name: b"a" }),
            (0, Request::Close { ino: 2 }),
            (1, Request::Close { ino: 2 }),
        ]),
        of(&[
            (0, create(b"a")),
            (0, space(0, 300_000, FallocateFlags::empty())),
            (0, space(8192, 50_000, punch)),
            (0, space(0, 4096, FallocateFlags::ZERO_RANGE)),
            (1, create(b"b")),
            (1, Request::Open { ino: 2, write: false }),
            (1, Request::Copy { from: 2, from_offset: 0, to: 3, to_offset: 0, len: 100_000 }),
            (0, resize(5)),
            (0, Request::StatFs),
        ]),
        of(&[
            (0, create(b"a")),
            (0, write(4000, Growth::Stay, &[7; 900])),
            (0, write(0, Growth::Reach, &[8; 100])),
            (0, write(100, Growth::From(100), &[9; 400])),
            (0, space(50, 5000, punch)),
            (0, resize(7000)),
            (1, Request::Open { ino: 2, write: true }),
            (1, write(7000, Growth::From(7000), &[1])),
            (0, write(0, Growth::Reach, &[])),
            (1, Request::Verify { ino: 0, offset: 0 }),
            (0, Request::Verify { ino: 2, offset: 4096 }),
        ]),
        of(&[
            (0, create(b"a")),
            (1, Request::Open { ino: 2, write: true }),
            (1, Request::Grants),
            (0, lock(exclusive, None)),
            (1, lock(exclusive, Some(3))),
            (1, Request::Insist { ticket: 3 }),
            (1, Request::StopWaiting { ticket: 3 }),
            (0, lock(unlock, None)),
        ]),
        of(&[
            (1, create(b"a")),
            (1, mkdir(b"d")),
            (1, Request::Link { ino: 2, parent: 3, name: b"c" }),
            (1, rename(b"b", RenameFlags::NOREPLACE, Some(Owner { uid, gid }))),
            (1, rename(b"c", RenameFlags::EXCHANGE, None)),
            (1, Request::Symlink { parent: 3, name: b"s", target: b"../a", uid, gid }),
            (1, Request::Readlink { ino: 5 }),
            (0, Request::ReadDir { ino: 3, cookie: 0, max_entries: 10 }),
            (0, Request::LookupAhead { parent: 3, name: b"c", max_entries: 10 }),
            (1, Request::Rmdir { parent, name: b"d" }),
            (1, Request::Mknod { parent, name: b"p", mode: 0o010_644, umask, rdev: 0, uid, gid }),
        ]),
        of(&[
            (1, create(b"a")),
            (1, set(b"value")),
            (1, Request::XattrPart { value: &[7; 200] }),
            (1, set(&[9; 100])),
            (0, Request::GetXattr { ino: 2, name: b"user.a", offset: 0 }),
            (0, Request::ListXattr { ino: 2, offset: 0 }),
            (1, Request::RemoveXattr { ino: 2, name: b"user.a", only_if: None }),
            (0, Request::Accessed { ino: 2, at: 5 }),
            (
                2,
                Request::Attach {
                    version: VERSION,
                    client: "late",
                    export: "",
                    keeps: false,
                    alone: true,
                    mount: None,
                },
            ),
            (0, Request::Stats),
        ]),
    ]
}
