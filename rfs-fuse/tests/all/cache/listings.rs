//! Directory listings, which the kernel caches. The tests check when a listing needs no call, and
//! that it shows all changes that other mounts made before it began.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    mem::MaybeUninit,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
};

use crate::common::{Mount, TestServer, each, eventually, providers};
use rustix::{
    fs::{Mode, OFlags, RawDir, SeekFrom, fchmod, fsync, mkdirat, openat, seek},
    io::Errno,
};

const MIB: u64 = 1 << 20;

/// Returns one buffer of names from the current position, each with the position behind it. Empty
/// at the end.
fn some(dir: &File, bytes: usize) -> Vec<(String, u64)> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes];
    let (mut entries, mut names) = (RawDir::new(dir, &mut buffer), vec![]);
    while let Some(entry) = entries.next() {
        let entry = entry.expect("listed");
        names.push((entry.file_name().to_str().expect("UTF-8").to_owned(), entry.next_entry_cookie()));
        if entries.is_buffer_empty() {
            break;
        }
    }
    names
}

/// Returns all remaining names, read in buffers of `bytes`. Fails on duplicates.
fn rest(dir: &File, bytes: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    loop {
        match some(dir, bytes) {
            more if more.is_empty() => break,
            more => {
                more.into_iter().for_each(|(name, _)| assert!(names.insert(name.clone()), "{name} twice"))
            }
        }
    }
    names.remove(".");
    names.remove("..");
    names
}

fn go_to(dir: &File, place: u64) {
    seek(dir, SeekFrom::Start(place)).expect("at another place");
}

fn again(dir: &File) -> BTreeSet<String> {
    go_to(dir, 0);
    rest(dir, 4096)
}

fn list(path: &Path) -> BTreeSet<String> {
    rest(&File::open(path).expect("opened"), 32768)
}

fn names(of: impl IntoIterator<Item = u32>) -> BTreeSet<String> {
    of.into_iter().map(|i| format!("f{i:04}")).collect()
}

fn make(dir: &Path, of: impl IntoIterator<Item = u32>) {
    names(of).iter().for_each(|name| drop(File::create_new(dir.join(name)).expect("made")));
}

fn remove(dir: &Path, of: impl IntoIterator<Item = u32>) {
    names(of).iter().for_each(|name| fs::remove_file(dir.join(name)).expect("removed"));
}

/// Returns the number of listing requests that `act` causes at the server.
fn asked(server: &TestServer, act: impl FnOnce()) -> u64 {
    let before = server.handled("readdir");
    act();
    server.handled("readdir") - before
}

/// Runs a test for every combination of mounts, in both directions, in a new directory.
fn pairs(test: impl Fn(&Path, &Path)) {
    crate::common::pairs(64 * MIB, &[], |_, a, b| {
        for (a, b) in [(a, b), (b, a)] {
            fs::create_dir(a.path("d")).expect("made");
            test(&a.path("d"), &b.path("d"));
            fs::remove_dir_all(a.path("d")).expect("removed");
        }
    });
}

#[test]
fn a_second_listing_asks_for_nothing_until_something_changes_here() {
    each(64 * MIB, |server, mount| {
        let dir = &mount.path("d");
        fs::create_dir(dir).expect("made");
        make(dir, 0..1000);
        let all = |of: u32| {
            let open = File::open(dir).expect("opened");
            assert_eq!([rest(&open, 32768), again(&open)], [names(0..of), names(0..of)]);
        };
        // The kernel releases a directory in the background after close(2). A directory that is
        // opened before that is listed separately.
        let free = |of: u32| assert!(eventually(|| asked(server, || all(of)) == 0));
        all(1000);
        free(1000);
        make(dir, 1000..1001);
        assert!(asked(server, || all(1001)) > 0);
        free(1001);
        remove(dir, 1000..1001);
        fs::rename(dir.join("f0999"), dir.join("f1001")).expect("renamed");
        fs::rename(dir.join("f1001"), dir.join("f0999")).expect("renamed");
        assert!(asked(server, || all(1000)) > 0);
        free(1000);
        // Reads in parts, and from positions in the middle.
        let in_parts = || {
            let open = File::open(dir).expect("opened");
            let first = some(&open, 1024);
            let (last, place) = first.last().expect("some").clone();
            let behind = rest(&open, 1024);
            assert!(!behind.contains(&last) && behind.len() + first.len() == 1002);
            go_to(&open, place);
            assert_eq!(rest(&open, 512), behind);
        };
        assert!(eventually(|| asked(server, in_parts) == 0));
    });
}

