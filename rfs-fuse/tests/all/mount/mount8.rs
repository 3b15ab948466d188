//! rfs-fuse as a mount helper of mount(8), under other names.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{Over, TestServer, directory, eventually, is_mounted};

/// Returns the program under another name.
fn called(directory: &Path, name: &str) -> PathBuf {
    let link = directory.join(name);
    symlink(env!("CARGO_BIN_EXE_rfs-fuse"), &link).expect("linked");
    link
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).env_remove("RUST_LOG").output().expect("it runs")
}

/// Returns everything that a program printed.
fn printed(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Returns options, type and source of a mount from the kernel's table.
fn entry(point: &Path) -> (String, String, String) {
    let table = fs::read_to_string("/proc/self/mounts").expect("mount table");
    let line = table.lines().find(|line| line.split(' ').nth(1) == point.to_str()).expect("mounted");
    let field = |n: usize| line.split(' ').nth(n).expect("a field").to_owned();
    (field(3), field(2), field(0))
}

fn has(options: &str, one: &str) -> bool {
    options.split(',').any(|option| option == one)
}

#[test]
fn the_helper_mounts_as_mount_8_requests() {
    let server = TestServer::new(16 << 20);
    let (links, point) = (directory(), directory());
    let (source, point) = (server.address(Over::Shm), point.path());
    let at = point.to_str().expect("UTF-8");
    for (name, fs_type, arguments) in [
        ("mount.fuse.rfs", "fuse.rfs", &["-o", "noexec,noatime,nosuid,nodev,attr_timeout=0,x-any=1"][..]),
        ("mount.lent", "fuse.lent", &["-o", "noexec,noatime,nosuid,nodev,nofail"]),
        ("mount.kept", "fuse.kept", &["-o", "noexec,noatime,nosuid,nodev,cache=writeback"]),
        ("anything", "fuse.other", &["-nv", "-t", "fuse.other", "-o", "noexec,noatime,nosuid,nodev"]),
    ] {
        let helper = called(links.path(), name);
        let out = run(&helper, &[&[&source, at], arguments].concat());
        // A mount helper prints nothing on success, unless mount(8) passes -v.
        let verbose = arguments.contains(&"-nv");
        assert_eq!(
            (out.status.code(), printed(&out).contains("is mounted on")),
            (Some(0), verbose),
            "{}",
            printed(&out)
        );
        assert!(verbose || printed(&out).is_empty(), "{}", printed(&out));
        let (options, kind, shown) = entry(point);
        assert_eq!((kind.as_str(), shown), (fs_type, source.clone()));
        for option in ["rw", "noexec", "noatime", "nosuid", "nodev"] {
            assert!(has(&options, option), "{option} is not in {options}");
        }
        fs::write(point.join(name), b"written").expect("written");

        // Runs it again on the existing mount.
        let out = run(&helper, &[&[&source, at], arguments].concat());
        assert_eq!(out.status.code(), Some(32));

        let out = run(&helper, &[&source, at, "-o", "remount,ro"]);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(has(&entry(point).0, "ro"));
        let refused = fs::write(point.join("more"), b"").expect_err("read-only");
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        assert_eq!(fs::read(point.join(name)).expect("read"), b"written");
        let out = run(&helper, &[&source, at, "-o", "remount,rw"]);
        assert_eq!(out.status.code(), Some(0));
        fs::remove_file(point.join(name)).expect("removed");

        assert!(Command::new("umount").arg(point).status().expect("umount").success());
        assert!(eventually(|| server.inner.stats().sessions == 0), "the process ends with its mount");
        assert!(!is_mounted(point));
    }
}

/// mount(8) finds the helper in /sbin, as for /etc/fstab. A mount namespace provides its own
/// /sbin.
#[test]
fn mount_8_finds_the_helper_by_the_type() {
    const SCRIPT: &str = r#"
        mount --bind "$1" /sbin
        mount -t fuse.rfs "$2" "$3" -o "$4"
        grep " $3 fuse.rfs " /proc/self/mounts
        echo written >"$3/file"
        umount "$3"
    "#;
    // mount(8) does not pass `suid` on, so the option has another name as well.
    for (over, asked, allows) in [
        (Over::Shm, "noexec,noatime,suid,dev", false),
        (Over::Tcp, "noexec,noatime,io_uring=off", false),
        (Over::Shm, "noexec,noatime,allow_suid,allow_dev", true),
        // mount(8) passes its own flags first, in any case.
        (Over::Shm, "noexec,noatime,allow_suid,allow_dev,nosuid,nodev", false),
    ] {
        let server = TestServer::new(16 << 20);
        let (links, point) = (directory(), directory());
        called(links.path(), "mount.fuse.rfs");
        let (source, at) = (server.address(over), point.path().to_str().expect("UTF-8"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", SCRIPT, "sh"]);
        let out = command.arg(links.path()).args([&source, at, asked]).output().expect("it runs");
        let (said, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert_eq!(out.status.code(), Some(0), "{why}");
        let entry = said.lines().find(|line| line.contains(" fuse.rfs ")).expect("mounted");
        let fields: Vec<&str> = entry.split(' ').collect();
        assert_eq!((fields[0], fields[1], fields[2]), (source.as_str(), at, "fuse.rfs"));
        for (option, expected) in
            [("noexec", true), ("noatime", true), ("nodev", !allows), ("nosuid", !allows)]
        {
            assert_eq!(has(fields[3], option), expected, "{option}: {said}");
        }
        assert!(eventually(|| server.inner.stats().sessions == 0), "the process ends with its mount");
        let mount = server.mount(over, &[]);
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"written\n");
    }
}

/// The options that mount(8) passes differ from those that users write: `remount` comes with the
/// options of the mount table. Needs a namespace with an /sbin of its own.
#[test]
fn mount_8_mounts_from_fstab_and_remounts() {
    const SCRIPT: &str = r#"
        mount --bind "$1" /sbin
        show() { echo "$1: $(grep -c " $point " /proc/self/mounts) $(grep " $point " /proc/self/mounts)"; }
        fstab="$2/fstab" point="$2/made/by/mount"
        echo "$3 $point fuse.rfs ro,noexec,attr_timeout=1,_netdev,x-any,X-mount.mkdir,$4 0 0" >"$fstab"
        mount -a -T "$fstab"
        show first
        mount -a -T "$fstab"
        show again
        mount -T "$fstab" -o remount,rw "$point"
        echo written >"$point/file"
        mount -o remount,ro "$point"
        if echo more >"$point/more"; then exit 9; fi
        mount -o remount,rw,noatime "$point"
        show remounted
        cat "$point/file"
        mount -o remount,nonsense "$point" || echo "refused: $?"
        umount "$point"
        mount -T "$fstab" "$point"
        umount "$point"
    "#;
    let server = TestServer::new(16 << 20);
    let (links, place) = (directory(), directory());
    called(links.path(), "mount.fuse.rfs");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", SCRIPT, "sh"]);
    let label = "context=system_u:object_r:tmp_t:s0";
    let out = command.args([links.path(), place.path()]).args([&server.address(Over::Shm), label]);
    let out = out.output().expect("it runs");
    let said = printed(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    let line = |begin: &str| {
        let found = said.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("{begin}: {said}")).to_owned()
    };
    for (begin, words) in [
        ("first: 1 ", &[" fuse.rfs ro,", "noexec"][..]),
        ("again: 1 ", &[" fuse.rfs ro,"]),
        ("remounted: 1 ", &[" fuse.rfs rw,", "noatime"]),
        ("written", &[]),
        ("refused: 1", &[]),
    ] {
        assert!(words.iter().all(|word| line(begin).contains(word)), "{words:?}: {said}");
    }
    assert!(said.contains("ead-only file system"), "{said}");
    assert!(said.contains("unknown mount option \"nonsense\""), "{said}");
    assert!(eventually(|| server.inner.stats().sessions == 0), "{said}");
}

/// Operations that mount(8) performs without a helper: other flags, other places.
#[test]
fn a_mount_can_be_bound_and_remounted() {
    let mount8 = |arguments: &[&str], points: &[&Path]| {
        assert!(Command::new("mount").args(arguments).args(points).status().expect("mount").success());
    };
    let server = TestServer::new(16 << 20);
    let mut mount = server.mount(Over::Shm, &[]);
    let (original, other) = (mount.point.clone(), directory());
    let bound = other.path();
    let read_only = |result: std::io::Result<()>| {
        assert_eq!(
            result.expect_err("read-only").raw_os_error(),
            Some(rustix::io::Errno::ROFS.raw_os_error())
        );
    };
    mount8(&["--bind"], &[&original, bound]);
    mount8(&["-o", "remount,bind,ro"], &[bound]);
    read_only(fs::write(bound.join("file"), b""));
    fs::write(original.join("file"), b"seen on both").expect("written");
    assert_eq!(fs::read(bound.join("file")).expect("read"), b"seen on both");
    mount8(&["--internal-only", "-o", "remount,ro"], &[&original]);
    read_only(fs::write(original.join("file"), b""));
    mount8(&["--internal-only", "-o", "remount,rw,noexec"], &[&original]);
    fs::write(original.join("program"), b"#!/bin/sh\n").expect("written");
    fs::set_permissions(original.join("program"), fs::Permissions::from_mode(0o755)).expect("chmod");
    let denied = Command::new(original.join("program")).status().expect_err("noexec");
    assert_eq!(denied.raw_os_error(), Some(rustix::io::Errno::ACCESS.raw_os_error()));
    // The bind mount stays, and so does the process, until the bind mount is gone.
    assert!(Command::new("umount").arg(&original).status().expect("umount").success());
    assert_eq!(fs::read(bound.join("file")).expect("read"), b"seen on both");
    assert!(Command::new("umount").arg(bound).status().expect("umount").success());
    assert_eq!(mount.wait().0.code(), Some(0));
}

#[test]
fn mistakes_have_the_exit_codes_of_mount_8() {
    let (links, point) = (directory(), directory());
    let helper = called(links.path(), "mount.fuse.rfs");
    let at = point.path().to_str().expect("UTF-8");
    for (arguments, code, said) in [
        (&["/nowhere/socket", at][..], 32, "no such socket"),
        (&["/nowhere/socket"], 1, "SOURCE DIR"),
        (&["/nowhere/socket", at, "-o", "nonsense"], 1, "unknown mount option \"nonsense\""),
        (&["/nowhere/socket", at, "-o", "ro,context=a:b:c:d"], 32, "no such socket"),
        (&["/nowhere/socket", at, "-o", "context="], 1, "user:role:type:level"),
        (&["/nowhere/socket", at, "-o", "provider=pigeon"], 1, "pigeon"),
        (&["/nowhere/socket", at, "-q"], 1, "-q"),
        (&["/nowhere/socket", at, "-o", "remount,ro"], 32, at),
        (&["/nowhere/socket", at, "-o", "remount,nonsense"], 1, "nonsense"),
        // A dry run checks nothing.
        (&["/nowhere/socket", at, "-f"], 0, ""),
    ] {
        let out = run(&helper, arguments);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
        assert!(!is_mounted(point.path()));
    }
}

#[test]
fn the_program_itself_takes_lists_of_options_too() {
    let server = TestServer::new(16 << 20);
    let mount = server.mount(Over::Shm, &["-o", "ro,noexec,attr_timeout=0"]);
    let (options, kind, _) = entry(&mount.point);
    assert!(has(&options, "ro") && has(&options, "noexec"), "{options}");
    assert_eq!(kind, "fuse.rfs-fuse");
    mount.unmount();
}
