//! Permissions of root, a directory's owner, a member of its group and a stranger, in directories
//! of all kinds of modes, including sticky and setgid. Everything is tried on a local file system
//! and through a mount. Before that, another mount makes the directory and sets modes and owners.
//! The outcomes must be equal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, chown, lchown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use nix::{errno::Errno, unistd::truncate};
use rustix::{
    fs::{Access, FileType, Mode, OFlags, Timespec, UTIME_NOW, access, makedev},
    thread::UnshareFlags,
};

use super::actors::{
    Actor, LONG_AGO, MEMBER, OWNER, ROOT, STRANGER, chmod, create, mkdir, node, reference, set_times,
};
use crate::common::{NOBODY, long, numbered_pairs};

const MIB: u64 = 1 << 20;

const DIRECTORIES: [u32; 8] = [0o700, 0o711, 0o755, 0o775, 0o777, 0o1777, 0o2775, 0o3777];
/// A subset, for mounts without caching, which are slow.
const FEW: [u32; 2] = [0o1777, 0o2775];

type Operation = (&'static str, fn(&Path) -> io::Result<()>);

/// Returns a name that belongs to `path`, in the same directory.
fn beside(path: &Path, what: &str) -> PathBuf {
    path.with_extension(what)
}

/// Returns the same name in the actor's own subdirectory.
fn in_own(path: &Path) -> PathBuf {
    path.with_file_name("own").join(path.file_name().expect("a name"))
}

/// Operations without changes. They come first, because a file that is open for writing cannot be
/// executed.
const LOOKS: [Operation; 11] = [
    ("stat", |path| fs::metadata(path).map(drop)),
    ("access to read", |path| Ok(access(path, Access::READ_OK)?)),
    ("access to write", |path| Ok(access(path, Access::WRITE_OK)?)),
    ("access to execute", |path| Ok(access(path, Access::EXEC_OK)?)),
    ("execute", |path| {
        let status = Command::new(path).status()?;
        assert!(status.success(), "{}: {status}", path.display());
        Ok(())
    }),
    ("open to read", |path| File::open(path).map(drop)),
    ("open to write", |path| OpenOptions::new().write(true).open(path).map(drop)),
    ("open to append and read", |path| OpenOptions::new().read(true).append(true).open(path).map(drop)),
    ("open without atime", |path| {
        let flags = OFlags::NOATIME.bits() as i32;
        OpenOptions::new().read(true).custom_flags(flags).open(path).map(drop)
    }),
    ("read", |path| fs::read(path).map(drop)),
    ("list", |path| fs::read_dir(path)?.try_for_each(|entry| entry.map(drop))),
];

/// Operations that create. The last ones use a directory that was created before.
const CREATIONS: [Operation; 10] = [
    ("file", |path| create(path, 0o666)),
    ("sgid-file", |path| create(path, 0o2777)),
    ("sgid-file-not-executable", |path| create(path, 0o2666)),
    ("directory", |path| mkdir(path, 0o777)),
    ("directory-of-all-bits", |path| mkdir(path, 0o7777)),
    ("symlink", |path| symlink("nowhere", path)),
    ("fifo", |path| node(path, FileType::Fifo, 0)),
    ("device", |path| node(path, FileType::CharacterDevice, makedev(1, 3))),
    ("directory/file", |path| create(path, 0o666)),
    ("directory/directory", |path| mkdir(path, 0o777)),
];

/// Operations that change files, each with a file of its own.
const CHANGES: [Operation; 18] = [
    ("unlink", |path| fs::remove_file(path)),
    ("rename", |path| fs::rename(path, beside(path, "new"))),
    ("rename-over", |path| fs::rename(beside(path, "own"), path)),
    ("move", |path| fs::rename(path, in_own(path))),
    ("link", |path| fs::hard_link(path, beside(path, "new"))),
    ("truncate", |path| Ok(truncate(path, 0)?)),
    ("open-or-create", |path| {
        OpenOptions::new().write(true).create(true).truncate(false).open(path).map(drop)
    }),
    ("chmod", |path| chmod(path, 0o606)),
    ("set-sgid", |path| chmod(path, 0o2755)),
    ("set-suid-sgid-sticky", |path| chmod(path, 0o7711)),
    ("chown", |path| chown(path, Some(STRANGER.uid), None)),
    ("chown-to-owner", |path| chown(path, Some(OWNER.uid), None)),
    ("chgrp-to-directorys", |path| chown(path, None, Some(OWNER.gid))),
    ("chgrp-to-members", |path| chown(path, None, Some(MEMBER.gid))),
    ("chgrp-to-strangers", |path| chown(path, None, Some(STRANGER.gid))),
    ("set-times", |path| set_times(path, Timespec { tv_sec: LONG_AGO, tv_nsec: 0 })),
    ("set-times-to-now", |path| set_times(path, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW })),
    ("write", |path| OpenOptions::new().append(true).open(path)?.write_all(b"y")),
];

