//! Names, links and listings.

use std::collections::BTreeSet;

use rdmabox::ProviderKind;
use rfs_native::{Credentials, FileKind, OpenOptions, RenameMode};

use crate::common::*;

#[test]
fn paths_are_walked_as_on_a_mount() {
    with_mounts(|mount| {
        mount.make_dirs("a/b/c").unwrap();
        mount.write("a/b/file", "x").unwrap();
        mount.symlink("b/c", "a/link").unwrap();
        mount.symlink("/a/b", "a/absolute").unwrap();
        mount.symlink("nowhere", "a/dangling").unwrap();
        for path in
            ["a/b/file", "/a/b/file", "a//b/./file", "a/b/c/../file", "a/link/../file", "a/absolute/file"]
        {
            assert_eq!(mount.read(path).unwrap(), b"x", "{path}");
        }
        assert_eq!(mount.read("../../a/b/file").unwrap(), b"x", "the root is its own parent");
        assert_eq!(errno(mount.stat("")), ENOENT);
        assert_eq!(errno(mount.stat("a/b/file/")), ENOTDIR);
        assert_eq!(errno(mount.stat("a/b/file/x")), ENOTDIR);
        assert_eq!(errno(mount.stat("a/x/../b")), ENOENT);
        assert_eq!(errno(mount.stat("a/dangling")), ENOENT);
        assert_eq!(errno(mount.stat("a\0b")), EINVAL);
        assert_eq!(errno(mount.stat("x".repeat(256))), ENAMETOOLONG);
        assert_eq!(errno(mount.stat("x/".repeat(3000))), ENAMETOOLONG);
        assert!(mount.stat_link("a/dangling").unwrap().is_symlink());
        assert!(mount.stat_link("a/link/").unwrap().is_dir(), "a slash follows the link");
        assert_eq!(mount.read_link("a/link").unwrap().to_str(), Some("b/c"));
        assert_eq!(errno(mount.read_link("a/b")), EINVAL);
        let dir = mount.open_dir("a/b").unwrap();
        assert_eq!(dir.read("../b/file").unwrap(), b"x");
        assert_eq!(dir.open_dir("..").unwrap().ino(), mount.stat("a").unwrap().ino);
        assert_eq!(errno(mount.open_dir("a/b/file")), ENOTDIR);
    });
}

/// Detects a birth that is not the time of the creation, or that a change moves.
#[test]
fn the_time_of_birth() {
    with_mounts(|mount| {
        mount.write("file", "x").unwrap();
        let born = mount.born("file").unwrap().unwrap();
        assert!(born <= mount.stat("file").unwrap().mtime);
        mount.symlink("file", "link").unwrap();
        mount.rename("file", "moved").unwrap();
        mount.write("file", "y").unwrap();
        assert_eq!(mount.born("moved").unwrap(), Some(born));
        assert!(mount.born("link").unwrap() > Some(born), "that of the new file");
        assert_eq!(errno(mount.born("nothing")), ENOENT);
    });
}

#[test]
fn forty_links_are_followed_and_circles_end() {
    with_mounts(|mount| {
        mount.write("end", "x").unwrap();
        mount.symlink("end", "l1").unwrap();
        for at in 2..=41 {
            mount.symlink(format!("l{}", at - 1), format!("l{at}")).unwrap();
        }
        assert_eq!(mount.read("l40").unwrap(), b"x");
        assert_eq!(errno(mount.read("l41")), ELOOP);
        mount.symlink("circle", "circle").unwrap();
        assert_eq!(errno(mount.stat("circle")), ELOOP);
        assert_eq!(errno(mount.stat("circle/x")), ELOOP);
        let no_follow = mount.open_with("l1", OpenOptions::new().read(true).follow(false));
        assert_eq!(errno(no_follow), ELOOP);
    });
}

#[test]
fn names_are_made_and_removed_once() {
    with_mounts(|mount| {
        mount.make_dir("d", 0o777).unwrap();
        assert_eq!(mount.stat("d").unwrap().perm, 0o755, "less the umask");
        assert_eq!(errno(mount.make_dir("d", 0o777)), EEXIST);
        assert_eq!(errno(mount.make_dir("/", 0o777)), EEXIST);
        assert_eq!(errno(mount.make_dir("x/y", 0o777)), ENOENT);
        mount.make_dir("e/", 0o700).unwrap();
        mount.write("d/f", "1").unwrap();
        assert_eq!(errno(mount.remove_dir("d")), ENOTEMPTY);
        assert_eq!(errno(mount.remove_dir("d/f")), ENOTDIR);
        assert_eq!(errno(mount.remove_file("d")), EISDIR);
        assert_eq!(errno(mount.remove_dir("d/.")), EINVAL);
        assert_eq!(errno(mount.remove_dir("d/..")), ENOTEMPTY);
        mount.link("d/f", "d/g").unwrap();
        assert_eq!(mount.stat("d/g").unwrap().nlink, 2);
        assert_eq!(errno(mount.link("d", "h")), EPERM);
        mount.remove_file("d/f").unwrap();
        assert_eq!(errno(mount.remove_file("d/f")), ENOENT);
        assert_eq!(mount.read("d/g").unwrap(), b"1");
        mount.make_node("fifo", FileKind::Fifo, 0o600, 0).unwrap();
        assert_eq!(mount.stat("fifo").unwrap().kind, FileKind::Fifo);
        assert_eq!(errno(mount.open("fifo")), 6, "ENXIO");
        mount.remove_tree("d").unwrap();
        assert!(!mount.exists("d").unwrap());
    });
}

