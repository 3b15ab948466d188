//! Eviction: which files go when space runs short or files are old, and which stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
};

use proptest::prelude::*;
use rfs_proto::{Recall, StoreAccess};

use super::*;
use crate::{
    dispatch::tests::model::{perform, step},
    space::{
        eviction::{Eviction, EvictionPolicy},
        lent::{LentMemory, StoreFailure},
    },
};

const PATIENCE: Duration = Duration::from_secs(2);
const LRU: EvictionPolicy = EvictionPolicy { by_use: true, ttl: None };
/// Memory of a store that is never looked at.
#[derive(Debug)]
struct NoMemory;

impl LentMemory for NoMemory {
    fn zero(&self, _: u16, _: u64, _: u64) -> Result<(), StoreFailure> {
        Ok(())
    }

    fn read(&self, _: u16, _: u64, out: &mut [u8]) -> Result<(), StoreFailure> {
        out.fill(0);
        Ok(())
    }

    fn write(&self, _: u16, _: u64, _: &[u8]) -> Result<(), StoreFailure> {
        Ok(())
    }

    fn admit(&self, _: u16, _: u64, _: bool) -> Option<StoreAccess> {
        None
    }

    fn is_admitted(&self, _: u64) -> bool {
        false
    }

    fn fence(&self, _: u64) -> bool {
        true
    }
}

/// An export of 100 blocks with a store of 400. Files are cut at multiples of ten blocks.
fn evicting_with_store() -> Fixture {
    let arena = Arc::new(Memory::private((100 * B) as usize).unwrap());
    let table = Arc::new(Memory::private(1000 * record::LEN).unwrap());
    let clock = Arc::new(ManualClock::new(1000));
    let own = Space::new(Arc::clone(&arena), Zeroing::Inline);
    let space = Arc::new(own.with_stores(Arc::new(NoMemory), [(1, 400 * B)], 10 * B).expect("a space"));
    let dispatcher =
        Dispatcher::new(space, Arc::clone(&table), ROOT, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    Fixture { dispatcher: dispatcher.with_eviction(LRU), arena, table, clock }
}

const PIN: &[u8] = b"user.rfs.pin";

fn evicting(blocks: u64, inodes: usize, policy: EvictionPolicy) -> Fixture {
    let Fixture { dispatcher, arena, table, clock } = fixture(blocks, inodes);
    Fixture { dispatcher: dispatcher.with_eviction(policy), arena, table, clock }
}

fn ttl(seconds: u64) -> EvictionPolicy {
    EvictionPolicy { by_use: false, ttl: Some(Duration::from_secs(seconds)) }
}

impl Fixture {
    fn evict(&self) -> Option<Duration> {
        self.dispatcher.evictions().run()
    }

    fn evicted(&self) -> (u64, u64) {
        let counts = self.dispatcher.eviction().expect("eviction").counts();
        (counts.evicted_files, counts.expired_files)
    }
}

impl Client<'_> {
    /// Makes a closed file of some blocks. Returns its inode.
    fn put(&self, parent: u64, name: &str, blocks: u64) -> u64 {
        let ino = self.opened(create(parent, name, true)).attr.ino;
        if blocks > 0 {
            self.allocate(ino, 0, blocks * B);
            let changes = SetAttr { size: Some(blocks * B), ..SetAttr::default() };
            self.attr(Request::SetAttr { ino, changes });
        }
        self.close(ino);
        ino
    }

    fn open(&self, ino: u64) {
        self.opened(Request::Open { ino, write: false });
    }

    fn names(&self, directory: u64) -> Vec<String> {
        let page = self.page(directory, 0, 1000);
        page.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
    }

    fn set_pin(&self, ino: u64) {
        let (how, drop_sgid) = (XattrSet::Any, false);
        let request = Request::SetXattr {
            ino,
            name: PIN,
            value: b"1",
            how,
            continued: false,
            drop_sgid,
            only_if: None,
        };
        self.done(request);
    }
}

