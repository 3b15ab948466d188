//! Permission checks of users that are not root.

use rfs_native::{Credentials, FileKind, Mount, OpenOptions, SetTime, Times};

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
