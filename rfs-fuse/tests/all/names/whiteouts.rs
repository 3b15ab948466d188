//! RENAME_WHITEOUT, as used by overlayfs: compares the result with that of a file system in
//! memory.

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
    path::Path,
    thread,
};

use crate::common::{NOBODY, TestServer, each, pairs, providers};
use rustix::{
    fs::{CWD, RenameFlags, XattrFlags, lgetxattr, renameat_with, setxattr, statvfs},
    io::Errno,
    process::{Gid, Uid},
};

const MIB: u64 = 1 << 20;
const WHITEOUT: RenameFlags = RenameFlags::WHITEOUT;
const DEFAULT_ACL: &str = "system.posix_acl_default";
const ACCESS_ACL: &str = "system.posix_acl_access";
/// user::rwx, user 5:rwx, group::rwx, mask::rwx, other::rwx, in the kernel's form.
const ACL: [u8; 44] = {
    let mut acl = [255; 44];
    acl.split_at_mut(4).0.copy_from_slice(&[2, 0, 0, 0]);
    let mut at = 0;
    while at < 5 {
        acl.split_at_mut(4 + 8 * at).1.split_at_mut(4).0.copy_from_slice(&[[1, 2, 4, 16, 32][at], 0, 7, 0]);
        at += 1;
    }
    acl.split_at_mut(16).1.split_at_mut(4).0.copy_from_slice(&[5, 0, 0, 0]);
    acl
};

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, flags)
}

/// Mode, links, owner and group, device, size, and access ACL.
type Seen = (u32, u64, (u32, u32), u64, u64, Option<Vec<u8>>);

/// Returns the attributes of a path. A directory has size 0, because sizes of directories differ
/// between file systems.
fn look(path: &Path) -> Option<Seen> {
    let attr = fs::symlink_metadata(path).ok()?;
    let mut acl = [0; 256];
    let acl = lgetxattr(path, ACCESS_ACL, &mut acl[..]).ok().map(|len| acl[..len].to_vec());
    let size = if attr.is_dir() { 0 } else { attr.size() };
    Some((attr.mode(), attr.nlink(), (attr.uid(), attr.gid()), attr.rdev(), size, acl))
}

/// Runs `what` on a thread of an ordinary user.
fn as_ordinary_user<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).expect("setgroups, of this thread");
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid, of this thread");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
        what()
    };
    thread::scope(|scope| scope.spawn(act).join().expect("thread"))
}

/// The rename, its result, and the state of the old name, the new name, and their directories.
type Renamed = (String, Result<(), Errno>, [Option<Seen>; 4]);