#[test]
fn an_open_directory_does_not_spoil_a_cached_listing() {
    each(64 * MIB, |server, mount| {
        make(&mount.point, 0..100);
        let open = File::open(&mount.point).expect("opened");
        let first = some(&open, 1024);
        for _ in 0..3 {
            assert!(asked(server, || assert_eq!(list(&mount.point), names(0..100))) > 0, "read apart");
        }
        assert_eq!(rest(&open, 1024).len() + first.len(), 102);
        assert_eq!(asked(server, || assert_eq!(again(&open), names(0..100))), 0);
        drop(open);
        assert!(eventually(|| asked(server, || assert_eq!(list(&mount.point), names(0..100))) == 0));
    });
}

#[test]
fn without_long_caching_every_listing_asks_the_server() {
    for options in [&["--cache", "none"][..], &["--entry-timeout", "1000"]] {
        let server = TestServer::new(64 * MIB);
        let mount = server.mount(crate::common::providers()[0], options);
        make(&mount.point, 0..10);
        let all = || assert_eq!(list(&mount.point), names(0..10));
        all();
        assert!(asked(&server, all) > 0);
        mount.unmount();
    }
}

#[test]
fn listings_change() {
    pairs(|a, b| {
        make(a, 0..300);
        let open = &File::open(b).expect("opened");
        let seen = |expected: &BTreeSet<String>| {
            // Reads again from the start, and through a new descriptor, twice each. The open
            // descriptor comes first: a path lookup would fetch the directory's times and thereby
            // reveal the change.
            for _ in 0..2 {
                assert_eq!(again(open), *expected);
                assert_eq!(list(b), *expected);
            }
        };
        seen(&names(0..300));
        for round in 0..20 {
            make(a, 300 + round..301 + round);
            seen(&names(round..301 + round));
            assert_eq!(list(a), names(round..301 + round));
            remove(a, round..round + 1);
            seen(&names(round + 1..301 + round));
            let to = a.join("moved");
            fs::rename(a.join(format!("f{:04}", round + 1)), &to).expect("renamed");
            assert!(list(b).contains("moved") && again(open).contains("moved"));
            fs::rename(&to, a.join(format!("f{:04}", round + 1))).expect("renamed");
        }
        seen(&names(20..320));
        // Moves a name into a directory without cached state, and back.
        fs::create_dir(a.join("sub")).expect("made");
        assert_eq!(list(&b.join("sub")), names([]));
        fs::rename(a.join("f0020"), a.join("sub/f0020")).expect("renamed");
        assert_eq!(list(&b.join("sub")), names([20]));
        fs::rename(b.join("sub/f0020"), b.join("f0020")).expect("renamed");
        assert_eq!((list(&a.join("sub")), list(&b.join("sub"))), (names([]), names([])));
        fs::remove_dir(b.join("sub")).expect("removed");
        seen(&names(20..320));
        assert_eq!(list(a), names(20..320));
    });
}