#[test]
fn the_least_recently_used_files_go_from_the_high_mark_to_the_low_mark() {
    let fixture = evicting(100, 1000, LRU);
    let client = fixture.client(1);
    let files: Vec<u64> = (0..90).map(|at| client.put(ROOT_INO, &format!("f{at}"), 1)).collect();
    fixture.evict();
    assert_eq!(fixture.evicted(), (0, 0), "at the mark");
    client.open(files[0]);
    client.close(files[0]);
    client.put(ROOT_INO, "last", 1);
    fixture.evict();
    assert_eq!((fixture.evicted(), fixture.free_blocks()), ((6, 0), 15));
    let names = client.names(ROOT_INO);
    assert!(names.contains(&"f0".into()) && names.contains(&"f7".into()) && names.contains(&"last".into()));
    assert!((1..7).all(|at| !names.contains(&format!("f{at}"))), "{names:?}");
    assert_eq!(client.error(lookup(ROOT_INO, "f1")), Errno::ENOENT);
    fixture.assert_free_space_is_zero(&[]);
}

#[test]
fn a_file_that_any_session_has_open_stays() {
    let fixture = evicting(100, 1000, LRU);
    let (client, other) = (fixture.client(1), fixture.client(2));
    let held = client.put(ROOT_INO, "held", 40);
    other.open(held);
    let rest = client.put(ROOT_INO, "rest", 50);
    client.open(rest);
    client.put(ROOT_INO, "new", 5);
    fixture.evict();
    assert_eq!(client.names(ROOT_INO), ["held", "rest"], "all that may go");
    // The end of a session closes its files.
    fixture.dispatcher.attachments().ended(2);
    client.put(ROOT_INO, "newest", 3);
    fixture.evict();
    assert_eq!(client.names(ROOT_INO), ["rest", "newest"]);
}

#[test]
fn sessions_hear_of_evicted_names() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let directory = writer.mkdir(ROOT_INO, "d").ino;
    let ino = writer.put(directory, "old", 80);
    let waits = reader.start(Request::Recalls { done: 0 });
    reader.attr(lookup(directory, "old"));
    writer.put(ROOT_INO, "new", 12);
    assert!(waits.try_recv().is_err());
    fixture.evict();
    let Ok(Reply::Recalls(told)) = waits.try_recv() else { panic!("no recalls") };
    assert!(told.recalls.contains(&Recall::Name { parent: directory, name: b"old".into() }), "{told:?}");
    assert!(told.recalls.contains(&Recall::Unlinked { ino }), "{told:?}");
    assert_eq!(fixture.dispatcher.idle_inodes(), 1, "until the reader has forgotten it");
    // A writer gets the space nevertheless, and the reader finds no file any more.
    let big = writer.create("big");
    writer.allocate(big.attr.ino, 0, 70 * B);
    assert_eq!(reader.error(Request::Open { ino, write: false }), Errno::ESTALE);
}

/// A mount that is away keeps its session, because no request waits for the recalls of an eviction.
/// A request that makes a file of the same name waits for them.
#[test]
fn recalls_of_an_eviction_start_no_timeout() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let directory = writer.mkdir(ROOT_INO, "d").ino;
    writer.put(directory, "old", 80);
    let waits = reader.start(Request::Recalls { done: 0 });
    reader.attr(lookup(directory, "old"));
    writer.put(ROOT_INO, "new", 12);
    fixture.evict();
    assert!(matches!(waits.try_recv(), Ok(Reply::Recalls(_))));
    let timeout = Duration::from_secs(8);
    assert_eq!(fixture.dispatcher.recalls().deadline(timeout), None);
    let created = writer.start(create(directory, "old", true));
    assert!(created.try_recv().is_err(), "the reader may still use the old name");
    assert!(fixture.dispatcher.recalls().deadline(timeout).is_some());
}

/// The marks are those of the space that is handed out. Otherwise all files would go when a store
/// drains, because the low mark is never reached.
#[test]
fn a_store_that_drains_does_not_count() {
    let fixture = evicting_with_store();
    let client = fixture.client(1);
    for at in 0..8 {
        client.put(ROOT_INO, &format!("f{at}"), 20);
    }
    fixture.dispatcher.space().drain_store(1, true);
    fixture.evict();
    assert_eq!(fixture.evicted(), (0, 0), "80 of 100 blocks are in use");
    client.put(ROOT_INO, "more", 11);
    fixture.evict();
    assert_eq!((fixture.evicted(), fixture.free_blocks()), ((1, 0), 19));
}

