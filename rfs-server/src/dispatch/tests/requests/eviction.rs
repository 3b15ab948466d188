//! Eviction: which files go when space runs short or files are old, and which stay.

mod models;
mod requests;
mod sessions;
mod stores;

use super::*;
use crate::space::eviction::EvictionPolicy;

const LRU: EvictionPolicy = EvictionPolicy { by_use: true, ttl: None };

const PIN: &[u8] = b"user.rfs.pin";

fn evicting(blocks: u64, inodes: usize, policy: EvictionPolicy) -> Fixture {
    let Fixture { dispatcher, arena, table, clock } = fixture(blocks, inodes);
    Fixture { dispatcher: dispatcher.with_eviction(policy), arena, table, clock }
}

/// Returns an export whose ten inodes are taken by the files `f0` to `f9`.
fn without_inodes() -> Fixture {
    let fixture = evicting(100, 11, LRU);
    let client = fixture.client(1);
    for at in 0..10 {
        client.put(ROOT_INO, &format!("f{at}"), 0);
    }
    assert_eq!(fixture.free_inodes(), 0);
    fixture
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

/// Detects a file without a name that finds no inode although a file may go. Detects one that stays
/// forever although it has a name now, and is closed.
#[test]
fn a_file_made_without_a_name_counts_as_others() {
    let fixture = without_inodes();
    let client = fixture.client(1);
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
    let fixture = without_inodes();
    let client = fixture.client(1);
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