/// Remaining names are listed once. Names removed before the listing began again are not listed.
#[test]
fn names_go_in_the_middle_of_a_listing() {
    pairs(|a, b| {
        make(a, 0..600);
        for remover in [a, b] {
            let open = &File::open(b).expect("opened");
            let (one, two) = (File::open(b).expect("opened"), File::open(a).expect("opened"));
            let first = some(open, 2048);
            some(&one, 512);
            some(&two, 512);
            remove(remover, 400..500);
            let behind = rest(open, 2048);
            let listed: BTreeSet<String> =
                first.into_iter().map(|(name, _)| name).filter(|name| !name.starts_with('.')).collect();
            assert!(listed.is_disjoint(&behind));
            let both = &listed | &behind;
            assert!(both.is_superset(&names((0..400).chain(500..600))));
            let left = names((0..400).chain(500..600));
            assert_eq!(
                [again(open), again(&one), again(&two), list(a), list(b)].map(|seen| seen == left),
                [true; 5]
            );
            make(remover, 400..500);
            assert_eq!(
                [again(open), list(b), list(a), again(&two)].map(|seen| seen == names(0..600)),
                [true; 4]
            );
        }
    });
}

/// A name that is replaced by a rename during a listing is listed once, in front of the current
/// position and behind it.
#[test]
fn names_are_replaced_in_the_middle_of_a_listing() {
    pairs(|a, b| {
        make(a, 0..600);
        for (renamer, [early, late]) in [(a, [[0, 1], [598, 599]]), (b, [[2, 3], [596, 597]])] {
            let open = File::open(b).expect("opened");
            let mut seen: Vec<String> = some(&open, 2048).into_iter().map(|(name, _)| name).collect();
            let name = |of: u32| format!("f{of:04}");
            assert!(seen.contains(&name(3)) && !seen.contains(&name(596)));
            for (from, to) in [(early[0], late[0]), (late[1], early[1])] {
                fs::rename(renamer.join(name(from)), renamer.join(name(to))).expect("renamed");
            }
            seen.extend(rest(&open, 2048));
            for kept in [late[0], early[1]] {
                assert_eq!(seen.iter().filter(|seen| **seen == name(kept)).count(), 1, "f{kept:04}");
            }
            make(renamer, [early[0], late[1]]);
        }
    });
}

/// Number of names that exist at a time.
const LIVING: u32 = 30;

/// Lists a directory on one mount while the other mount creates and removes names. Names that
/// exist all the time are listed. Names removed before the listing began are not.
#[test]
fn changes_before_a_listing_began_are_in_it() {
    pairs(|a, b| {
        let [made, going, gone, readers] = [0, 0, 0, 2].map(AtomicU32::new);
        let check = |seen: BTreeSet<String>, (made, gone): (u32, u32)| {
            let stay = names(going.load(SeqCst)..made);
            assert!(seen.is_superset(&stay), "missing: {:?}", stay.difference(&seen).collect::<Vec<_>>());
            assert!(seen.is_disjoint(&names(gone.saturating_sub(100)..gone)), "{gone} are gone: {seen:?}");
        };
        let before = || (made.load(SeqCst), gone.load(SeqCst));
        let read = |how: &dyn Fn() -> BTreeSet<String>| {
            for _ in 0..400 {
                let before = before();
                check(how(), before);
            }
            readers.fetch_sub(1, SeqCst);
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0.. {
                    if readers.load(SeqCst) == 0 || i == 9000 {
                        break;
                    }
                    make(a, i..i + 1);
                    made.store(i + 1, SeqCst);
                    if i >= LIVING {
                        going.store(i - LIVING + 1, SeqCst);
                        remove(a, i - LIVING..i - LIVING + 1);
                        gone.store(i - LIVING + 1, SeqCst);
                    }
                }
            });
            scope.spawn(|| read(&|| list(b)));
            scope.spawn(|| {
                let open = File::open(b).expect("opened");
                read(&|| again(&open));
            });
        });
        assert_eq!(list(a), list(b));
    });
}

