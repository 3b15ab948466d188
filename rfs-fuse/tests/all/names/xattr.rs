//! Extended attributes and ACLs on real mounts.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use crate::common::{Mount, NOBODY, TestServer, each, providers, shell_as};
use rustix::{
    fs::{XattrFlags, getxattr, getxattr_query, lgetxattr, listxattr, lsetxattr, removexattr, setxattr},
    io::Errno,
};

const MIB: u64 = 1 << 20;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const ANY: XattrFlags = XattrFlags::empty();

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, ANY)
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 64 << 10];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; 64 << 10];
    let len = listxattr(path, &mut names[..]).expect("listed");
    let names = String::from_utf8(names[..len].to_vec()).expect("UTF-8");
    names.split_terminator('\0').map(str::to_owned).collect()
}

/// Returns an ACL with permissions of the owner, an ordinary user, the group, the mask, and
/// others.
fn acl(perms: [u16; 5]) -> Vec<u8> {
    let tags = [(1u16, u32::MAX), (2, NOBODY), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for ((tag, id), perm) in tags.into_iter().zip(perms) {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("attributes").mode() & 0o7777
}

#[test]
fn attributes_are_set_listed_replaced_and_removed() {
    each(16 * MIB, |_, mount| {
        let path = &mount.path("file");
        fs::write(path, b"x").expect("written");
        assert_eq!((list(path), get(path, "user.a")), (vec![], Err(Errno::NODATA)));
        assert_eq!(setxattr(path, "user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
        setxattr(path, "user.a", b"1", XattrFlags::CREATE).expect("created");
        assert_eq!(setxattr(path, "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
        setxattr(path, "user.a", b"two\0", XattrFlags::REPLACE).expect("replaced");
        set(path, "trusted.t", b"").expect("set");
        set(path, "security.s", b"s").expect("set");
        assert_eq!(get(path, "user.a"), Ok(b"two\0".to_vec()));
        assert_eq!(list(path), ["security.s", "trusted.t", "user.a"]);
        assert_eq!(getxattr_query(path, "user.a"), Ok(4), "its length");
        assert_eq!(getxattr(path, "user.a", &mut [0u8; 3][..]), Err(Errno::RANGE));
        assert_eq!(listxattr(path, &mut [0u8; 3][..]), Err(Errno::RANGE));
        // A user without read permission does not see the attributes.
        let seen_by_others = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(NOBODY))
                    .expect("setuid, of this thread");
                list(path)
            });
            thread.join().expect("thread")
        });
        assert_eq!(seen_by_others, ["security.s", "user.a"]);
        removexattr(path, "user.a").expect("removed");
        assert_eq!(removexattr(path, "user.a"), Err(Errno::NODATA));
        assert_eq!(set(path, "nonsense.a", b""), Err(Errno::OPNOTSUPP));
        // Directories can have user attributes, links cannot.
        set(&mount.point, "user.root", b"of the tree").expect("set");
        assert_eq!(get(&mount.point, "user.root"), Ok(b"of the tree".to_vec()));
        symlink("nowhere", mount.path("link")).expect("symlink");
        assert_eq!(lsetxattr(mount.path("link"), "user.a", b"", ANY), Err(Errno::PERM));
        lsetxattr(mount.path("link"), "trusted.a", b"t", ANY).expect("set");
        assert_eq!(lgetxattr(mount.path("link"), "trusted.a", &mut [0u8; 9][..]), Ok(1));
    });
}

/// Other attributes return an error in this case. Setting an ACL without entries removes it, too.
#[test]
fn removing_an_absent_acl_succeeds() {
    each(16 * MIB, |_, mount| {
        let (file, dir) = (mount.path("file"), mount.path("dir"));
        fs::write(&file, b"x").expect("written");
        fs::create_dir(&dir).expect("made");
        for path in [&file, &dir] {
            for name in [ACCESS, DEFAULT] {
                assert_eq!(removexattr(path, name), Ok(()), "{name}");
                assert_eq!(set(path, name, &2u32.to_le_bytes()), Ok(()), "{name}");
                assert_eq!(get(path, name), Err(Errno::NODATA), "{name}");
            }
        }
        set(&dir, DEFAULT, &acl([7, 6, 5, 7, 5])).expect("set");
        set(&dir, DEFAULT, &2u32.to_le_bytes()).expect("removed");
        assert_eq!(get(&dir, DEFAULT), Err(Errno::NODATA));
    });
}

#[test]
fn an_absent_label_without_a_security_module_is_unsupported() {
    let filesystems = fs::read_to_string("/proc/filesystems").expect("procfs");
    let used = filesystems.lines().any(|line| line.ends_with("\tselinuxfs"));
    let absent = if used { Errno::NODATA } else { Errno::OPNOTSUPP };
    each(16 * MIB, |_, mount| {
        let path = &mount.path("file");
        fs::write(path, b"x").expect("written");
        assert_eq!(get(path, "security.selinux"), Err(absent));
        assert_eq!(get(path, "security.other"), Err(Errno::NODATA));
        set(path, "security.selinux", b"label").expect("set");
        assert_eq!(get(path, "security.selinux"), Ok(b"label".to_vec()));
        removexattr(path, "security.selinux").expect("removed");
        assert_eq!(removexattr(path, "security.selinux"), Err(Errno::NODATA));
    });
}

#[test]
fn values_of_every_length_and_names_of_every_length() {
    each(64 * MIB, |_, mount| {
        let path = &mount.path("file");
        fs::write(path, b"x").expect("written");
        for len in [0, 1, 4095, 4096, 48 << 10, (48 << 10) + 1, (64 << 10) - 1, 64 << 10] {
            let value: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
            set(path, "user.long", &value).expect("set");
            assert!(get(path, "user.long") == Ok(value), "{len} bytes");
        }
        assert_eq!(set(path, "user.long", &vec![0; (64 << 10) + 1]), Err(Errno::TOOBIG));
        let name = format!("user.{}", "n".repeat(250));
        set(path, &name, b"v").expect("the longest name");
        assert_eq!(get(path, &name), Ok(b"v".to_vec()));
        assert_eq!(set(path, &format!("{name}n"), b"v"), Err(Errno::RANGE));
    });
}

#[test]
fn another_mount_sees_the_attributes() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let (a, b) = (server.mount(over, &[]), server.mount(over, &[]));
        fs::write(a.path("file"), b"x").expect("written");
        assert_eq!(get(&b.path("file"), "user.a"), Err(Errno::NODATA));
        set(&a.path("file"), "user.a", b"from a").expect("set");
        assert_eq!(
            get(&b.path("file"), "user.a"),
            Ok(b"from a".to_vec()),
            "at once: nothing of it is cached"
        );
        removexattr(b.path("file"), "user.a").expect("removed");
        assert_eq!(list(&a.path("file")), Vec::<String>::new());
        b.unmount();
        a.unmount();
    }
}

