//! Attacks of ordinary local users on a root server, through its socket, also as root of a user
//! namespace.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use crate::common::*;
use rdmabox::{Address, Session, SessionOptions};
use rustix::process::Uid;

const MIB: u64 = 1 << 20;
/// An ordinary user.
const USER: u32 = 1234;

/// Starts a server whose socket every user may connect to, because the mode of the socket file is
/// not part of the defence.
fn reachable(allow_without_keys: bool) -> Lender {
    let lender = Lender::with(16 * MIB, |config| {
        config.listen.retain(|address| matches!(address, Address::Unix(_)));
        config.allow_without_keys = allow_without_keys;
    });
    fs::set_permissions(lender.dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    fs::set_permissions(lender.dir.path().join("socket"), PermissionsExt::from_mode(0o777)).expect("chmod");
    lender
}

/// Requests a session on a thread of this user. Returns the refusal, if any.
fn session_as(lender: &Lender, user: u32) -> Result<(), String> {
    let address: Address = lender.address(Over::Shm).parse().expect("an address");
    let connect = move || {
        let uid = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
        Session::connect(&address, &SessionOptions::default()).map(drop).map_err(|e| e.to_string())
    };
    std::thread::spawn(connect).join().expect("no panic")
}

/// Runs rfs-fuse as this user, as root of a new user namespace.
fn mount_as_root_of_a_namespace(lender: &Lender, point: &Path) -> Output {
    let user = USER.to_string();
    Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "unshare", "-Urm"])
        .args([env!("CARGO_BIN_EXE_rfs-fuse"), "--connect-timeout", "5", &lender.address(Over::Shm)])
        .arg(point)
        .output()
        .expect("setpriv")
}

#[test]
fn the_socket_accepts_only_root_and_the_servers_user() {
    let lender = reachable(false);
    for user in [USER, NOBODY] {
        let refused = session_as(&lender, user).expect_err("an ordinary user");
        assert!(refused.contains("root and the user that runs it"), "{refused}");
    }
    session_as(&lender, 0).expect("root");
    // A server that accepts every client ignores the user.
    session_as(&reachable(true), USER).expect("allowed");
}

#[test]
fn root_of_a_user_namespace_is_not_root() {
    let possible = Command::new("setpriv")
        .args(["--reuid", &USER.to_string(), "unshare", "-Ur", "true"])
        .status()
        .is_ok_and(|status| status.success());
    assert!(
        possible,
        "this test makes a user namespace, and the machine does not let an ordinary user do so"
    );
    let (lender, device) = (reachable(false), OpenDevice::new());
    let point = directory();
    rustix::fs::chown(point.path(), Some(Uid::from_raw(USER)), None).expect("chown");
    let output = mount_as_root_of_a_namespace(&lender, point.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("root and the user that runs it"), "{said}");
    drop(device);
}
