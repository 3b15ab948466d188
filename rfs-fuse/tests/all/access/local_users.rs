//! Attacks of ordinary local users on a root server, through its socket, also as root of a user
//! namespace. Users of a mount that is for another user only.

use std::{
    fs::{self, File},
    os::unix::{
        fs::{FileExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
};

use super::actors::{Actor, ROOT, STRANGER};
use crate::common::*;
use rdmabox::{Address, Session, SessionOptions};
use rustix::{
    fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, seek},
    io::Errno,
    process::Uid,
};

const MIB: u64 = 1 << 20;
/// An ordinary user.
const USER: u32 = 1234;

/// Starts a server whose socket every user may connect to, because the mode of the socket file is
/// not part of the defence.
fn reachable(allow_without_keys: bool) -> TestServer {
    let server = TestServer::with(16 * MIB, |config| {
        config.listen.retain(|address| matches!(address, Address::Unix(_)));
        config.allow_without_keys = allow_without_keys;
    });
    fs::set_permissions(server.dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    fs::set_permissions(server.dir.path().join("socket"), PermissionsExt::from_mode(0o777)).expect("chmod");
    server
}

/// Requests a session on a thread of this user. Returns the refusal, if any.
fn session_as(server: &TestServer, user: u32) -> Result<(), String> {
    let address: Address = server.address(Over::Shm).parse().expect("an address");
    let connect = move || {
        let uid = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
        Session::connect(&address, &SessionOptions::default()).map(drop).map_err(|e| e.to_string())
    };
    std::thread::spawn(connect).join().expect("no panic")
}

/// Runs rfs-fuse as this user, as root of a new user namespace.
fn mount_as_root_of_a_namespace(server: &TestServer, point: &Path) -> Output {
    let user = USER.to_string();
    Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "unshare", "-Urm"])
        .args([env!("CARGO_BIN_EXE_rfs-fuse"), "--connect-timeout", "5", &server.address(Over::Shm)])
        .arg(point)
        .output()
        .expect("setpriv")
}

#[test]
fn the_socket_accepts_only_root_and_the_servers_user() {
    let server = reachable(false);
    for user in [USER, NOBODY] {
        let refused = session_as(&server, user).expect_err("an ordinary user");
        assert!(refused.contains("root and the user that runs it"), "{refused}");
    }
    session_as(&server, 0).expect("root");
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
    let (server, device) = (reachable(false), OpenDevice::new());
    let point = directory();
    rustix::fs::chown(point.path(), Some(Uid::from_raw(USER)), None).expect("chown");
    let output = mount_as_root_of_a_namespace(&server, point.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("root and the user that runs it"), "{said}");
    drop(device);
}

/// Returns the errors of calls on an open file that the kernel passes on without looking at the
/// user.
fn errors_on(file: &File) -> [Option<Errno>; 3] {
    [
        seek(file, SeekFrom::Hole(0)).err(),
        fallocate(file, FallocateFlags::empty(), 0, 8192).err(),
        flock(file, FlockOperation::NonBlockingLockExclusive).err(),
    ]
}

/// Without --allow-other, an open file lets root do all, because root writes back as a thread of
/// the kernel. It lets another user read and write only. By a name, neither root nor another user
/// gets in.
///
/// Detects a session that serves every user, and one that refuses root.
#[test]
fn an_open_file_of_a_users_own_mount_is_for_root_but_not_for_a_stranger() {
    let (server, _open, point) = (TestServer::new(16 * MIB), OpenDevice::new(), directory());
    let everyone = server.mount(Over::Shm, &[]);
    fs::write(everyone.path("file"), pattern(4096, 1)).expect("written");
    chown(everyone.path("file"), Some(NOBODY), Some(NOBODY)).expect("chown");
    chown(point.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut command = program();
    command.args(["--provider", "tcp", "--no-io-uring", &server.address(Over::Tcp)]).arg(point.path());
    let mount = Mount::spawn(command.uid(NOBODY).gid(NOBODY), point.path());
    let owner = Actor { name: "owner", uid: NOBODY, gid: NOBODY, groups: &[] };
    let path = mount.path("file");
    let file = owner.does(|| File::options().read(true).write(true).open(&path).expect("open"));
    for (actor, refusal) in [(ROOT, None), (STRANGER, Some(Errno::ACCESS)), (owner, None)] {
        let (by_name, errors, first) = actor.does(|| {
            let mut first = [0];
            file.read_exact_at(&mut first, 0)
                .and_then(|()| file.write_all_at(&first, 0))
                .expect("reads and writes");
            (File::open(&path).err().and_then(|e| e.raw_os_error()), errors_on(&file), first)
        });
        let keeps_out = (actor.uid != NOBODY).then_some(Errno::ACCESS.raw_os_error());
        assert_eq!((by_name, errors), (keeps_out, [refusal; 3]), "{}", actor.name);
        assert_eq!(first[0], pattern(1, 1)[0], "{}", actor.name);
    }
    drop(file);
    mount.unmount();
}
