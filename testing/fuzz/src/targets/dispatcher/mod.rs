//! Fuzzes the server's dispatcher with the requests of three sessions.
//!
//! An input is a list of messages. A message has a byte for its session and two bytes for its
//! length. At the end all sessions end and all files are removed. Then the free space must equal
//! the initial free space, and every block must match its checksum.

mod seeds;

use std::sync::{Arc, Mutex, PoisonError};

use rdmabox::Memory;
use rfs_proto::{
    DirPage, FileKind, MAX_MESSAGE, MAX_NAME, ROOT_INO, RegionRef, Reply, Request, StatFs, VERSION, checksum,
    decode_reply, decode_request, encode_reply, record,
};
use rfs_server::{
    alloc::Range,
    bytes::Bytes,
    clock::ManualClock,
    dispatch::{Dispatcher, Outcome, Root, Sender},
    sessions::Regions,
    space::{Space, Zeroing},
};

pub(super) use seeds::requests_seeds;

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
        self.dispatcher.attachments().began(session, regions(&self.arena, &self.table));
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
            Outcome::Deferred(held) => {
                self.dispatcher.redeem(held, Sender::new(later));
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
        (1..=SESSIONS).for_each(|session| self.dispatcher.attachments().ended(session));
        self.attach(TIDY, false);
        self.empty(ROOT_INO, 0);
        self.dispatcher.attachments().ended(TIDY);
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