/// Operations that change directories, each with a directory of its own.
const CHANGES_OF_DIRECTORIES: [Operation; 6] = [
    ("rmdir", |path| fs::remove_dir(path)),
    ("rename-directory", |path| fs::rename(path, beside(path, "new"))),
    ("rename-directory-over", |path| fs::rename(beside(path, "own"), path)),
    ("move-directory", |path| fs::rename(path, in_own(path))),
    ("chmod-directory", |path| chmod(path, 0o2777)),
    ("make-in-directory", |path| create(&path.join("file"), 0o666)),
];

/// Operations that change the whole directory, at the end.
const CHANGES_OF_ALL: [Operation; 5] = [
    ("set times of", |path| set_times(path, Timespec { tv_sec: LONG_AGO, tv_nsec: 0 })),
    ("set times to now of", |path| set_times(path, Timespec { tv_sec: 0, tv_nsec: UTIME_NOW })),
    ("chgrp", |path| chown(path, None, Some(MEMBER.gid))),
    ("chmod", |path| chmod(path, 0o3771)),
    ("chown", |path| chown(path, Some(STRANGER.uid), None)),
];

enum Kind {
    File,
    /// A program that does nothing.
    Program,
    Directory,
    Symlink,
}

/// Content of the directory before the operations.
struct Entry {
    name: String,
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
}

fn own(actor: Actor) -> (u32, u32) {
    (actor.uid, actor.gid)
}

fn entry(name: impl Into<String>, kind: Kind, mode: u32, owner: (u32, u32)) -> Entry {
    Entry { name: name.into(), kind, mode, owner }
}

/// Returns the entries for operations without changes.
fn looked_at() -> Vec<Entry> {
    let of_owner = [0o600, 0o640, 0o644, 0o666, 0o111, 0o710, 0o4755].map(|mode| {
        let kind = if mode & 0o111 == 0 { Kind::File } else { Kind::Program };
        entry(format!("owners-{mode:o}"), kind, mode, own(OWNER))
    });
    let of_others = [
        entry("members", Kind::File, 0o644, own(MEMBER)),
        entry("members-for-the-group", Kind::File, 0o660, (MEMBER.uid, OWNER.gid)),
        entry("not-for-the-group", Kind::File, 0o606, (STRANGER.uid, OWNER.gid)),
        entry("not-for-its-owner", Kind::Program, 0o077, own(STRANGER)),
        entry("strangers", Kind::File, 0o600, own(STRANGER)),
        entry("strangers-directory", Kind::Directory, 0o750, own(STRANGER)),
        entry("groups-directory", Kind::Directory, 0o730, own(OWNER)),
    ];
    let links =
        [ROOT, OWNER, MEMBER, STRANGER].map(|a| entry(format!("{}s-link", a.name), Kind::Symlink, 0, own(a)));
    of_owner.into_iter().chain(of_others).chain(links).collect()
}