/// Files whose space is not handed out again stay when space is short.
#[test]
fn files_in_a_store_that_drains_stay() {
    let fixture = evicting_with_store();
    let client = fixture.client(1);
    let resize = |ino, size| {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        client.attr(Request::SetAttr { ino, changes });
    };
    // The second piece of a file is in the store.
    let files: Vec<u64> = (0..30)
        .map(|at| {
            let ino = client.opened(create(ROOT_INO, &format!("f{at}"), true)).attr.ino;
            client.allocate(ino, 10 * B, 10 * B);
            resize(ino, 20 * B);
            ino
        })
        .collect();
    let held: Vec<u64> = (0..9)
        .map(|at| {
            let ino = client.opened(create(ROOT_INO, &format!("held{at}"), true)).attr.ino;
            client.allocate(ino, 0, 10 * B);
            resize(ino, 10 * B);
            ino
        })
        .collect();
    files.into_iter().for_each(|ino| client.close(ino));
    fixture.dispatcher.space().drain_store(1, true);
    client.allocate(held[0], 10 * B, 9 * B);
    resize(held[0], 19 * B);
    fixture.evict();
    assert_eq!(client.error(Request::Allocate { ino: held[0], offset: 20 * B, len: 50 * B }), Errno::ENOSPC);
    assert_eq!((fixture.evicted(), client.names(ROOT_INO).len()), ((0, 0), 39));
    // A file that frees space goes, although it comes last.
    client.close(held[1]);
    fixture.evict();
    assert_eq!((fixture.evicted(), client.names(ROOT_INO).len()), ((1, 0), 38));
}

#[test]
fn a_request_that_finds_no_space_evicts_as_much_as_it_needs() {
    let fixture = evicting(100, 1000, LRU);
    let client = fixture.client(1);
    for at in 0..9 {
        client.put(ROOT_INO, &format!("f{at}"), 10);
    }
    let big = client.create("big").attr.ino;
    client.allocate(big, 0, 35 * B);
    let names = client.names(ROOT_INO);
    assert_eq!(names, ["f3", "f4", "f5", "f6", "f7", "f8", "big"], "25 blocks were missing");
    // No eviction would suffice for this request, so none is made.
    assert_eq!(client.error(Request::Allocate { ino: big, offset: 0, len: 101 * B }), Errno::ENOSPC);
    assert_eq!(client.names(ROOT_INO).len(), 7);
    let counts = fixture.dispatcher.eviction().unwrap().counts();
    assert_eq!((counts.waits, counts.failures, counts.evicted_bytes), (2, 1, 30 * B));
    // An open file is never evicted for another one.
    client.allocate(big, 0, 99 * B);
    assert_eq!(client.names(ROOT_INO), ["big"]);
    let second = client.create("second").attr.ino;
    assert_eq!(client.error(Request::Allocate { ino: second, offset: 0, len: 2 * B }), Errno::ENOSPC);
}

/// Space that a truncation freed is quarantined until the other session has let go of it. A request
/// waits for it, and evicts nothing more.
#[test]
fn a_request_waits_for_space_in_quarantine() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let directory = writer.mkdir(ROOT_INO, "d").ino;
    writer.put(directory, "kept", 10);
    let ino = writer.put(directory, "shared", 70);
    writer.opened(Request::Open { ino, write: true });
    reader.open(ino);
    let waits = reader.start(Request::Recalls { done: 0 });
    let changes = SetAttr { size: Some(0), ..SetAttr::default() };
    let truncated = writer.start(Request::SetAttr { ino, changes });
    let Ok(Reply::Recalls(told)) = waits.try_recv() else { panic!("no recalls") };
    let new = writer.create("new").attr.ino;
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            drop(reader.start(Request::Recalls { done: told.number }));
        });
        writer.allocate(new, 0, 60 * B);
    });
    assert!(truncated.try_recv().is_ok());
    let counts = fixture.dispatcher.eviction().unwrap().counts();
    assert_eq!((counts.waits, counts.failures, counts.evicted_files), (1, 0, 0));
    assert_eq!(writer.names(directory), ["kept", "shared"]);
}

/// A request that waits for quarantined space holds up no request of another export, and a request
/// that can never be met does not wait. Beside the one that waits, a request evicts more files.
#[test]
fn one_request_of_the_process_waits_for_quarantine() {
    let fixture = evicting(100, 1000, LRU);
    let (writer, reader) = (fixture.client(1), fixture.attached(2, true));
    let ino = writer.put(ROOT_INO, "shared", 40);
    for at in 0..5 {
        writer.put(ROOT_INO, &format!("f{at}"), 10);
    }
    writer.opened(Request::Open { ino, write: true });
    reader.open(ino);
    let _waits = reader.start(Request::Recalls { done: 0 });
    let changes = SetAttr { size: Some(0), ..SetAttr::default() };
    let _truncated = writer.start(Request::SetAttr { ino, changes });
    let new = writer.create("new").attr.ino;
    let start = Instant::now();
    assert_eq!(writer.error(Request::Allocate { ino: new, offset: 0, len: 101 * B }), Errno::ENOSPC);
    assert!(start.elapsed() < PATIENCE / 2, "it waited in vain: {:?}", start.elapsed());
    let other_export = Eviction::try_wait().expect("no request waits");
    writer.allocate(new, 0, 30 * B);
    let counts = fixture.dispatcher.eviction().unwrap().counts();
    assert_eq!((counts.evicted_files, counts.failures), (2, 1), "10 blocks were free");
    assert!(start.elapsed() < PATIENCE / 2);
    drop(other_export);
}

