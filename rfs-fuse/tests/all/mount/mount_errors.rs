//! Messages of mounts that fail in containers, in user namespaces, and for ordinary users.

use std::{
    os::unix::fs::chown,
    process::{Command, Stdio},
};

use crate::common::{NOBODY, directory, program, require_fuse};

/// Runs a shell script in a mount namespace of its own. `$1` is a directory for its use; the
/// other arguments are a command that mounts, and must fail. Returns its one line of output.
fn said_in_namespace(script: &str, owner: u32) -> String {
    require_fuse();
    let _open = crate::common::OpenDevice::new();
    let (scratch, point) = (directory(), directory());
    chown(point.path(), Some(owner), Some(owner)).expect("chown");
    let mount = program();
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-e", "-c", script, "sh"])
        .arg(scratch.path())
        .arg(mount.get_program())
        .arg("--null")
        .arg(point.path())
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let said = String::from_utf8(out.stderr).expect("UTF-8");
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

/// Asserts that root's mount in a changed namespace fails with these words.
fn root_is_told(script: &str, words: &[&str]) {
    let said = said_in_namespace(&format!("{script}\nshift\nexec \"$@\""), 0);
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are not in {said:?}");
}

/// Asserts that an ordinary user's mount in a changed namespace fails with these words.
fn user_is_told(script: &str, rights: &str, words: &[&str]) {
    let drop = format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {rights}");
    let said = said_in_namespace(&format!("{script}\nshift\nexec {drop} \"$@\""), NOBODY);
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are not in {said:?}");
}

#[test]
fn a_wrong_fuse_device_is_named() {
    // Some containers have another file at this path.
    for file in ["/dev/null", "/dev/zero", "/etc/passwd"] {
        let script = format!("mount --bind {file} /dev/fuse");
        root_is_told(&script, &["/dev/fuse: not a FUSE device", "--device /dev/fuse"]);
    }
    let script = "mkfifo $1/fifo; mount --bind $1/fifo /dev/fuse";
    root_is_told(script, &["/dev/fuse: not a FUSE device"]);
    let hide = "mount -t tmpfs dev $1; cp -a /dev/null $1; mount --bind $1 /dev";
    root_is_told(hide, &["/dev/fuse: no such device", "modprobe fuse", "--device /dev/fuse"]);
}

#[test]
fn a_container_without_the_capability_gets_the_reason() {
    let drop = "shift; exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$@\"";
    root_is_told(drop, &["cannot mount on", "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"]);
}

#[test]
fn a_user_namespace_needs_a_mount_namespace_of_its_own() {
    let alone = "shift; exec unshare --user --map-root-user \"$@\"";
    root_is_told(alone, &["cannot mount on", "unshare --user --map-root-user --mount"]);
}

/// In a user namespace with its own mount namespace, mounting is allowed.
#[test]
fn root_of_a_user_namespace_mounts() {
    require_fuse();
    let _open = crate::common::OpenDevice::new();
    let point = directory();
    let script = "\"$@\" & mount=$!; until grep -q \" $POINT \" /proc/self/mounts; do kill -0 $mount; done; \
                  echo bytes >$POINT/file; kill -TERM $mount; wait $mount";
    let out = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-e", "-c", script, "sh"])
        .arg(program().get_program())
        .arg("--null")
        .arg(point.path())
        .env("POINT", point.path())
        .output()
        .expect("unshare");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn an_ordinary_user_gets_the_reason_of_a_missing_helper() {
    let without = "mount --bind /dev/null \"$(command -v fusermount3)\"";
    user_is_told(without, "", &["fusermount3 is not installed", "package fuse3"]);
    let privileges = ["cannot mount on", "no_new_privs", "NoNewPrivileges=no"];
    user_is_told("", "--no-new-privs", &privileges);
    // As on a file system mounted with nosuid.
    let helper = "cp \"$(command -v fusermount3)\" $1/helper; chmod 755 $1/helper; \
                  mount --bind $1/helper \"$(command -v fusermount3)\"";
    user_is_told(helper, "", &["cannot mount on", "chmod u+s"]);
}

#[test]
fn an_ordinary_user_gets_errors_of_the_device_and_the_directory() {
    user_is_told(
        "mknod -m 600 $1/fuse c 10 229; mount --bind $1/fuse /dev/fuse",
        "",
        &["/dev/fuse: ", "chmod 666"],
    );
    let said = said_in_namespace(
        &format!("shift; exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \"$@\""),
        0,
    );
    assert!(said.contains("cannot mount on") && said.contains("belongs to you"), "{said}");
}