#[test]
fn a_tree_of_any_depth_is_removed() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(ProviderKind::Shm);
    let mut dir = mount.root().clone();
    for _ in 0..3000 {
        dir.make_dir("d", 0o755).unwrap();
        dir = dir.open_dir("d").unwrap();
    }
    dir.write("f", "x").unwrap();
    mount.remove_tree("d").unwrap();
    assert!(mount.list("/").unwrap().is_empty());
}

#[test]
fn errors_come_in_the_order_of_the_kernel() {
    with_mounts(|mount| {
        mount.write("f", "x").unwrap();
        let user = mount.as_user(Credentials::new(1001, 1001));
        let device = |path: &str| errno(user.make_node(path, FileKind::CharDevice, 0o600, 0));
        assert_eq!([device("f"), device("x/y"), device("new")], [EEXIST, ENOENT, EPERM]);
        assert_eq!([errno(mount.symlink("", "f")), errno(mount.symlink("x", "f"))], [ENOENT, EEXIST]);
        assert_eq!(errno(mount.symlink("x".repeat(4096), "f")), ENAMETOOLONG);
        assert_eq!(errno(mount.rename("absent", "n".repeat(256))), ENOENT);
        assert_eq!(errno(mount.rename("f", "n".repeat(256))), ENAMETOOLONG);
        assert_eq!(errno(mount.xattr("f", "")), 34, "ERANGE");
    });
}

#[test]
fn renames_replace_refuse_and_exchange() {
    with_mounts(|mount| {
        mount.write("a", "a").unwrap();
        mount.write("b", "b").unwrap();
        assert_eq!(errno(mount.rename_with("a", "b", RenameMode::NoReplace)), EEXIST);
        mount.rename_with("a", "b", RenameMode::Exchange).unwrap();
        assert_eq!((mount.read("a").unwrap(), mount.read("b").unwrap()), (b"b".to_vec(), b"a".to_vec()));
        mount.rename("a", "b").unwrap();
        assert_eq!(mount.read("b").unwrap(), b"b");
        assert_eq!(errno(mount.stat("a")), ENOENT);
        mount.make_dirs("d/e").unwrap();
        assert_eq!(errno(mount.rename("d", "d/e/f")), EINVAL);
        assert_eq!(errno(mount.rename("b", "d")), EISDIR);
        assert_eq!(errno(mount.rename("d", "b")), ENOTDIR);
        assert_eq!(errno(mount.rename("b", "c/")), ENOTDIR);
        assert_eq!(errno(mount.rename_with("b", "x", RenameMode::Exchange)), ENOENT);
        mount.rename("d/e", "g").unwrap();
        assert!(mount.list("d").unwrap().is_empty());
    });
}

#[test]
fn long_listings_are_complete() {
    for provider in PROVIDERS {
        let server = TestServer::new(64 << 20);
        let mount = server.mount(provider);
        let names: BTreeSet<String> = (0..1000).map(|at| format!("file {at}")).collect();
        for name in &names {
            mount.write(name, name).unwrap();
        }
        let listed = mount.list("/").unwrap();
        assert_eq!(listed.len(), 1000);
        assert!(listed.iter().all(|entry| entry.stat().size == entry.name().len() as u64));
        let found = listed.iter().map(|entry| entry.name().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, found);
        assert_eq!(mount.entries().unwrap().count(), 1000);
    }
}

#[test]
fn of_two_exclusive_creations_one_succeeds() {
    with_two_mounts(|one, two| {
        for at in 0..50 {
            let name = &format!("file {at}");
            let create = |mount: &rfs_native::Mount| {
                mount.open_with(name, OpenOptions::new().write(true).create_new(true)).is_ok()
            };
            let made = std::thread::scope(|scope| {
                let other = scope.spawn(|| create(two));
                [create(one), other.join().unwrap()]
            });
            assert_eq!(made.iter().filter(|made| **made).count(), 1, "{name}");
        }
    });
}

#[test]
fn a_name_that_comes_and_goes_is_made_or_opened() {
    with_two_mounts(|one, two| {
        std::thread::scope(|scope| {
            let goes = scope.spawn(|| {
                for _ in 0..200 {
                    two.write("name", "x").unwrap();
                    two.remove_file("name").ok();
                }
            });
            while !goes.is_finished() {
                one.open_with("name", OpenOptions::new().write(true).create(true)).unwrap();
            }
        });
    });
}