/// For example the working directory of another process.
#[test]
fn a_removed_directory_can_be_neither_opened_nor_listed() {
    each(64 * MIB, |server, mount| {
        let dir = mount.path("gone");
        fs::create_dir(&dir).expect("made");
        assert!(eventually(|| asked(server, || assert_eq!(list(&dir), names([]))) == 0));
        let open = File::open(&dir).expect("opened");
        fs::remove_dir(&dir).expect("removed");
        let anew = openat(&open, ".", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).expect("opened");
        for dir in [open, anew.into()] {
            let mut buffer = vec![MaybeUninit::uninit(); 4096];
            let first = RawDir::new(&dir, &mut buffer).next().expect("an error").map(drop);
            assert_eq!(first, Err(Errno::NOENT));
        }
    });
}

/// As on a local file system, a removed directory is empty, has no links, and accepts no new
/// names.
#[test]
fn a_removed_directory_still_works_for_processes_in_it() {
    for over in providers() {
        for cache in ["auto", "none", "writeback"] {
            let server = TestServer::new(64 * MIB);
            let mount = server.mount(over, &["--cache", cache]);
            fs::create_dir_all(mount.path("replaced")).expect("made");
            fs::create_dir(mount.path("moved")).expect("made");
            fs::create_dir(mount.path("removed")).expect("made");
            let before = fs::metadata(mount.path("removed")).expect("attributes");
            let open = ["removed", "replaced"].map(|name| File::open(mount.path(name)).expect("opened"));
            fs::remove_dir(mount.path("removed")).expect("removed");
            fs::rename(mount.path("moved"), mount.path("replaced")).expect("renamed");
            for dir in &open {
                let found = dir.metadata().expect("attributes");
                assert_eq!((found.nlink(), found.mode()), (0, before.mode()), "--cache {cache}");
                assert_eq!(mkdirat(dir, "new", Mode::RWXU), Err(Errno::NOENT), "--cache {cache}");
                assert_eq!(fchmod(dir, Mode::RWXU), Ok(()), "--cache {cache}");
                assert_eq!(dir.metadata().expect("attributes").mode() & 0o7777, 0o700, "--cache {cache}");
                assert_eq!(fsync(dir), Ok(()), "--cache {cache}");
            }
            assert_eq!(open[0].metadata().expect("attributes").ino(), before.ino());
            assert_eq!(fs::metadata(mount.path("replaced")).expect("attributes").nlink(), 2);
            mount.unmount();
        }
    }
}

#[test]
fn a_listing_with_renames_in_between_ends() {
    for over in providers() {
        for cache in ["auto", "none"] {
            let server = TestServer::new(64 * MIB);
            let mount = server.mount(over, &["--cache", cache]);
            make(&mount.point, 0..2000);
            let mut seen = BTreeSet::new();
            for entry in fs::read_dir(&mount.point).expect("opened") {
                let path = entry.expect("entry").path();
                assert!(seen.insert(path.clone()), "--cache {cache}: {} once more", path.display());
                fs::rename(&path, mount.path("away")).expect("renamed");
                fs::rename(mount.path("away"), &path).expect("renamed");
            }
            assert_eq!(seen.len(), 2000, "--cache {cache}");
            mount.unmount();
        }
    }
}

/// A mount that has listed a directory does not block its removal by another mount.
#[test]
fn a_directory_removed_by_another_mount_lists_no_names() {
    crate::common::pairs(64 * MIB, &[], |_, a, b| {
        let path = |mount: &Mount| mount.path("gone");
        fs::create_dir(path(a)).expect("made");
        make(&path(a), 0..5);
        assert_eq!(list(&path(b)), names(0..5));
        let open = File::open(path(b)).expect("opened");
        assert_eq!(again(&open), names(0..5));
        fs::remove_dir_all(path(a)).expect("removed");
        assert!(fs::read_dir(path(b)).is_err());
        go_to(&open, 0);
        let mut buffer = vec![MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&open, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.expect("an entry");
            assert!([c".", c".."].contains(&entry.file_name()), "{entry:?} is nothing of now");
        }
    });
}