/// Files that operations change, by owner.
const FILES: [(&str, u32, (u32, u32)); 5] = [
    ("owners", 0o644, (OWNER.uid, OWNER.gid)),
    ("members", 0o644, (MEMBER.uid, MEMBER.gid)),
    ("strangers", 0o644, (STRANGER.uid, STRANGER.gid)),
    ("members-in-the-group", 0o664, (MEMBER.uid, OWNER.gid)),
    ("strangers-in-the-group", 0o6775, (STRANGER.uid, OWNER.gid)),
];

const SUBDIRECTORIES: [(&str, u32, (u32, u32)); 3] = [
    ("owners", 0o755, (OWNER.uid, OWNER.gid)),
    ("members-in-the-group", 0o2775, (MEMBER.uid, OWNER.gid)),
    ("strangers", 0o755, (STRANGER.uid, STRANGER.gid)),
];

/// Returns all entries of the directory for this actor.
fn entries(actor: Actor) -> Vec<Entry> {
    let mut all = looked_at();
    all.push(entry("own", Kind::Directory, 0o755, own(actor)));
    let mut add = |operation: &str, whose: &str, kind: fn() -> Kind, mode, owner| {
        let name = format!("{operation}-{whose}");
        if operation.ends_with("-over") {
            all.push(entry(format!("{name}.own"), kind(), 0o700, own(actor)));
        }
        all.push(entry(name, kind(), mode, owner));
    };
    for (operation, _) in CHANGES {
        FILES.iter().for_each(|(whose, mode, owner)| add(operation, whose, || Kind::File, *mode, *owner));
    }
    for (operation, _) in CHANGES_OF_DIRECTORIES {
        let to = SUBDIRECTORIES.iter();
        to.for_each(|(whose, mode, owner)| add(operation, whose, || Kind::Directory, *mode, *owner));
    }
    all
}

/// Creates the directory through the first mount with wrong owners and modes: the actor's entries
/// belong to another user, and all others to the actor. The second mount looks at them. Then the
/// first mount sets the right owners and modes. A mount that uses the previous state is wrong in
/// every case.
fn prepare(first: &Path, second: &Path, mode: u32, actor: Actor) {
    let mut all = entries(actor);
    let program = fs::read("/bin/true").expect("a program");
    mkdir(first, 0o700).expect("made");
    for Entry { name, kind, mode, .. } in &all {
        let (path, mode) = (first.join(name), !mode & 0o777);
        let file = || OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        match kind {
            Kind::File => file().expect("made").write_all(b"x").expect("written"),
            Kind::Program => file().expect("made").write_all(&program).expect("written"),
            Kind::Directory => mkdir(&path, mode).expect("made"),
            Kind::Symlink => symlink("owners-666", &path).expect("made"),
        }
    }
    chmod(first, !mode & 0o3777).expect("chmod");
    all.push(entry(".", Kind::Directory, mode, own(OWNER)));
    let before = |uid| if uid == actor.uid { (NOBODY, NOBODY) } else { own(actor) };
    for Entry { name, owner, .. } in &all {
        let (uid, gid) = before(owner.0);
        lchown(first.join(name), Some(uid), Some(gid)).expect("chown");
    }

    assert_eq!(fs::read_dir(second).expect("listed").count(), all.len() - 1);
    for Entry { name, owner, .. } in &all {
        let seen = fs::symlink_metadata(second.join(name)).expect("attributes");
        assert_eq!((seen.uid(), seen.gid()), before(owner.0));
    }

    for Entry { name, kind, mode, owner: (uid, gid) } in &all {
        let path = first.join(name);
        lchown(&path, Some(*uid), Some(*gid)).expect("chown");
        if !matches!(kind, Kind::Symlink) {
            chmod(&path, *mode).expect("chmod");
        }
    }
}

