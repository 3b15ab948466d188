//! The end of a mount after one of its threads has failed. A thread that ends by an error of its
//! own does not panic. Its users would wait for ever if the mount went on without it.
#![cfg(target_arch = "x86_64")]

use std::fs;

use measure::testing::{SleepingCall, fail_sleeping_call, thread_named};

use crate::common::{Over, TestServer, eventually, is_mounted};

/// Makes a sleeping call of a mount's thread fail. The mount ends, and says the reason.
fn fails_with(name: &str, sleeping: SleepingCall, reason: &str) {
    let server = TestServer::new(16 << 20);
    let mut mount = server.mount(Over::Shm, &[]);
    // Session threads take turns, so that each has served a request.
    for round in 0..100 {
        fs::write(mount.path("file"), format!("round {round}")).expect("written");
    }
    let pid = mount.pid().as_raw_nonzero().get().cast_unsigned();
    let fails = || {
        thread_named(pid, name).is_some_and(|thread| fail_sleeping_call(thread, sleeping).expect("traced"))
    };
    assert!(eventually(fails), "{name} does not sleep");
    let (status, said) = mount.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    // A thread that ends later may log another line.
    let reason = format!("rfs-fuse: unmounted after a failure: {reason}");
    assert!(said.lines().any(|line| line.starts_with(&reason)), "{said}");
    assert!(!is_mounted(&mount.point));
}

#[test]
fn an_engine_that_fails_ends_the_mount_with_an_error() {
    fails_with("rdmabox-engine", SleepingCall::EpollWait, "the thread that moves data stopped: ");
}

#[test]
fn a_session_thread_that_fails_ends_the_mount_with_an_error() {
    fails_with("fuse-0", SleepingCall::Read, "session thread fuse-0 ended");
}
