//! Several sessions change a few names at once. Afterwards the state is consistent, and sessions
//! that only read have valid caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicUsize,
    thread,
};

use rfs_proto::{FileKind, LockClass, LockKind, LockRange, Recall, XattrSet};

use super::*;
use crate::{
    dispatch::state::shards::{Reading, SHARDS, Writing, place},
    metadata::namespace::inode::Body,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The number of requests of each session that changes names.
const STEPS: usize = 1500;
const INODES: usize = 200;

/// A generator of random numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

/// A session with its own thread. While it waits for a reply, it acknowledges recalls.
struct Hand<'a> {
    client: Client<'a>,
    dice: Dice,
    recalls: mpsc::Receiver<Reply>,
    taken: u64,
    names: BTreeMap<(u64, Vec<u8>), Option<u64>>,
    attrs: BTreeMap<u64, Attr>,
    /// Inodes that the session has seen, and inodes that it has open.
    seen: Vec<u64>,
    open: Vec<u64>,
}

impl<'a> Hand<'a> {
    fn new(fixture: &'a Fixture, id: u64) -> Hand<'a> {
        let client = fixture.attached(id, true);
        let recalls = client.start(Request::Recalls { done: 0 });
        let (names, attrs) = (BTreeMap::new(), BTreeMap::new());
        let dice = Dice(id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Hand { client, dice, recalls, taken: 0, names, attrs, seen: vec![ROOT_INO], open: Vec::new() }
    }

    /// Takes a recall. Returns false if there is none.
    fn pump(&mut self) -> bool {
        let Ok(reply) = self.recalls.try_recv() else { return false };
        let Reply::Recalls(recalls) = reply else { panic!("{reply:?}") };
        self.taken += 1;
        assert_eq!(recalls.number, self.taken);
        for recall in recalls.recalls {
            if !matches!(recall, Recall::Layout { .. }) {
                recall.inode().map(|ino| self.attrs.remove(&ino));
            }
            match recall {
                Recall::Name { parent, name } => drop(self.names.remove(&(parent, name))),
                Recall::Names { ino } => self.names.retain(|(parent, _), _| *parent != ino),
                Recall::Unlinked { ino } => self.forget(ino),
                Recall::Attr { .. }
                | Recall::Pages { .. }
                | Recall::Owner { .. }
                | Recall::Layout { .. }
                | Recall::Written { .. }
                | Recall::Locks { .. } => {}
                Recall::All => panic!("only a restarted server recalls everything"),
            }
        }
        self.recalls = self.client.start(Request::Recalls { done: self.taken });
        true
    }

    /// Forgets an unlinked inode, or holds it until the end of the session.
    fn forget(&mut self, ino: u64) {
        if self.dice.roll(2) == 0 {
            self.client.done(Request::Forget { inos: &ino.to_le_bytes() });
        }
    }

    fn ask(&mut self, request: Request<'_>) -> Reply {
        let reply = self.client.start(request);
        loop {
            match reply.try_recv() {
                Ok(Reply::Unlinked(ino)) => {
                    self.forget(ino);
                    return Reply::Unlinked(ino);
                }
                Ok(Reply::Attr(attr)) => {
                    self.see(attr.ino);
                    return Reply::Attr(attr);
                }
                Ok(reply) => return reply,
                Err(_) => drop(
                    self.pump() || {
                        thread::yield_now();
                        true
                    },
                ),
            }
        }
    }

    fn see(&mut self, ino: u64) {
        if self.seen.len() > 12 {
            self.seen.remove(1);
        }
        self.seen.push(ino);
    }

    fn ino(&mut self) -> u64 {
        self.seen[self.dice.roll(self.seen.len())]
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.dice.roll(NAMES.len())]
    }

    /// Reads, and caches the result unless a recall came meanwhile.
    fn look(&mut self) {
        let (ino, name, taken) = (self.ino(), self.name(), self.taken);
        let kind = self.dice.roll(4);
        let reply = match kind {
            0 | 1 => self.ask(lookup(ino, name)),
            2 => self.ask(Request::GetAttr { ino }),
            _ => self.ask(Request::ReadDir { ino, cookie: 0, max_entries: 9 }),
        };
        let told: Vec<(Option<&[u8]>, Option<Attr>)> = match &reply {
            Reply::Attr(attr) => vec![((kind < 2).then_some(name.as_bytes()), Some(*attr))],
            Reply::Dir(page) => page.entries.iter().map(|e| (Some(&e.name[..]), Some(e.attr))).collect(),
            Reply::Error(Errno::ENOENT) => vec![(Some(name.as_bytes()), None)],
            _ => vec![],
        };
        for (name, attr) in told {
            if let Some(attr) = attr {
                self.see(attr.ino);
            }
            if self.taken != taken {
                continue;
            }
            if let Some(name) = name {
                self.names.insert((ino, name.to_vec()), attr.map(|attr| attr.ino));
            }
            if let Some(attr) = attr.filter(|attr| attr.marks.contains(Marks::KEEP)) {
                self.attrs.insert(attr.ino, without_mark(attr));
            }
        }
    }

    fn change(&mut self) {
        let (ino, other, name, new_name) = (self.ino(), self.ino(), self.name(), self.name());
        let (perm, umask, uid, gid) = (0o755, 0, 0, 0);
        let bytes = name.as_bytes();
        let opened = match self.dice.roll(16) {
            0 | 1 => self.ask(create(ino, name, self.client.id.is_multiple_of(2))),
            2 | 3 => self.ask(Request::Mkdir { parent: ino, name: bytes, perm, umask, uid, gid }),
            4 => self.ask(Request::Link { ino, parent: other, name: bytes }),
            5 | 6 => self.ask(Request::Unlink { parent: ino, name: bytes }),
            7 => self.ask(Request::Rmdir { parent: ino, name: bytes }),
            8..=10 => {
                let flags = [0, 0, 1, 2, WHITEOUT, WHITEOUT | 1][self.dice.roll(6)];
                self.ask(rename_as((ino, name), (other, new_name), flags))
            }
            11 => self.ask(Request::Open { ino, write: true }),
            12 => {
                let size = self.dice.roll(9) as u64 * 3000;
                self.ask(Request::SetAttr {
                    ino,
                    changes: SetAttr { size: Some(size), ..SetAttr::default() },
                })
            }
            13 => {
                let (value, how) = (&b"value"[..], XattrSet::Any);
                let (continued, drop_sgid) = (false, false);
                self.ask(Request::SetXattr {
                    ino,
                    name: b"user.x",
                    value,
                    how,
                    continued,
                    drop_sgid,
                    only_if: None,
                })
            }
            _ => self.ask(lookup(ino, name)),
        };
        if let Reply::Opened(opened) = opened {
            self.see(opened.attr.ino);
            self.open.push(opened.attr.ino);
        }
        self.use_open();
    }

    /// Uses a file that the session has open.
    fn use_open(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.dice.roll(self.open.len());
        let ino = self.open[at];
        let range = LockRange { first: 0, last: self.dice.roll(100) as u64 };
        let class = LockClass::Record;
        let len = 1 + self.dice.roll(5) as u64 * B;
        let reply = match self.dice.roll(5) {
            0 | 1 => self.ask(Request::Allocate { ino, offset: 0, len }),
            2 => {
                let kind = LockKind::Exclusive;
                self.ask(Request::Lock { ino, owner: 1, class, kind, range, pid: 0, ticket: None })
            }
            3 => {
                let from = self.open[0];
                self.ask(Request::Copy { from, from_offset: 0, to: ino, to_offset: 0, len })
            }
            _ => {
                self.open.swap_remove(at);
                let reply = self.ask(Request::Close { ino });
                assert_eq!(reply, Reply::Done);
                reply
            }
        };
        assert_ne!(reply, Reply::Error(Errno::ESTALE), "what is open is there");
        assert_ne!(reply, Reply::Error(Errno::EBADF));
    }
}

/// Checks that the state is consistent, and that no session has a file open or caches anything.
fn check(fixture: &Fixture) {
    let store = &fixture.dispatcher.store;
    let mut inodes = BTreeMap::new();
    for at in 0..SHARDS {
        let shard = store.shards.lock::<Reading>(at);
        assert!(shard.open_files.is_empty() && shard.cache_holders.lock().is_empty(), "shard {at}");
        assert!(shard.orphans.is_empty(), "shard {at}");
        assert!(shard.inodes.keys().all(|&ino| place(ino) == at));
        inodes.extend(shard.inodes.iter().map(|(&ino, inode)| (ino, inode.clone())));
    }
    let mut names: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let (mut space, mut xattrs, mut slots) = (0, 0, BTreeSet::new());
    for (&ino, inode) in &inodes {
        assert!(slots.insert(inode.slot), "slot {} twice", inode.slot);
        xattrs += inode.xattr_bytes();
        match &inode.body {
            Body::Directory(directory) => {
                let children = directory.after(0).map(|(_, _, child)| child);
                children.for_each(|child| names.entry(child).or_default().push(ino));
            }
            Body::File(map) => space += map.allocated(),
            _ => {}
        }
    }
    let is_directory = |ino: &u64| inodes[ino].is_directory();
    for (&ino, inode) in &inodes {
        let parents = names.get(&ino).map_or(&[][..], Vec::as_slice);
        if let Some(directory) = inode.directory() {
            let expected = if ino == ROOT_INO { &[][..] } else { &[directory.parent][..] };
            assert_eq!(parents, expected, "{ino} is in one directory, and says which");
            let below = directory.after(0).filter(|(_, _, child)| is_directory(child)).count();
            assert_eq!(inode.nlink as usize, 2 + below, "{ino}");
            // The ancestors lead to the root, so there is no cycle.
            let mut at = ino;
            for _ in 0..inodes.len() {
                at = inodes[&at].directory().unwrap().parent;
            }
            assert_eq!(at, ROOT_INO, "{ino}");
        } else {
            assert_eq!((inode.nlink as usize, parents.is_empty()), (parents.len(), false), "{ino}");
        }
    }
    assert!(names.keys().all(|ino| inodes.contains_key(ino)), "a name of nothing");
    let totals = store.space.totals();
    assert_eq!((totals.quarantined, totals.available() + space), (0, totals.len));
    assert_eq!(fixture.free_inodes(), (INODES - inodes.len()) as u64);
    assert_eq!(store.xattrs.used(), xattrs);
    store.pending.locked(|state| assert!(state.recalls.is_empty() && state.held_replies.is_empty()));
    // The records agree with the inodes.
    let client = fixture.client(9999);
    assert!(inodes.keys().all(|&ino| client.stat(ino).ino == ino));
}

fn run(in_order_only: bool) {
    let mut fixture = fixture(64, INODES);
    if in_order_only {
        fixture.dispatcher.store.shards.lock_in_order_only();
    }
    let fixture = &fixture;
    let busy = AtomicUsize::new(3);
    thread::scope(|scope| {
        for id in 1..=3 {
            let busy = &busy;
            scope.spawn(move || {
                let mut hand = Hand::new(fixture, id);
                (0..STEPS).for_each(|_| hand.change());
                // The session ends with files open.
                fixture.dispatcher.attachments().ended(id);
                busy.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let looks = |id| {
            let mut hand = Hand::new(fixture, id);
            while busy.load(Ordering::SeqCst) > 0 {
                hand.look();
                hand.pump();
            }
            while hand.pump() {}
            hand
        };
        let lookers = [4, 5].map(|id| scope.spawn(move || looks(id)));
        let oracle = fixture.client(9998);
        for mut hand in lookers.map(|looker| looker.join().unwrap()) {
            while hand.pump() {}
            for ((parent, name), ino) in &hand.names {
                let found = match oracle.ask(Request::Lookup { parent: *parent, name }) {
                    Reply::Attr(attr) => Some(attr.ino),
                    _ => None,
                };
                assert_eq!(found, *ino, "{name:?} of {parent}");
            }
            for (&ino, attr) in &hand.attrs {
                assert_eq!(oracle.stat(ino), *attr);
            }
            fixture.dispatcher.attachments().ended(hand.client.id);
        }
        fixture.dispatcher.attachments().ended(9998);
    });
    check(fixture);
    let client = fixture.client(9997);
    assert_eq!(client.stat(ROOT_INO).kind, FileKind::Directory);
}

#[test]
fn concurrent_changes_leave_a_consistent_state() {
    run(false);
}

#[test]
fn concurrent_changes_leave_a_consistent_state_when_shards_are_locked_in_order() {
    run(true);
}

/// With a single lock for all inodes or for the namespace, this test would hang.
#[test]
fn a_request_does_not_wait_for_shards_that_it_does_not_need() {
    let fixture = &fixture(64, 64);
    let shards = &fixture.dispatcher.store.shards;
    let apart = (0..SHARDS).find(|at| (ROOT_INO..64).all(|ino| place(ino) != *at)).unwrap();
    let held = shards.lock::<Writing>(apart);
    let is_looked_at = shards.lock::<Reading>(place(ROOT_INO));
    let work = || {
        let client = fixture.client(1);
        assert!(client.page(ROOT_INO, 0, 10).entries.is_empty());
        assert_eq!(client.error(Request::Lookup { parent: ROOT_INO, name: b"none" }), Errno::ENOENT);
        client
    };
    let client = thread::scope(|scope| scope.spawn(work).join().unwrap());
    drop(is_looked_at);
    let change = || {
        let directory = client.mkdir(ROOT_INO, "directory");
        let file = client.create("file").attr;
        let layout = client.allocate(file.ino, 0, B);
        client.write(&file, &layout, 0, &[1; 10], 5);
        client.close(file.ino);
        assert_eq!(client.truncate(file.ino, 3).size, 3);
        client.done(Request::Rename {
            parent: ROOT_INO,
            name: b"file",
            new_parent: directory.ino,
            new_name: b"moved",
            flags: RenameFlags::default(),
            whiteout: None,
            moved: None,
            replaced: None,
        });
        assert_eq!(client.page(directory.ino, 0, 10).entries.len(), 1);
        assert_eq!(client.stat(file.ino).size, 3);
        assert!(file.ino.max(directory.ino) < 64);
    };
    thread::scope(|scope| scope.spawn(change).join().unwrap());
    drop(held);
}
