//! Permission checks of users that are not root.

use rdmabox::ProviderKind;
use rfs_native::{Credentials, File, FileKind, Mount, OpenOptions, SetTime, Times};

use crate::common::*;

const USER: u32 = 1001;
const OTHER: u32 = 1002;

fn users(mount: &Mount) -> (Mount, Mount) {
    (mount.as_user(Credentials::new(USER, USER)), mount.as_user(Credentials::new(OTHER, OTHER)))
}

#[test]
fn files_belong_to_their_creator() {
    with_mounts(|mount| {
        let (user, other) = users(mount);
        user.make_dir("home", 0o700).unwrap();
        user.write("home/f", "x").unwrap();
        let stat = mount.stat("home/f").unwrap();
        assert_eq!((stat.uid, stat.gid, stat.perm), (USER, USER, 0o644));
        assert_eq!(errno(other.stat("home/f")), EACCES);
        assert_eq!(errno(other.list("home")), EACCES);
        user.set_mode("home", 0o711).unwrap();
        assert_eq!(other.read("home/f").unwrap(), b"x");
        assert_eq!(errno(other.list("home")), EACCES);
        assert_eq!(errno(other.write("home/f", "y")), EACCES);
        assert_eq!(errno(other.remove_file("home/f")), EACCES);
        assert_eq!(errno(other.write("home/g", "y")), EACCES);
        assert_eq!(errno(other.set_len("home/f", 0)), EACCES);
        assert_eq!(errno(other.access("home/f", true, true, false)), EACCES);
        assert_eq!(errno(other.access("home/f", true, false, false)), 0);
    });
}

#[test]
fn only_the_owner_changes_attributes() {
    with_mounts(|mount| {
        let (user, other) = users(mount);
        user.write("f", "x").unwrap();
        let now = Times { accessed: SetTime::Now, modified: SetTime::Now };
        let given = Times { accessed: SetTime::Keep, modified: SetTime::At(5_000_000_000) };
        assert_eq!(errno(other.set_mode("f", 0o777)), EPERM);
        assert_eq!(errno(other.set_times("f", given)), EPERM);
        assert_eq!(errno(other.set_times("f", now)), EACCES);
        assert_eq!(errno(other.set_owner("f", Some(OTHER), None)), EPERM);
        assert_eq!(errno(user.set_owner("f", Some(OTHER), None)), EPERM);
        assert_eq!(errno(user.set_owner("f", None, Some(OTHER))), EPERM);
        user.set_times("f", given).unwrap();
        assert_eq!(mount.stat("f").unwrap().mtime, 5_000_000_000);
        mount.set_owner("f", Some(OTHER), Some(OTHER)).unwrap();
        other.set_mode("f", 0o600).unwrap();
        assert_eq!(errno(user.read("f")), EACCES);
        let member = Credentials { groups: vec![OTHER], ..Credentials::new(USER, USER) };
        other.set_mode("f", 0o640).unwrap();
        assert_eq!(mount.as_user(member).read("f").unwrap(), b"x");
    });
}

#[test]
fn a_write_clears_set_user_id() {
    with_mounts(|mount| {
        let (user, _) = users(mount);
        user.write("program", "x").unwrap();
        user.set_mode("program", 0o6755).unwrap();
        assert_eq!(mount.stat("program").unwrap().perm, 0o6755);
        let root = mount.open_with("program", OpenOptions::new().write(true)).unwrap();
        root.write_all_at(b"y", 0).unwrap();
        assert_eq!(mount.stat("program").unwrap().perm, 0o6755, "root may keep it");
        let file = user.open_with("program", OpenOptions::new().write(true)).unwrap();
        file.write_all_at(b"y", 0).unwrap();
        assert_eq!(mount.stat("program").unwrap().perm, 0o755);
        user.set_mode("program", 0o4755).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(mount.stat("program").unwrap().perm, 0o755);
        user.set_mode("program", 0o4755).unwrap();
        file.append(b"y").unwrap();
        assert_eq!(mount.stat("program").unwrap().perm, 0o755);
    });
}

/// Returns the value of a capability of a program.
fn capability() -> Vec<u8> {
    [&[0, 0, 0, 2, 0, 0x20][..], &[0; 14]].concat()
}