#[test]
fn acls_are_checked_and_follow_the_mode() {
    each(16 * MIB, |_, mount| {
        let path = &mount.path("file");
        fs::write(path, b"secret").expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod");
        let may = |what: &str| shell_as(NOBODY, &mount.point, what) == Some(0);
        assert!(!may("cat file >/dev/null 2>&1"));
        set(path, ACCESS, &acl([6, 6, 0, 6, 0])).expect("set");
        assert_eq!((mode(path), list(path)), (0o660, vec![ACCESS.to_owned()]));
        assert!(may("cat file >/dev/null && echo more >> file"));
        // chmod changes the mask, and thereby the rights of the named user.
        fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("chmod");
        assert_eq!(get(path, ACCESS), Ok(acl([6, 6, 0, 4, 0])));
        assert!(may("cat file >/dev/null") && !may("echo more 2>/dev/null >> file"));
        removexattr(path, ACCESS).expect("removed");
        assert!(!may("cat file >/dev/null 2>&1"));
        assert_eq!((mode(path), get(path, ACCESS)), (0o640, Err(Errno::NODATA)));
        assert_eq!(set(path, DEFAULT, &acl([7; 5])), Err(Errno::ACCESS));
        assert_eq!(set(path, ACCESS, &acl([8; 5])), Err(Errno::INVAL));
    });
}

/// Creates a file and a directory with umask 077. Returns their modes.
fn made_with_a_umask(mount: &Mount, within: &str) -> (u32, u32) {
    let script = format!("umask 077; : > {within}/file; mkdir {within}/sub");
    assert_eq!(shell_as(0, &mount.point, &script), Some(0));
    (mode(&mount.path(&format!("{within}/file"))), mode(&mount.path(&format!("{within}/sub"))))
}

#[test]
fn a_default_acl_goes_before_the_umask() {
    each(16 * MIB, |_, mount| {
        for name in ["plain", "default"] {
            fs::create_dir(mount.path(name)).expect("directory");
            fs::set_permissions(mount.path(name), fs::Permissions::from_mode(0o750)).expect("chmod");
        }
        set(&mount.path("default"), DEFAULT, &acl([7, 6, 5, 7, 0])).expect("set");
        assert_eq!(made_with_a_umask(mount, "plain"), (0o600, 0o700));
        assert_eq!(made_with_a_umask(mount, "default"), (0o660, 0o770));
        assert_eq!(get(&mount.path("default/file"), ACCESS), Ok(acl([6, 6, 5, 6, 0])));
        assert_eq!(get(&mount.path("default/file"), DEFAULT), Err(Errno::OPNOTSUPP).or(Err(Errno::NODATA)));
        assert_eq!(get(&mount.path("default/sub"), DEFAULT), Ok(acl([7, 6, 5, 7, 0])));
        assert_eq!(get(&mount.path("default/sub"), ACCESS), Ok(acl([7, 6, 5, 7, 0])));
        assert_ne!(shell_as(NOBODY, &mount.point, "cat default/file 2>/dev/null"), Some(0), "no way in");
        set(&mount.path("default"), ACCESS, &acl([7, 1, 0, 1, 0])).expect("set");
        assert_eq!(shell_as(NOBODY, &mount.point, "echo x >> default/file"), Some(0));
    });
}