/// Tries everything in a directory. Returns the outcomes.
fn act(directory: &Path) -> Vec<(String, io::Result<()>)> {
    let mut tried = Vec::new();
    let mut attempt = |what: String, name: &str, carry_out: fn(&Path) -> io::Result<()>| {
        tried.push((what, carry_out(&directory.join(name))));
    };
    let names = [".", "nothing"].map(str::to_owned).into_iter();
    for name in names.chain(looked_at().into_iter().map(|entry| entry.name)) {
        for (operation, carry_out) in LOOKS {
            attempt(format!("{operation} {name}"), &name, carry_out);
        }
    }
    let mut change = |name: String, carry_out| attempt(name.clone(), &name, carry_out);
    for (what, carry_out) in CREATIONS {
        change(format!("made-{what}"), carry_out);
    }
    for (operation, carry_out) in CHANGES {
        FILES.iter().for_each(|(whose, ..)| change(format!("{operation}-{whose}"), carry_out));
    }
    for (operation, carry_out) in CHANGES_OF_DIRECTORIES {
        SUBDIRECTORIES.iter().for_each(|(whose, ..)| change(format!("{operation}-{whose}"), carry_out));
    }
    for (operation, carry_out) in CHANGES_OF_ALL {
        attempt(format!("{operation} ."), ".", carry_out);
    }
    tried
}

/// Records the names below a directory, and their visible state.
fn look(root: &Path, below: &Path, seen: &mut Vec<(String, String)>) {
    let path = root.join(below);
    let attr = fs::symlink_metadata(&path).expect("attributes");
    let size = if attr.is_dir() { String::new() } else { format!(", {} bytes", attr.len()) };
    let old = if attr.mtime() == LONG_AGO { ", old" } else { "" };
    let (mode, uid, gid, links) = (attr.mode(), attr.uid(), attr.gid(), attr.nlink());
    seen.push((below.display().to_string(), format!("{mode:o} {uid}:{gid}, {links} links{size}{old}")));
    if attr.is_dir() {
        for entry in fs::read_dir(&path).expect("listed") {
            look(root, &below.join(entry.expect("entry").file_name()), seen);
        }
    }
}

/// Outcome of each attempt, and the state of each name afterwards.
type Record = BTreeMap<String, String>;

/// Runs everything in directories that are made through the first mount and used through the
/// second one.
fn record(first: &Path, second: &Path, directories: &[u32]) -> Record {
    let mut record = Record::new();
    for &mode in directories {
        for actor in [ROOT, OWNER, MEMBER, STRANGER] {
            let name = format!("{mode:o}-{}", actor.name);
            let (first, second) = (first.join(&name), second.join(&name));
            prepare(&first, &second, mode, actor);
            let mut add = |what: String, outcome: String| {
                let before = record.insert(format!("{name}: {what}"), outcome);
                assert_eq!(before, None, "{name}: {what} is there twice");
            };
            for (what, outcome) in actor.does(|| act(&second)) {
                let outcome = match outcome {
                    Ok(()) => "done".to_owned(),
                    Err(e) => format!("{:?}", Errno::from_raw(e.raw_os_error().expect("the kernel's"))),
                };
                add(what, outcome);
            }
            for (by, path) in [("first", &first), ("second", &second)] {
                let mut seen = Vec::new();
                look(path, Path::new(""), &mut seen);
                seen.into_iter().for_each(|(what, attr)| add(format!("{by} sees {what}"), attr));
            }
        }
    }
    record
}

fn assert_same(is: &Record, should: &Record) {
    let all: BTreeSet<&String> = is.keys().chain(should.keys()).collect();
    let differing = all.iter().filter(|what| is.get(**what) != should.get(**what));
    let differences: Vec<String> = differing
        .map(|what| {
            let [is, should] = [is, should].map(|record| record.get(*what).map_or("nothing", String::as_str));
            format!("{what}: {is}, not {should}")
        })
        .collect();
    let first = differences[..differences.len().min(40)].join("\n");
    assert_eq!(differences.len(), 0, "of {}; the first are\n{first}", all.len());
}