#[test]
fn each_change_of_contents_ends_lent_rights() {
    type Change = fn(&Mount);
    let changes: [(&str, Change); 7] = [
        ("truncate", |user| user.set_len("f", 1).unwrap()),
        ("open to cut", |user| {
            drop(user.open_with("f", OpenOptions::new().write(true).truncate(true)).unwrap())
        }),
        ("ftruncate", |user| opened(user).set_len(1).unwrap()),
        ("write", |user| opened(user).write_all_at(b"y", 0).unwrap()),
        ("append", |user| assert!(opened(user).append(b"y").unwrap() > 0)),
        ("allocate", |user| opened(user).allocate(0, 10_000).unwrap()),
        ("copy", |user| assert_eq!(opened(user).copy_to(0, &opened(user), 100, 1).unwrap(), 1)),
    ];
    with_mounts(|root| {
        root.write("f", [7; 50]).unwrap();
        root.set_owner("f", Some(USER), Some(OTHER)).unwrap();
        let (user, other) = users(root);
        let member = root.as_user(Credentials { groups: vec![OTHER], ..Credentials::new(USER, USER) });
        for (name, change) in changes {
            // Permission bits and the bits that the user, a member of the group, and root leave.
            for (perm, of_user, of_member) in [
                (0o6777, 0o777, 0o777),
                (0o2767, 0o767, 0o2767),
                (0o4767, 0o767, 0o767),
                (0o767, 0o767, 0o767),
            ] {
                for (changer, expected) in
                    [(&user, of_user), (&member, of_member), (&other, of_member), (root, perm)]
                {
                    root.set_mode("f", perm).unwrap();
                    root.set_xattr("f", "security.capability", &capability()).unwrap();
                    change(changer);
                    assert_eq!(root.stat("f").unwrap().perm, expected, "{name} of {perm:o}");
                    assert_eq!(errno(root.xattr("f", "security.capability")), 61, "{name} of {perm:o}");
                }
            }
        }
        root.set_mode("f", 0o6777).unwrap();
        assert_eq!(opened(&user).write_at(b"", 0).unwrap(), 0);
        assert_eq!(root.stat("f").unwrap().perm, 0o6777, "nothing was written");
    });
}

fn opened(user: &Mount) -> File {
    user.open_with("f", OpenOptions::new().read(true).write(true)).unwrap()
}

#[test]
fn a_write_clears_what_another_mount_has_just_set() {
    let pairs = [(ProviderKind::Tcp, true), (ProviderKind::Tcp, false), (ProviderKind::Shm, true)];
    for (provider, caches) in pairs {
        let server = TestServer::new(64 << 20);
        let (one, two) =
            (server.mount(provider), server.mount_with(provider, |options| options.caches = caches));
        one.write("f", "x").unwrap();
        one.set_owner("f", Some(USER), Some(USER)).unwrap();
        // Two mounts write, so the server recalls no attributes.
        let (_here, there) = (opened(&one), opened(&users(&two).0));
        for round in 0..20 {
            there.write_all_at(b"x", 0).unwrap();
            one.set_mode("f", 0o4755).unwrap();
            there.write_all_at(b"y", 0).unwrap();
            assert_eq!(one.stat("f").unwrap().perm, 0o755, "{provider} {caches} {round}");
            one.set_mode("f", 0o4755).unwrap();
            there.start_write(0, b"z".to_vec()).wait().unwrap();
            assert_eq!(one.stat("f").unwrap().perm, 0o755, "{provider} {caches} {round}");
        }
    }
}

#[test]
fn an_open_for_reading_creates_and_cuts() {
    with_mounts(|root| {
        let (user, other) = users(root);
        let file = user.open_with("f", OpenOptions::new().read(true).create(true).mode(0o444)).unwrap();
        assert_eq!(root.stat("f").unwrap().perm, 0o444);
        assert_eq!((file.read_at(&mut [0; 4], 0).unwrap(), errno(file.write_at(b"x", 0))), (0, EBADF));
        file.close().unwrap();
        root.write("f", "bytes").unwrap();
        user.open_with("f", OpenOptions::new().read(true).create(true)).unwrap();
        assert_eq!(root.read("f").unwrap(), b"bytes", "it exists");
        assert_eq!(errno(user.open_with("f", OpenOptions::new().read(true).create_new(true))), EEXIST);
        let cuts = |user: &Mount| user.open_with("f", OpenOptions::new().read(true).truncate(true));
        assert_eq!(errno(cuts(&other)), EACCES);
        user.set_mode("f", 0o644).unwrap();
        cuts(&user).unwrap();
        assert_eq!(root.stat("f").unwrap().size, 0);
        // The attributes of a file that was opened for reading only are cached.
        root.stat("f").unwrap();
        let before = calls(root);
        for _ in 0..100 {
            root.stat("f").unwrap();
        }
        assert!(calls(root) < before + 10);
    });
}