/// A mount with exclusive use would keep names of evicted files after a restart of the server.
#[test]
fn no_session_has_an_export_with_eviction_alone() {
    for policy in [LRU, ttl(10)] {
        let fixture = evicting(16, 8, policy);
        let client = Client { fixture: &fixture, id: 1 };
        fixture.dispatcher.attachments().began(1, regions());
        assert_eq!(client.attach(true, true), Reply::Error(Errno::EOPNOTSUPP));
        assert!(matches!(client.attach(true, false), Reply::Attached(_)));
    }
}

/// Detects a file without a name that finds no inode although a file may go. Detects one that stays
/// forever although it has a name now, and is closed.
#[test]
fn a_file_made_without_a_name_counts_as_others() {
    let fixture = evicting(100, 11, LRU);
    let client = fixture.client(1);
    for at in 0..10 {
        client.put(ROOT_INO, &format!("f{at}"), 0);
    }
    assert_eq!(fixture.free_inodes(), 0);
    let request = Request::Tmpfile { parent: ROOT_INO, perm: 0o600, umask: 0, uid: 5, gid: 6 };
    let ino = client.opened(request).attr.ino;
    assert!(!client.names(ROOT_INO).contains(&"f0".into()));
    client.attr(Request::Link { ino, parent: ROOT_INO, name: b"named" });
    for at in 0..20 {
        client.put(ROOT_INO, &format!("g{at}"), 0);
    }
    assert!(client.names(ROOT_INO).contains(&"named".into()), "it is open");
    client.close(ino);
    for at in 0..20 {
        client.put(ROOT_INO, &format!("h{at}"), 0);
    }
    assert!(!client.names(ROOT_INO).contains(&"named".into()));
}

#[test]
fn inodes_run_short_as_space_does() {
    let fixture = evicting(100, 11, LRU);
    let client = fixture.client(1);
    for at in 0..10 {
        client.put(ROOT_INO, &format!("f{at}"), 0);
    }
    assert_eq!(fixture.free_inodes(), 0);
    client.put(ROOT_INO, "more", 0);
    assert!(!client.names(ROOT_INO).contains(&"f0".into()));
    client.mkdir(ROOT_INO, "d");
    fixture.evict();
    assert_eq!((fixture.free_inodes(), client.names(ROOT_INO).len()), (2, 8));
    // Directories, links and device nodes never go.
    for at in 0..7 {
        client.mkdir(ROOT_INO, &format!("d{at}"));
    }
    assert_eq!(client.names(ROOT_INO).len(), 10);
    client.mkdir(ROOT_INO, "d7");
    client.mkdir(ROOT_INO, "d8");
    let full = Request::Mkdir { parent: ROOT_INO, name: b"d9", perm: 0, umask: 0, uid: 0, gid: 0 };
    assert_eq!(client.error(full), Errno::ENOSPC);
}

#[test]
fn pinned_directories_and_files_stay() {
    let fixture = evicting(100, 1000, LRU);
    let client = fixture.client(1);
    let top = client.mkdir(ROOT_INO, "top").ino;
    let below = client.mkdir(top, "below").ino;
    client.put(below, "kept", 30);
    let file = client.put(ROOT_INO, "file", 30);
    client.put(ROOT_INO, "loose", 10);
    client.set_pin(top);
    client.set_pin(file);
    client.put(ROOT_INO, "new", 25);
    fixture.evict();
    assert_eq!(client.names(ROOT_INO), ["top", "file", "new"]);
    assert_eq!(client.names(below), ["kept"]);
    // The directory below leaves the pinned one.
    client.done(rename((top, "below"), (ROOT_INO, "below"), RenameFlags::empty()));
    let new = client.attr(lookup(ROOT_INO, "new")).ino;
    client.open(new);
    client.close(new);
    client.put(ROOT_INO, "more", 14);
    fixture.evict();
    assert_eq!((client.names(below).len(), client.names(ROOT_INO).len()), (0, 5));
    client.done(Request::RemoveXattr { ino: file, name: PIN, only_if: None });
    client.put(ROOT_INO, "last", 30);
    fixture.evict();
    assert!(!client.names(ROOT_INO).contains(&"file".into()));
}

