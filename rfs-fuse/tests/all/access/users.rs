//! Permissions of root, a directory's owner, a member of its group and a stranger, in directories
//! of all kinds of modes, including sticky and setgid. Everything is tried on a local file system
//! and through a mount. Before that, another mount makes the directory and sets modes and owners.
//! The outcomes must be equal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{
        DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown, lchown, symlink,
    },
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use crate::common::{NOBODY, each, pairs};
use nix::{errno::Errno, unistd::truncate};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid,
    XattrFlags, access, fcntl_setfl, fsetxattr, futimens, linkat, makedev, mknodat, renameat_with, setxattr,
    utimensat,
};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_keep_capabilities};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A user, with the group of new files.
#[derive(Clone, Copy)]
struct Actor {
    name: &'static str,
    uid: u32,
    gid: u32,
    groups: &'static [u32],
}

const ROOT: Actor = Actor { name: "root", uid: 0, gid: 0, groups: &[] };
/// Owner of the directories.
const OWNER: Actor = Actor { name: "owner", uid: 1001, gid: 2001, groups: &[] };
/// Member of the directories' group, as a supplementary group.
const MEMBER: Actor = Actor { name: "member", uid: 1002, gid: 2002, groups: &[2001] };
const STRANGER: Actor = Actor { name: "stranger", uid: 1003, gid: 2003, groups: &[] };

const DIRECTORIES: [u32; 8] = [0o700, 0o711, 0o755, 0o775, 0o777, 0o1777, 0o2775, 0o3777];
/// A subset, for mounts without caching, which are slow.
const FEW: [u32; 2] = [0o1777, 0o2775];

impl Actor {
    /// Runs `what` as this user, on a new thread. Only root's thread has capabilities.
    fn does<T: Send>(self, what: impl FnOnce() -> T + Send) -> T {
        let act = move || {
            let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            rustix::thread::set_thread_groups(&groups).expect("setgroups, of this thread");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid, of this thread");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
            what()
        };
        thread::scope(|scope| scope.spawn(act).join().expect("thread"))
    }
}

type Operation = (&'static str, fn(&Path) -> io::Result<()>);

fn create(path: &Path, mode: u32) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map(drop)
}

fn node(path: &Path, kind: FileType, device: u64) -> io::Result<()> {
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), device)?)
}

fn mkdir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

const LONG_AGO: i64 = 1_000_000;