#[test]
fn a_stranger_makes_no_executable_of_a_group() {
    with_mounts(|mount| {
        let (user, _) = users(mount);
        mount.make_dir("shared", 0o777).unwrap();
        mount.set_owner("shared", None, Some(OTHER)).unwrap();
        mount.set_mode("shared", 0o2777).unwrap();
        let create = |user: &Mount, path: &str| {
            let file = user.open_with(path, OpenOptions::new().write(true).create_new(true).mode(0o2755));
            file.unwrap().close().unwrap();
            mount.stat(path).unwrap()
        };
        let stat = create(&user, "shared/f");
        assert_eq!((stat.gid, stat.perm), (OTHER, 0o755));
        user.make_node("shared/node", FileKind::Regular, 0o2755, 0).unwrap();
        assert_eq!(mount.stat("shared/node").unwrap().perm, 0o755);
        let member = Credentials { groups: vec![OTHER], ..Credentials::new(USER, USER) };
        assert_eq!(create(&mount.as_user(member), "shared/g").perm, 0o2755);
    });
}

#[test]
fn sticky_directories_protect_names_of_others() {
    with_mounts(|mount| {
        let (user, other) = users(mount);
        mount.make_dir("tmp", 0o777).unwrap();
        mount.set_mode("tmp", 0o1777).unwrap();
        user.write("tmp/f", "x").unwrap();
        other.write("tmp/g", "x").unwrap();
        assert_eq!(errno(other.remove_file("tmp/f")), EPERM);
        assert_eq!(errno(other.rename("tmp/f", "tmp/h")), EPERM);
        assert_eq!(errno(other.rename("tmp/g", "tmp/f")), EPERM);
        assert_eq!(errno(other.link("tmp/f", "tmp/l")), EPERM, "not readable and writable");
        user.remove_file("tmp/f").unwrap();
    });
}

#[test]
fn access_lists_are_checked() {
    with_mounts(|mount| {
        let (user, other) = users(mount);
        user.write("f", "x").unwrap();
        user.set_mode("f", 0o600).unwrap();
        let mut acl = 2_u32.to_le_bytes().to_vec();
        let entries =
            [(1_u16, 6_u16, u32::MAX), (2, 4, OTHER), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
        for (tag, perm, id) in entries {
            acl.extend(tag.to_le_bytes());
            acl.extend(perm.to_le_bytes());
            acl.extend(id.to_le_bytes());
        }
        assert_eq!(errno(other.set_xattr("f", "system.posix_acl_access", &acl)), EPERM);
        assert_eq!(errno(other.read("f")), EACCES);
        user.set_xattr("f", "system.posix_acl_access", &acl).unwrap();
        assert_eq!(other.read("f").unwrap(), b"x");
        assert_eq!(errno(other.write("f", "y")), EACCES);
        let third = mount.as_user(Credentials::new(1003, 1003));
        assert_eq!(errno(third.read("f")), EACCES);
        user.remove_xattr("f", "system.posix_acl_access").unwrap();
        assert_eq!(errno(other.read("f")), EACCES);
    });
}

#[test]
fn extended_attributes_have_their_rules() {
    with_mounts(|mount| {
        let (user, other) = users(mount);
        user.write("f", "x").unwrap();
        user.set_xattr("f", "user.a", b"1").unwrap();
        assert_eq!(other.xattr("f", "user.a").unwrap(), b"1");
        assert_eq!(errno(other.set_xattr("f", "user.a", b"2")), EACCES);
        assert_eq!(errno(user.set_xattr("f", "trusted.a", b"2")), EPERM);
        assert_eq!(errno(user.set_xattr("f", "other.a", b"2")), 95, "EOPNOTSUPP");
        mount.set_xattr("f", "trusted.a", &[7; 60_000]).unwrap();
        assert_eq!(mount.xattr("f", "trusted.a").unwrap().len(), 60_000);
        assert_eq!((user.xattrs("f").unwrap().len(), mount.xattrs("f").unwrap().len()), (1, 2));
        user.remove_xattr("f", "user.a").unwrap();
        assert_eq!(errno(user.xattr("f", "user.a")), 61, "ENODATA");
    });
}