/// Runs various renames below a directory.
fn record(root: &Path) -> Vec<Renamed> {
    let path = |name: &str| root.join(name);
    for (name, mode, gid) in
        [("plain", 0o777, 0), ("setgid", 0o2777, 77), ("acl", 0o777, 0), ("sticky", 0o1777, 0)]
    {
        fs::create_dir(path(name)).expect("made");
        chown(path(name), None, Some(gid)).expect("chown");
        fs::set_permissions(path(name), Permissions::from_mode(mode)).expect("chmod");
    }
    setxattr(path("acl"), DEFAULT_ACL, &ACL, XattrFlags::empty()).expect("set");
    let mut done = Vec::new();
    let mut goes = |who: &str, from: &str, to: &str, flags| {
        let act = || rename(&path(from), &path(to), flags);
        let outcome = if who == "nobody" { as_ordinary_user(act) } else { act() };
        let above = |name: &str| path(name.split_once('/').expect("in a directory").0);
        let seen = [path(from), path(to), above(from), above(to)].map(|path| look(&path));
        done.push((format!("{who}: {from} to {to}, {flags:?}"), outcome, seen));
    };
    for name in [
        "plain/file",
        "plain/other",
        "setgid/file",
        "acl/file",
        "plain/replaced",
        "plain/full/inner",
        "plain/moves/x",
    ] {
        fs::create_dir_all(path(name).parent().expect("a name")).expect("made");
        fs::write(path(name), name).expect("written");
    }
    for name in ["plain/empty", "plain/dir"] {
        fs::create_dir(path(name)).expect("made");
    }
    fs::hard_link(path("plain/file"), path("plain/link")).expect("linked");
    let both = WHITEOUT | RenameFlags::NOREPLACE;
    // Renaming a file to itself changes nothing.
    goes("root", "plain/file", "plain/file", WHITEOUT);
    goes("root", "plain/file", "plain/link", WHITEOUT);
    // Within a directory: to a new name, over a file, over a whiteout, without replacing.
    goes("root", "plain/file", "plain/new", WHITEOUT);
    goes("root", "plain/new", "plain/other", WHITEOUT);
    goes("root", "plain/other", "plain/new", WHITEOUT);
    goes("root", "plain/new", "plain/replaced", both);
    goes("root", "plain/new", "plain/newer", both);
    // To another directory, and of a whiteout itself.
    goes("root", "setgid/file", "plain/from-setgid", WHITEOUT);
    goes("root", "acl/file", "setgid/from-acl", WHITEOUT);
    goes("root", "acl/file", "acl/whiteout", WHITEOUT);
    // Directories.
    goes("root", "plain/dir", "plain/empty", WHITEOUT);
    goes("root", "plain/moves", "setgid/moved", WHITEOUT);
    goes("root", "plain/empty", "plain/full", WHITEOUT);
    goes("root", "plain/empty", "plain/empty/below", WHITEOUT);
    goes("root", "plain/empty", "plain/newer", WHITEOUT);
    goes("root", "plain/newer", "plain/empty", WHITEOUT);
    // Missing sources and targets.
    goes("root", "plain/nothing", "plain/anything", WHITEOUT);
    goes("root", "plain/newer", "plain/full", WHITEOUT | RenameFlags::EXCHANGE);
    // Users without the right to make device nodes get a whiteout if they may rename.
    for name in ["plain/his", "setgid/his", "acl/his"] {
        as_ordinary_user(|| fs::write(path(name), b"his")).expect("written");
        goes("nobody", name, &format!("{name}-new"), WHITEOUT);
    }
    fs::write(path("sticky/roots"), b"").expect("written");
    goes("nobody", "sticky/roots", "sticky/his", WHITEOUT);
    done
}

#[test]
fn a_whiteout_is_as_on_a_file_system_in_memory() {
    let reference = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::set_permissions(reference.path(), Permissions::from_mode(0o777)).expect("chmod");
    let should = record(reference.path());
    let of = |what: &str| should.iter().find(|(done, ..)| done.starts_with(what)).expect("done");
    let (_, outcome, seen) = of("nobody: setgid/his");
    let plain = |uid, gid| Some((0o020_000, 1, (uid, gid), 0, 0, None));
    assert_eq!((*outcome, &seen[0]), (Ok(()), &plain(NOBODY, 77)));
    assert_eq!(of("root: plain/file to plain/new").2[0], plain(0, 0));
    assert!(of("root: acl/file to setgid").2[0].as_ref().expect("a whiteout").5.is_some());
    each(16 * MIB, |_, mount| {
        for (is, should) in record(&mount.point).into_iter().zip(&should) {
            assert_eq!(is, *should);
        }
    });
}