/// Some expected outcomes of any file system, which check that the actors are the right users.
const KNOWN: [(&str, &str); 28] = [
    ("700-root: unlink-strangers", "done"),
    ("700-root: execute owners-644", "EACCES"),
    ("700-member: stat owners-644", "EACCES"),
    ("711-stranger: stat owners-644", "done"),
    ("711-stranger: list .", "EACCES"),
    ("711-stranger: execute owners-111", "done"),
    ("711-stranger: read owners-111", "EACCES"),
    ("711-stranger: execute owners-710", "EACCES"),
    ("711-member: execute owners-710", "done"),
    ("755-member: made-file", "EACCES"),
    ("755-owner: execute not-for-the-group", "EACCES"),
    ("755-owner: read not-for-the-group", "EACCES"),
    ("755-stranger: read not-for-its-owner", "EACCES"),
    ("775-member: made-file", "done"),
    ("775-stranger: made-file", "EACCES"),
    ("777-stranger: unlink-owners", "done"),
    ("777-stranger: chgrp-to-members-strangers", "EPERM"),
    ("777-member: chgrp-to-directorys-members", "done"),
    ("777-stranger: first sees set-sgid-strangers-in-the-group", "100755 1003:2001, 1 links, 1 bytes"),
    ("777-member: first sees set-sgid-members-in-the-group", "102755 1002:2001, 1 links, 1 bytes"),
    ("777-stranger: chown-strangers", "done"),
    ("777-stranger: set-times-to-now-owners", "EACCES"),
    ("777-stranger: set-times-owners", "EPERM"),
    ("1777-stranger: unlink-owners", "EPERM"),
    ("1777-stranger: rename-over-members", "EPERM"),
    ("1777-stranger: unlink-strangers", "done"),
    ("1777-owner: unlink-strangers", "done"),
    ("2775-member: first sees made-directory/directory", "42775 1002:2001, 2 links"),
];

/// Returns true if an outcome is of one of these directories.
fn is_in(directories: &[u32], what: &str) -> bool {
    directories.iter().any(|mode| what.starts_with(&format!("{mode:o}-")))
}

/// Compares the outcomes on two mounts, of which one changes owners and modes and the other acts.
/// Uses only one mount unless `apart`. A test that is not long has all `directories` for the first
/// pair of providers, and the last directory for the others. Rights depend on no provider.
fn compare(options: &[&str], apart: bool, directories: &[u32]) {
    // A umask that differs from the default, for this thread and its children only.
    // SAFETY: the flag separates umask and directories of this thread, and closes no descriptor.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.expect("unshare");
    rustix::process::umask(Mode::WOTH);
    let reference = reference();
    let should = record(reference.path(), reference.path(), directories);
    for (what, outcome) in KNOWN.into_iter().filter(|(what, _)| is_in(directories, what)) {
        assert_eq!(should.get(what).map(String::as_str), Some(outcome), "{what}");
    }
    numbered_pairs(256 * MIB, options, |nth, _, a, b| {
        let first = if apart { a } else { b };
        if nth == 0 || long() {
            assert_same(&record(&first.point, &b.point, directories), &should);
        } else {
            let last = &directories[directories.len() - directories.len().div_ceil(4)..];
            let of_last = |(what, _): &(&String, &String)| is_in(last, what);
            let should = should.iter().filter(of_last).map(|(what, is)| (what.clone(), is.clone())).collect();
            assert_same(&record(&first.point, &b.point, last), &should);
        }
    });
}

#[test]
fn every_user_has_the_rights_of_a_local_file_system() {
    compare(&[], false, &DIRECTORIES);
}

#[test]
fn every_user_has_these_rights_after_another_mount_changed_owners() {
    compare(&[], true, &DIRECTORIES);
}

#[test]
fn every_user_has_these_rights_without_cached_names() {
    compare(&["--entry-timeout", "0"], true, &FEW);
}

#[test]
fn every_user_has_these_rights_without_caching() {
    compare(&["--cache", "none"], true, &FEW);
}