fn set_times(path: &Path, time: Timespec) -> io::Result<()> {
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

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

/// Creates a directory in memory, which has the same rules.
fn reference() -> TempDir {
    let reference = tempfile::tempdir_in("/dev/shm").expect("temporary directory");
    chmod(reference.path(), 0o755).expect("chmod");
    reference
}

/// Compares the outcomes on two mounts, of which one changes owners and modes and the other acts.
/// Uses only one mount unless `apart`.
fn compare(options: &[&str], apart: bool, directories: &[u32]) {
    // A umask that differs from the default, for this thread and its children only.
    // SAFETY: the flag separates umask and directories of this thread, and closes no descriptor.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.expect("unshare");
    rustix::process::umask(Mode::WOTH);
    let reference = reference();
    let should = record(reference.path(), reference.path(), directories);
    let is_tried = |what: &str| directories.iter().any(|mode| what.starts_with(&format!("{mode:o}-")));
    for (what, outcome) in KNOWN.into_iter().filter(|(what, _)| is_tried(what)) {
        assert_eq!(should.get(what).map(String::as_str), Some(outcome), "{what}");
    }
    pairs(256 * MIB, options, |_, a, b| {
        let first = if apart { a } else { b };
        assert_same(&record(&first.point, &b.point, directories), &should);
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

/// An ACL in the kernel's form that is equivalent to mode 640.
const PLAIN_ACL: [u8; 28] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255,
    255,
];

/// A change that only an owner may make, by name and through an open file.
type Change = (&'static str, fn(&Path) -> io::Result<()>, fn(&File) -> io::Result<()>);

const OWNERS_CHANGES: [Change; 4] = [
    ("chmod", |path| chmod(path, 0o640), |file| file.set_permissions(Permissions::from_mode(0o640))),
    (
        "chgrp",
        |path| chown(path, None, Some(rustix::process::getegid().as_raw())),
        |file| fchown(file, None, Some(rustix::process::getegid().as_raw())),
    ),
    (
        "utimens",
        |path| set_times(path, Timespec { tv_sec: LONG_AGO, tv_nsec: 0 }),
        |file| {
            let time = Timespec { tv_sec: LONG_AGO, tv_nsec: 0 };
            Ok(futimens(file, &Timestamps { last_access: time, last_modification: time })?)
        },
    ),
    (
        "setfacl",
        |path| Ok(setxattr(path, "system.posix_acl_access", &PLAIN_ACL, XattrFlags::empty())?),
        |file| Ok(fsetxattr(file, "system.posix_acl_access", &PLAIN_ACL, XattrFlags::empty())?),
    ),
];

/// Returns the outcomes of a change to a file that another mount has given from the owner to the
/// stranger.
fn given_away(
    (first, second): (&Path, &Path),
    change: impl Fn(&Path, &File) -> io::Result<()> + Sync,
) -> Vec<(&'static str, Option<i32>)> {
    let outcomes = [OWNER, STRANGER].map(|actor| {
        let (first, second) = (first.join(actor.name), second.join(actor.name));
        create(&first, 0o644).expect("made");
        chown(&first, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
        let file = File::open(&second).expect("opened");
        assert_eq!(file.metadata().expect("attributes").uid(), OWNER.uid);
        chown(&first, Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
        let outcome = actor.does(|| change(&second, &file));
        fs::remove_file(&first).expect("removed");
        (actor.name, outcome.err().map(|e| e.raw_os_error().expect("the kernel's")))
    });
    outcomes.to_vec()
}

const EPERM: Option<i32> = Some(1);

#[test]
fn a_former_owner_loses_its_rights() {
    let reference = reference();
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| {
            for (what, by_name, _) in OWNERS_CHANGES {
                let given = |first, second| given_away((first, second), |path, _| by_name(path));
                assert_eq!(given(reference.path(), reference.path()), [("owner", EPERM), ("stranger", None)]);
                assert_eq!(
                    given(&a.point, &b.point),
                    [("owner", EPERM), ("stranger", None)],
                    "{what}, with {options:?}"
                );
            }
        });
    }
}

/// The kernel refuses the new owner until it has queried the attributes.
#[test]
fn a_former_owner_loses_its_rights_on_an_open_file() {
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| {
            for (what, _, through) in OWNERS_CHANGES {
                let outcomes = given_away((&a.point, &b.point), |_, file| through(file));
                assert_eq!(outcomes, [("owner", EPERM), ("stranger", EPERM)], "{what}, with {options:?}");
                let outcomes = given_away((&a.point, &b.point), |_, file| {
                    file.metadata().expect("attributes");
                    through(file)
                });
                assert_eq!(outcomes, [("owner", EPERM), ("stranger", None)], "{what}, with {options:?}");
            }
        });
    }
}

/// In these cases the kernel decides alone, by the owner that it has cached.
#[test]
fn a_former_owner_keeps_a_few_rights_on_an_open_file() {
    pairs(16 * MIB, &[], |_, a, b| {
        let touched = given_away((&a.point, &b.point), |_, file| {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            Ok(futimens(file, &Timestamps { last_access: now, last_modification: now })?)
        });
        assert_eq!(touched[0], ("owner", None));
        let unread = given_away((&a.point, &b.point), |_, file| Ok(fcntl_setfl(file, OFlags::NOATIME)?));
        assert_eq!(unread, [("owner", None), ("stranger", EPERM)]);
        // Linking a fifo through the former owner's descriptor. Links to files of other users are
        // refused otherwise.
        mkdir(&a.path("links"), 0o777).expect("made");
        chmod(&a.path("links"), 0o777).expect("chmod");
        node(&a.path("fifo"), FileType::Fifo, 0).expect("made");
        chmod(&a.path("fifo"), 0o600).expect("chmod");
        chown(a.path("fifo"), Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
        let fifo = OpenOptions::new().read(true).write(true).open(b.path("fifo")).expect("opened");
        assert_eq!(fifo.metadata().expect("attributes").uid(), OWNER.uid);
        chown(a.path("fifo"), Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
        let link = |name: &str| {
            let path = format!("/proc/thread-self/fd/{}", fifo.as_raw_fd());
            linkat(CWD, path, CWD, b.path("links").join(name), AtFlags::SYMLINK_FOLLOW)
        };
        OWNER.does(|| link("owners")).expect("linked");
        drop(fifo);
    });
}

/// Holds for all names of the file, not only for those that were looked up.
#[test]
fn a_former_owner_loses_its_rights_under_all_names() {
    pairs(16 * MIB, &[], |_, a, b| {
        mkdir(&b.path("d"), 0o777).expect("made");
        chmod(&b.path("d"), 0o777).expect("chmod");
        for name in ["file", "other"] {
            create(&b.path(name), 0o644).expect("made");
            chown(b.path(name), Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
        }
        fs::rename(b.path("file"), b.path("d/renamed")).expect("renamed");
        fs::hard_link(b.path("d/renamed"), b.path("linked")).expect("linked");
        renameat_with(CWD, b.path("linked"), CWD, b.path("other"), RenameFlags::EXCHANGE).expect("exchanged");
        // "linked" is the former "other".
        let names = ["d/renamed", "other"];
        assert!(names.iter().all(|name| fs::metadata(b.path(name)).expect("attributes").nlink() == 2));
        for (from, to) in [(OWNER, STRANGER), (STRANGER, OWNER)] {
            chown(a.path("d/renamed"), Some(to.uid), Some(to.gid)).expect("chown");
            for name in names {
                let tried = from.does(|| chmod(&b.path(name), 0o600));
                assert_eq!(tried.map_err(|e| e.raw_os_error()), Err(EPERM), "{name}, {}", from.name);
                to.does(|| chmod(&b.path(name), 0o640))
                    .unwrap_or_else(|e| panic!("{name}, {}: {e}", to.name));
            }
        }
        chown(a.path("linked"), Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
        STRANGER.does(|| chmod(&b.path("linked"), 0o640)).expect("chmod");
    });
}

/// Returns a file of the owner, opened through `second`, and then given to the stranger through
/// `first`.
fn given_to_the_stranger(first: &Path, second: &Path) -> File {
    create(first, 0o644).expect("made");
    chown(first, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
    let file = File::open(second).expect("opened");
    assert_eq!(file.metadata().expect("attributes").uid(), OWNER.uid);
    chown(first, Some(STRANGER.uid), Some(STRANGER.gid)).expect("chown");
    file
}

/// A former owner with a capability for files of other users keeps the rights of that capability,
/// and loses the others.
#[test]
fn a_former_owner_with_the_capability_keeps_its_rights() {
    pairs(16 * MIB, &[], |_, a, b| {
        for (name, capability, refused) in [
            ("any", CapabilitySet::FOWNER, &["chgrp"][..]),
            ("giver", CapabilitySet::CHOWN, &["chmod", "utimens", "setfacl"]),
        ] {
            let file = given_to_the_stranger(&a.path(name), &b.path(name));
            let act = || {
                set_keep_capabilities(true).expect("prctl");
                let uid = Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
                let none = CapabilitySet::empty();
                let sets = CapabilitySets { effective: capability, permitted: capability, inheritable: none };
                set_capabilities(None, sets).expect("capset");
                for (what, by_name, through) in OWNERS_CHANGES {
                    let expected = if refused.contains(&what) { Err(EPERM) } else { Ok(()) };
                    let found = [through(&file), by_name(&b.path(name))];
                    let found = found.map(|outcome| outcome.map_err(|e| e.raw_os_error()));
                    assert_eq!(found, [expected, expected], "{what}, {name}");
                }
            };
            thread::scope(|scope| scope.spawn(act).join().expect("thread"));
        }
        assert_eq!(fs::metadata(a.path("any")).expect("attributes").mode(), 0o100_640);
    });
}

/// Root of a user namespace has all capabilities there.
#[test]
fn a_former_owner_gains_no_rights_in_its_own_user_namespace() {
    const PROGRAM: &str = "chmod 640 /proc/self/fd/0 && echo changed; grep CapEff /proc/self/status";
    pairs(16 * MIB, &[], |_, a, b| {
        let file = given_to_the_stranger(&a.path("file"), &b.path("file"));
        let mut command = Command::new("unshare");
        let out = command
            .args(["--user", "--map-root-user", "sh", "-c", PROGRAM])
            .uid(OWNER.uid)
            .gid(OWNER.gid)
            .stdin(file);
        let out = out.output().expect("it runs");
        let (said, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(said.starts_with("CapEff:") && said.contains("fff"), "{said}{why}");
        assert_eq!(fs::metadata(a.path("file")).expect("attributes").mode(), 0o100_644);
    });
}

/// Setgid may be set by members of the file's current group, not of its previous group.
#[test]
fn set_group_id_is_for_members_of_the_group_that_a_file_has() {
    let modes = |first: &Path, second: &Path| {
        let mut modes = Vec::new();
        for (group, open) in [(MEMBER.gid, true), (MEMBER.gid, false), (OWNER.gid, true), (OWNER.gid, false)]
        {
            let (first, second) = (first.join("file"), second.join("file"));
            create(&first, 0o644).expect("made");
            chown(&first, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
            let file = File::open(&second).expect("opened");
            chown(&first, None, Some(group)).expect("chgrp");
            let mode = Permissions::from_mode(0o2755);
            let change = || if open { file.set_permissions(mode) } else { chmod(&second, 0o2755) };
            OWNER.does(change).expect("chmod");
            modes.push(fs::metadata(&first).expect("attributes").mode() & 0o7777);
            fs::remove_file(&first).expect("removed");
        }
        modes
    };
    let reference = reference();
    let should = modes(reference.path(), reference.path());
    assert_eq!(should, [0o755, 0o755, 0o2755, 0o2755]);
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |_, a, b| assert_eq!(modes(&a.point, &b.point), should, "with {options:?}"));
    }
}

/// chown(2) without an owner and a group also clears suid. The kernel leaves the check for owner
/// or root to the file system. Its request looks like a write, which does not clear suid for
/// root. So the call has an effect only for the owner.
#[test]
fn a_change_of_owner_that_changes_no_owner_takes_suid_away() {
    let outcomes = |directory: &Path| {
        [ROOT, OWNER, MEMBER, STRANGER].map(|actor| {
            let path = directory.join(actor.name);
            create(&path, 0o700).expect("made");
            chown(&path, Some(OWNER.uid), Some(OWNER.gid)).expect("chown");
            chmod(&path, 0o6755).expect("chmod");
            let outcome = actor.does(|| chown(&path, None, None).map_err(|e| e.raw_os_error()));
            (actor.name, outcome, fs::metadata(&path).expect("attributes").mode() & 0o7777)
        })
    };
    let reference = reference();
    let [root, owner, others @ ..] = outcomes(reference.path());
    assert_eq!([root, owner], [("root", Ok(()), 0o755), ("owner", Ok(()), 0o755)]);
    assert!(others.iter().all(|(_, outcome, mode)| (*outcome, *mode) == (Err(EPERM), 0o6755)));
    each(16 * MIB, |_, mount| {
        let [of_root, of_owner, others @ ..] = outcomes(&mount.point);
        assert_eq!((of_root, of_owner), (("root", Ok(()), 0o6755), owner));
        assert!(others.iter().all(|(_, outcome, mode)| (*outcome, *mode) == (Ok(()), 0o6755)), "{others:?}");
    });
}
