//! Tests of the dispatcher with messages, without a network. [`Client`] plays the one-sided part
//! of a client.

mod coherence;
mod model;
mod requests;
mod sessions;

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use rdmabox::Memory;
use rfs_proto::{
    Attached, Attr, DirPage, Errno, FileKind, Identity, Layout, Marks, Opened, Owner, ROOT_INO, RegionRef,
    RenameFlags, Reply, Request, SetAttr, VERSION, XattrSet, decode_reply, decode_request, encode_reply,
    encode_request, record,
};

use super::{
    dispatcher::Dispatcher,
    persistence::recovery::{Damage, RecoveredState},
    state::{
        outcome::{Outcome, Sender},
        shards::SHARDS,
    },
    transaction::{call::Call, locked_inodes::Plan},
};
use crate::{
    metadata::{
        clock::{Clock, ManualClock},
        root::Root,
    },
    session::registry::Regions,
    space::account::{Space, Zeroing},
};

const B: u64 = rfs_proto::BLOCK;
const ROOT: Root = Root { perm: 0o755, uid: 1, gid: 2 };

struct Fixture {
    dispatcher: Dispatcher,
    arena: Arc<Memory>,
    table: Arc<Memory>,
    clock: Arc<ManualClock>,
}

fn fixture(blocks: u64, inodes: usize) -> Fixture {
    let arena = Arc::new(Memory::private((blocks * B) as usize).unwrap());
    let table = Arc::new(Memory::private(inodes * record::LEN).unwrap());
    let clock = Arc::new(ManualClock::new(1000));
    let space = Arc::new(Space::new(Arc::clone(&arena), Zeroing::Inline));
    let dispatcher =
        Dispatcher::new(space, Arc::clone(&table), ROOT, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    Fixture { dispatcher, arena, table, clock }
}

fn regions() -> Regions {
    Regions {
        arena: RegionRef { addr: 0x1000, len: 7, rkey: 1 },
        table: RegionRef { addr: 0x2000, len: 8, rkey: 2 },
        sums: None,
    }
}

impl Fixture {
    fn client(&self, id: u64) -> Client<'_> {
        self.attached(id, false)
    }

    fn attached(&self, id: u64, keeps: bool) -> Client<'_> {
        self.dispatcher.attachments().began(id, regions());
        let client = Client { fixture: self, id };
        let before = self.clock.peek();
        let attached = client.attach(keeps, false);
        // Other threads may have read the clock meanwhile: each read advances it by one.
        assert!(
            matches!(attached, Reply::Attached(Attached { arena, table, sums, now, session, read_only: false, resumed: false, .. })
            if (Regions { arena, table, sums }) == regions() && (before..self.clock.peek()).contains(&now) && session == id)
        );
        client
    }

    fn free_blocks(&self) -> u64 {
        self.dispatcher.statfs().blocks_free
    }

    fn free_inodes(&self) -> u64 {
        self.dispatcher.statfs().inodes_free
    }

    /// Checks that all free space is zero: no byte outside of the given layouts is set.
    fn assert_free_space_is_zero(&self, used: &[&Layout]) {
        let mut bytes = vec![0; self.arena.len()];
        self.arena.read(0, &mut bytes);
        for extent in used.iter().flat_map(|layout| &layout.extents) {
            bytes[extent.arena as usize..(extent.arena + extent.len) as usize].fill(0);
        }
        assert!(bytes.iter().all(|&byte| byte == 0), "old bytes in free space");
    }
}

struct Client<'a> {
    fixture: &'a Fixture,
    id: u64,
}