#[test]
fn a_file_with_several_names_goes_with_all_of_them() {
    let fixture = evicting(100, 1000, LRU);
    let client = fixture.client(1);
    let directory = client.mkdir(ROOT_INO, "d").ino;
    let ino = client.put(ROOT_INO, "a", 50);
    client.attr(Request::Link { ino, parent: directory, name: b"b" });
    client.attr(Request::Link { ino, parent: ROOT_INO, name: b"c" });
    client.unlink("c");
    client.put(ROOT_INO, "new", 45);
    fixture.evict();
    assert_eq!((client.names(directory), client.names(ROOT_INO)), (vec![], vec!["d".into(), "new".into()]));
    assert_eq!((fixture.evicted(), fixture.free_blocks()), ((1, 0), 55));
}

#[test]
fn files_expire_after_their_last_change() {
    let fixture = evicting(100, 1000, ttl(10));
    let client = fixture.client(1);
    let second = 1_000_000_000;
    fixture.clock.set(100 * second);
    client.put(ROOT_INO, "a", 1);
    let b = client.put(ROOT_INO, "b", 1);
    let c = client.put(ROOT_INO, "c", 1);
    fixture.clock.set(105 * second);
    // A change counts, a use does not.
    client.attr(Request::SetAttr { ino: b, changes: SetAttr { perm: Some(0o600), ..SetAttr::default() } });
    client.open(c);
    fixture.clock.set(109 * second);
    let pause = fixture.evict().expect("files expire");
    assert!((999..=1000).contains(&pause.as_millis()), "{pause:?}");
    fixture.clock.set(110 * second - 1_000_000);
    assert_eq!(fixture.evict(), Some(Duration::from_millis(100)), "the evictor never spins");
    fixture.clock.set(111 * second);
    fixture.evict();
    assert_eq!(client.names(ROOT_INO), ["b", "c"], "c is open");
    client.close(c);
    fixture.evict();
    assert_eq!((client.names(ROOT_INO), fixture.evicted()), (vec!["b".into()], (0, 2)));
    // Without evict=lru, no file goes before its time.
    let ino = client.create("full").attr.ino;
    client.allocate(ino, 0, 99 * B);
    assert_eq!(client.error(Request::Allocate { ino, offset: 0, len: 100 * B }), Errno::ENOSPC);
    fixture.clock.set(116 * second);
    fixture.evict();
    assert_eq!(client.names(ROOT_INO), ["full"]);
}

#[test]
fn files_from_before_the_start_are_ordered_by_their_times() {
    let Fixture { dispatcher, arena, table, clock } = {
        let fixture = fixture(100, 1000);
        let client = fixture.client(1);
        let directory = client.mkdir(ROOT_INO, "d").ino;
        let pinned = client.mkdir(ROOT_INO, "p").ino;
        client.set_pin(pinned);
        client.put(pinned, "kept", 5);
        let read = client.put(directory, "read", 30);
        client.put(ROOT_INO, "old", 30);
        client.put(directory, "new", 5);
        client.done(Request::Accessed { ino: read, at: fixture.clock.now() });
        let held = client.put(ROOT_INO, "held", 10);
        client.open(held);
        fixture
    };
    let fixture = Fixture { dispatcher: dispatcher.with_eviction(LRU), arena, table, clock };
    let client = Client { fixture: &fixture, id: 1 };
    client.put(ROOT_INO, "last", 11);
    fixture.evict();
    assert_eq!(client.names(ROOT_INO), ["d", "p", "held", "last"], "30 blocks suffice");
    let big = client.create("big").attr.ino;
    client.allocate(big, 0, 70 * B);
    let directory = client.attr(lookup(ROOT_INO, "d")).ino;
    let pinned = client.attr(lookup(ROOT_INO, "p")).ino;
    assert_eq!((client.names(directory), client.names(pinned)), (vec![], vec!["kept".into()]));
    assert!(client.names(ROOT_INO).contains(&"held".into()));
}