#[test]
fn a_whiteout_is_visible_at_once_on_all_mounts() {
    let long = &["--attr-timeout", "3600", "--entry-timeout", "3600"];
    let is_whiteout = |path: &Path| {
        let attr = fs::symlink_metadata(path).expect("attributes");
        attr.file_type().is_char_device() && (attr.rdev(), attr.mode()) == (0, 0o020_000)
    };
    pairs(16 * MIB, long, |_, a, b| {
        for (round, by) in [a, b].into_iter().enumerate() {
            let names = ["file", "new", "newer"].map(|name| format!("{name}{round}"));
            fs::write(a.path(&names[0]), b"bytes").expect("written");
            let ino = fs::metadata(b.path(&names[0])).expect("attributes").ino();
            // Both kernels have cached that the file exists and the other names do not.
            for mount in [a, b] {
                assert_eq!(fs::read(mount.path(&names[0])).expect("read"), b"bytes");
                assert!(names[1..].iter().all(|name| !mount.path(name).exists()));
            }
            let open = File::open(b.path(&names[0])).expect("opened");
            rename(&by.path(&names[0]), &by.path(&names[1]), WHITEOUT).expect("renamed");
            for mount in [by, a, b] {
                assert!(is_whiteout(&mount.path(&names[0])));
                assert_eq!(fs::metadata(mount.path(&names[1])).expect("attributes").ino(), ino);
            }
            rename(&by.path(&names[1]), &by.path(&names[2]), WHITEOUT | RenameFlags::NOREPLACE)
                .expect("renamed");
            for mount in [by, a, b] {
                assert!(is_whiteout(&mount.path(&names[1])));
                assert_eq!(fs::read(mount.path(&names[2])).expect("read"), b"bytes");
            }
            assert_eq!(open.metadata().expect("attributes").ino(), ino);
            for name in &names {
                fs::remove_file(a.path(name)).expect("removed");
                assert!(fs::symlink_metadata(b.path(name)).is_err());
            }
        }
    });
}

/// A concurrent listing finds the old name exactly once, because it exists all the time.
#[test]
fn the_old_name_is_listed_once() {
    pairs(16 * MIB, &[], |_, a, b| {
        let all: Vec<String> = (0..400).map(|at| format!("f{at:04}")).collect();
        all.iter().for_each(|name| drop(File::create(a.path(name)).expect("made")));
        let mut entries = fs::read_dir(&b.point).expect("listed");
        let mut next =
            || entries.next().map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"));
        let first = next().expect("a name");
        rename(&a.path(&all[0]), &a.path("new0"), WHITEOUT).expect("renamed");
        rename(&a.path(&all[399]), &a.path("new1"), WHITEOUT).expect("renamed");
        let mut listed = vec![first];
        listed.extend(std::iter::from_fn(next));
        listed.retain(|name| name.starts_with('f'));
        assert_eq!(listed.len(), all.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), all.into_iter().collect());
    });
}

#[test]
fn a_whiteout_takes_an_inode_and_fails_without_one() {
    for over in providers() {
        // Including the root directory.
        let server = TestServer::with(16 * MIB, |config| config.inodes = Some(4));
        let mount = server.mount(over, &[]);
        let free = || statvfs(&mount.point).expect("totals").f_ffree;
        fs::write(mount.path("one"), b"1").expect("written");
        fs::write(mount.path("two"), b"2").expect("written");
        assert_eq!(free(), 1);
        rename(&mount.path("one"), &mount.path("new"), WHITEOUT).expect("renamed");
        assert_eq!(free(), 0);
        let names = || {
            let entries = fs::read_dir(&mount.point).expect("listed");
            entries
                .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
                .collect::<BTreeSet<_>>()
        };
        let before = names();
        assert_eq!(rename(&mount.path("two"), &mount.path("newer"), WHITEOUT), Err(Errno::NOSPC));
        assert_eq!((names(), fs::read(mount.path("two")).expect("read")), (before, b"2".to_vec()));
        // A rename that changes nothing, or leaves no whiteout, needs no inode.
        rename(&mount.path("two"), &mount.path("two"), WHITEOUT).expect("nothing to do");
        rename(&mount.path("two"), &mount.path("newer"), RenameFlags::empty()).expect("renamed");
        fs::remove_file(mount.path("one")).expect("removed");
        rename(&mount.path("newer"), &mount.path("two"), WHITEOUT).expect("renamed");
        assert_eq!(free(), 0);
        mount.unmount();
    }
}