impl Client<'_> {
    fn attach(&self, keeps: bool, alone: bool) -> Reply {
        self.ask(Request::Attach { version: VERSION, client: "test", export: "", keeps, alone, mount: None })
    }

    /// Sends a request whose reply is immediate. Request and reply go through their codecs.
    fn ask(&self, request: Request<'_>) -> Reply {
        match self.handle(request) {
            Outcome::Now(reply) => recoded(&reply),
            Outcome::Deferred(_) => panic!("{request:?} is deferred"),
        }
    }

    /// Sends a request whose reply may be deferred.
    fn start(&self, request: Request<'_>) -> mpsc::Receiver<Reply> {
        let (sender, receiver) = mpsc::channel();
        match self.handle(request) {
            Outcome::Now(reply) => sender.send(recoded(&reply)).unwrap(),
            Outcome::Deferred(held) => {
                // The test may have dropped the receiver.
                let send = move |reply| drop(sender.send(recoded(&reply)));
                self.fixture.dispatcher.redeem(held, Sender::new(send));
            }
        }
        receiver
    }

    fn handle(&self, request: Request<'_>) -> Outcome {
        let mut bytes = Vec::new();
        encode_request(&request, &mut bytes);
        self.fixture.dispatcher.handle(self.id, decode_request(&bytes).unwrap())
    }

    fn error(&self, request: Request<'_>) -> Errno {
        match self.ask(request) {
            Reply::Error(errno) => errno,
            other => panic!("{request:?} did not fail: {other:?}"),
        }
    }

    fn done(&self, request: Request<'_>) {
        assert_eq!(self.ask(request), Reply::Done, "{request:?}");
    }

    fn attr(&self, request: Request<'_>) -> Attr {
        match self.ask(request) {
            Reply::Attr(attr) => {
                // The record agrees with the message.
                assert_eq!(self.record(&attr), Some(without_mark(attr)), "{request:?}");
                attr
            }
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn opened(&self, request: Request<'_>) -> Opened {
        match self.ask(request) {
            Reply::Opened(opened) => {
                assert_eq!(self.record(&opened.attr), Some(without_mark(opened.attr)), "{request:?}");
                opened
            }
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn layout(&self, request: Request<'_>) -> Layout {
        match self.ask(request) {
            Reply::Layout(layout) => layout,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn page(&self, ino: u64, cookie: u64, max_entries: u32) -> DirPage {
        match self.ask(Request::ReadDir { ino, cookie, max_entries }) {
            Reply::Dir(page) => page,
            other => panic!("{other:?}"),
        }
    }

    fn stat(&self, ino: u64) -> Attr {
        self.attr(Request::GetAttr { ino })
    }

    fn create(&self, name: &str) -> Opened {
        self.opened(create(ROOT_INO, name, true))
    }

    fn mkdir(&self, parent: u64, name: &str) -> Attr {
        self.attr(Request::Mkdir { parent, name: name.as_bytes(), perm: 0o755, umask: 0, uid: 5, gid: 6 })
    }

    fn allocate(&self, ino: u64, offset: u64, len: u64) -> Layout {
        self.layout(Request::Allocate { ino, offset, len })
    }

    fn truncate(&self, ino: u64, size: u64) -> Attr {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        self.attr(Request::SetAttr { ino, changes })
    }

    fn close(&self, ino: u64) {
        self.done(Request::Close { ino });
    }

    fn unlink(&self, name: &str) {
        self.done(Request::Unlink { parent: ROOT_INO, name: name.as_bytes() });
    }

    /// Writes one-sidedly into a layout, and then raises size and time as a client does.
    fn write(&self, attr: &Attr, layout: &Layout, offset: u64, data: &[u8], time: i64) {
        for (i, byte) in data.iter().enumerate() {
            let at = offset + i as u64;
            let extent = layout.extents.iter().find(|e| e.file <= at && at < e.file_end()).unwrap();
            self.fixture.arena.write((extent.arena + at - extent.file) as usize, &[*byte]);
        }
        let word = |field| self.fixture.table.atomic_u64(attr.slot as usize * record::LEN + field);
        word(record::SIZE).fetch_max(offset + data.len() as u64, Ordering::SeqCst);
        word(record::WRITE_TIME).store(time as u64, Ordering::SeqCst);
    }

    fn read(&self, layout: &Layout, offset: u64, len: u64) -> Vec<u8> {
        let byte = |at: u64| {
            let mut byte = [0];
            if let Some(extent) = layout.extents.iter().find(|e| e.file <= at && at < e.file_end()) {
                self.fixture.arena.read((extent.arena + at - extent.file) as usize, &mut byte);
            }
            byte[0]
        };
        (offset..offset + len).map(byte).collect()
    }

    /// Returns the attributes as a one-sided READ of the record finds them, without the mark that
    /// replies do not have.
    fn record(&self, attr: &Attr) -> Option<Attr> {
        self.whole_record(attr).map(|attr| Attr { marks: attr.marks - Marks::PAGES, ..attr })
    }

    /// Returns the attributes as a one-sided READ of the record finds them.
    fn whole_record(&self, attr: &Attr) -> Option<Attr> {
        let mut raw = [0; record::LEN];
        self.fixture.table.read(attr.slot as usize * record::LEN, &mut raw);
        record::decode(&raw, attr.ino, attr.slot)
    }
}

/// Returns attributes as the record has them.
fn without_mark(attr: Attr) -> Attr {
    Attr { marks: attr.marks - Marks::KEEP - Marks::SHARED, ..attr }
}

/// Encodes and decodes a reply.
fn recoded(reply: &Reply) -> Reply {
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    encode_reply(reply, &mut bytes);
    let decoded = decode_reply(&bytes).unwrap();
    encode_reply(&decoded, &mut again);
    assert_eq!(again, bytes);
    decoded
}

/// Makes the request that sets an extended attribute from the stored parts and `value`.
fn rest<'a>(ino: u64, name: &'a [u8], value: &'a [u8]) -> Request<'a> {
    let how = XattrSet::Any;
    Request::SetXattr { ino, name, value, how, continued: true, drop_sgid: false, only_if: None }
}

fn create(parent: u64, name: &str, exclusive: bool) -> Request<'_> {
    Request::Create { parent, name: name.as_bytes(), perm: 0o644, umask: 0, uid: 5, gid: 6, exclusive }
}

fn lookup(parent: u64, name: &str) -> Request<'_> {
    Request::Lookup { parent, name: name.as_bytes() }
}

fn rename<'a>(from: (u64, &'a str), to: (u64, &'a str), flags: RenameFlags) -> Request<'a> {
    Request::Rename {
        parent: from.0,
        name: from.1.as_bytes(),
        new_parent: to.0,
        new_name: to.1.as_bytes(),
        flags,
        whiteout: None,
        moved: None,
        replaced: None,
    }
}

/// RENAME_WHITEOUT of renameat2.
const WHITEOUT: u32 = 4;

/// Makes a rename with flags of renameat2. A whiteout belongs to user 7 and group 8.
fn rename_as<'a>(
    (parent, name): (u64, &'a str),
    (new_parent, new_name): (u64, &'a str),
    flags: u32,
) -> Request<'a> {
    let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
    let whiteout = (flags & WHITEOUT != 0).then_some(Owner { uid: 7, gid: 8 });
    let flags = RenameFlags::from_bits_retain(flags & !WHITEOUT);
    Request::Rename { parent, name, new_parent, new_name, flags, whiteout, moved: None, replaced: None }
}