/// An operation on a cache of files.
#[derive(Clone, Debug)]
enum Act {
    /// Reads a file, or makes it if it is missing.
    Get(usize, u64),
    /// Opens a file, and keeps it open.
    Hold(usize),
    LetGo(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..30usize, 1..6u64).prop_map(|(file, blocks)| Act::Get(file, blocks)),
        1 => (0..4usize).prop_map(Act::Hold),
        1 => (0..4usize).prop_map(Act::LetGo),
    ]
}

/// Finds all names of each regular file.
fn homes(client: &Client<'_>) -> BTreeMap<u64, BTreeSet<(u64, Vec<u8>)>> {
    let (mut homes, mut queue) = (BTreeMap::<_, BTreeSet<_>>::new(), vec![ROOT_INO]);
    while let Some(directory) = queue.pop() {
        for entry in client.page(directory, 0, 1000).entries {
            match entry.attr.kind {
                FileKind::Directory => queue.push(entry.attr.ino),
                FileKind::Regular => {
                    _ = homes.entry(entry.attr.ino).or_default().insert((directory, entry.name))
                }
                _ => {}
            }
        }
    }
    homes
}

proptest! {
    /// The files that are left are those of an exact LRU with the same marks, in which files that
    /// are held open count but stay.
    #[test]
    fn agrees_with_an_exact_lru(acts in proptest::collection::vec(act(), 1..150)) {
        let fixture = evicting(100, 1000, LRU);
        let client = fixture.client(1);
        // Files with their blocks, the least recently used first; and the files that are held.
        let mut model: Vec<(usize, u64)> = Vec::new();
        let mut held: BTreeMap<usize, u64> = BTreeMap::new();
        for act in acts {
            let (Act::Get(file, _) | Act::Hold(file) | Act::LetGo(file)) = act;
            let name = format!("f{file}");
            let at = model.iter().position(|(other, _)| *other == file);
            match act {
                Act::Get(_, blocks) => {
                    let blocks = at.map_or(blocks, |at| model.remove(at).1);
                    match client.ask(lookup(ROOT_INO, &name)) {
                        Reply::Attr(attr) => {
                            prop_assert!(at.is_some(), "{} is left", name);
                            client.open(attr.ino);
                            client.close(attr.ino);
                        }
                        reply => {
                            prop_assert_eq!((reply, at), (Reply::Error(Errno::ENOENT), None), "{} is gone", name);
                            client.put(ROOT_INO, &name, blocks);
                        }
                    }
                    model.push((file, blocks));
                }
                Act::Hold(_) if at.is_some() && !held.contains_key(&file) => {
                    let ino = client.attr(lookup(ROOT_INO, &name)).ino;
                    client.open(ino);
                    held.insert(file, ino);
                }
                Act::LetGo(_) => {
                    if let (Some(ino), Some(at)) = (held.remove(&file), at) {
                        client.close(ino);
                        let last = model.remove(at);
                        model.push(last);
                    }
                }
                Act::Hold(_) => {}
            }
            let used = |model: &[(usize, u64)]| model.iter().map(|(_, blocks)| blocks).sum::<u64>();
            if used(&model) > 90 {
                while used(&model) > 85 {
                    let oldest = model.iter().position(|(file, _)| !held.contains_key(file));
                    match oldest {
                        Some(oldest) => _ = model.remove(oldest),
                        None => break,
                    }
                }
            }
            fixture.evict();
            let mut expected: Vec<String> = model.iter().map(|(file, _)| format!("f{file}")).collect();
            let mut names = client.names(ROOT_INO);
            expected.sort_unstable();
            names.sort_unstable();
            prop_assert_eq!(names, expected);
        }
    }

    /// After any operations on names, the candidates are all files with all their names.
    #[test]
    fn candidates_have_the_names_of_files(steps in proptest::collection::vec(step(), 1..80)) {
        let fixture = evicting(4, 2000, LRU);
        let client = fixture.client(1);
        for step in &steps {
            // Whether a step succeeds is no matter here.
            let _ = perform(&client, step);
        }
        let candidates = fixture.dispatcher.eviction().unwrap().candidates().all();
        let found: BTreeMap<u64, BTreeSet<(u64, Vec<u8>)>> = candidates
            .into_iter()
            .map(|file| {
                let names = file.homes.into_iter().map(|home| (home.parent, home.name.to_vec())).collect();
                (file.file.ino, names)
            })
            .collect();
        prop_assert_eq!(found, homes(&client));
    }
}