/// Capabilities of a program in the kernel's form: version 2, CAP_NET_RAW permitted.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn capabilities_go_with_a_write_a_truncation_or_a_change_of_owner() {
    for (over, options) in
        providers().into_iter().flat_map(|over| [(over, &[][..]), (over, &["--direct-io"][..])])
    {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, options);
        let path = &mount.path("program");
        fs::write(path, b"program").expect("written");
        let with = |what: &dyn Fn()| {
            set(path, "security.capability", &CAPABILITY).expect("set");
            assert_eq!(get(path, "security.capability"), Ok(CAPABILITY.to_vec()));
            what();
            get(path, "security.capability")
        };
        let append = || {
            use std::io::Write;
            let mut file = fs::OpenOptions::new().append(true).open(path).expect("opened");
            file.write_all(b"more").expect("written");
        };
        let truncate =
            || fs::OpenOptions::new().write(true).open(path).expect("opened").set_len(2).expect("cut");
        let give = || std::os::unix::fs::chown(path, Some(1), Some(1)).expect("chown");
        for (what, act) in [("write", &append as &dyn Fn()), ("truncate", &truncate), ("chown", &give)] {
            assert_eq!(with(act), Err(Errno::NODATA), "{what} over {over:?} with {options:?}");
        }
        mount.unmount();
    }
}

/// The kernel tells FUSE when a caller may not keep setgid, but fuser does not pass it on.
/// rfs-fuse therefore checks the caller's groups itself.
#[test]
fn an_acl_set_by_a_non_member_clears_sgid() {
    /// A group that the owner need not be a member of.
    const GROUP: u32 = 1;
    each(16 * MIB, |_, mount| {
        let path = &mount.path("program");
        fs::write(path, b"x").expect("written");
        std::os::unix::fs::chown(path, Some(NOBODY), Some(GROUP)).expect("chown");
        let own = format!("--reuid {NOBODY} --regid {NOBODY}");
        for (who, groups, after) in [
            ("the owner, a stranger to its group", "--clear-groups", 0o0775),
            ("the owner, in another group besides", "--groups 2", 0o0775),
            ("the owner, in its group besides", "--groups 2,1", 0o2775),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o2755)).expect("chmod");
            let script = format!("setpriv {own} {groups} setfacl -b -m u:daemon:rwx program");
            assert_eq!(shell_as(0, &mount.point, &script), Some(0), "{who}");
            assert_eq!(mode(path), after, "{who}: {:o}", mode(path));
        }
        // It is the owner's primary group.
        fs::set_permissions(path, fs::Permissions::from_mode(0o2755)).expect("chmod");
        let script = format!(
            "setpriv --reuid {NOBODY} --regid {GROUP} --clear-groups setfacl -b -m u:bin:rwx program"
        );
        assert_eq!(shell_as(0, &mount.point, &script), Some(0));
        assert_eq!(mode(path), 0o2775);
        // Root without any groups. Suid is not affected.
        fs::set_permissions(path, fs::Permissions::from_mode(0o6755)).expect("chmod");
        assert_eq!(
            shell_as(0, &mount.point, "setpriv --clear-groups setfacl -b -m u:bin:rwx program"),
            Some(0)
        );
        assert_eq!(mode(path), 0o6775);
        let script = format!("setpriv {own} --clear-groups setfacl -b -m u:daemon:r-x program");
        assert_eq!(shell_as(0, &mount.point, &script), Some(0));
        assert_eq!(mode(path), 0o4755);
        // A default ACL does not change the directory's own permissions.
        let dir = &mount.path("dir");
        fs::create_dir(dir).expect("made");
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(GROUP)).expect("chown");
        fs::set_permissions(dir, fs::Permissions::from_mode(0o2755)).expect("chmod");
        let script = format!("setpriv {own} --clear-groups setfacl -d -m u:daemon:rwx dir");
        assert_eq!(shell_as(0, &mount.point, &script), Some(0));
        assert_eq!(mode(dir), 0o2755);
    });
}
