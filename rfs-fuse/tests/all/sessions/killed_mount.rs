//! A killed mount process leaves nothing behind.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::{
        fs::{FileExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::common::{
    Mount, NOBODY, OpenDevice, Over, TestServer, directory, eventually, exit_of, is_mounted, locking::open,
    providers, threads,
};
use rustix::{
    fs::{FlockOperation, flock},
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process, test_kill_process},
};

const MIB: u64 = 1 << 20;
const ROOT: u32 = 0;

#[test]
fn the_mount_point_can_be_used_again_at_once() {
    let server = TestServer::new(16 * MIB);
    for over in crate::common::providers() {
        let point = directory();
        for round in 0..3 {
            let mut mount = Mount::start(&server.address(over), point.path(), &[]);
            fs::write(mount.path("file"), format!("{round}")).expect("written");
            mount.signal(Signal::KILL);
            mount.wait();
        }
        let mount = Mount::start(&server.address(over), point.path(), &[]);
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"2");
        mount.unmount();
        assert!(!is_mounted(point.path()), "nor is a dead one there any more");
    }
}

#[test]
fn a_killed_mount_leaves_nothing_and_the_log_has_the_reason() {
    let server = TestServer::new(16 * MIB);
    let point = directory();
    let log = server.dir.path().join("log");
    let options = ["--log-file", log.to_str().expect("UTF-8")];
    let mut mount = Mount::start(&server.address(Over::Shm), point.path(), &options);
    let open = fs::File::create(mount.path("file")).expect("made");
    mount.signal(Signal::KILL);
    mount.wait();
    assert!(eventually(|| !is_mounted(point.path())));
    assert_eq!(fs::read_dir(point.path()).expect("the directory below").count(), 0);
    assert_eq!(error_of(open.set_len(1)), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let line = format!("rfs-fuse was killed: {} is unmounted", point.path().display());
    assert!(eventually(|| said().contains(&line)), "{}", said());
}

/// Returns true once the kernel reports the mount as dead. With FUSE over io_uring that takes a
/// moment after the end of the process.
fn is_dead(point: &std::path::Path) -> bool {
    // The kernel may have cached attributes, so read the directory.
    error_of(fs::read_dir(point)) == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

#[test]
fn a_dead_mount_is_left_on_request_and_replaced_by_the_next() {
    let server = TestServer::new(16 * MIB);
    let point = directory();
    let mut mount = Mount::start(&server.address(Over::Shm), point.path(), &["--leave-dead-mount"]);
    fs::write(mount.path("file"), b"kept").expect("written");
    mount.signal(Signal::KILL);
    mount.wait();
    assert!(eventually(|| is_dead(point.path())));
    let mount = Mount::start(&server.address(Over::Tcp), point.path(), &[]);
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"kept");
    mount.unmount();
    assert!(!is_mounted(point.path()), "the dead mount is gone, too");
}

fn error_of<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn mkdir(path: &Path) -> Child {
    mkdir_as(ROOT, path)
}

fn mkdir_as(user: u32, path: &Path) -> Child {
    Command::new("mkdir").arg(path).uid(user).gid(user).stderr(Stdio::null()).spawn().expect("mkdir starts")
}

/// Returns true if a thread of this name is in an uninterruptible wait.
fn has_stuck_thread(process: Pid, name: &str) -> bool {
    threads(process).iter().any(|(thread, state)| thread == name && *state == 'D')
}

/// Returns the mount's watchdog process, if there is exactly one.
fn watchdog_of(mount: &Mount) -> Option<Pid> {
    let pid = mount.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("procfs");
    let mut named = children.split_whitespace().filter(|child| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.starts_with("Name:\trfs-watchdog\n") && !status.contains("\nState:\tZ")
    });
    let found = named.next()?.parse().ok().and_then(Pid::from_raw);
    found.filter(|_| named.next().is_none())
}

fn watchdog(mount: &Mount) -> Pid {
    watchdog_of(mount).expect("there is one")
}

/// Kills the watchdog process, and waits for its replacement.
fn replace_watchdog(mount: &Mount) {
    let first = watchdog(mount);
    kill_process(first, Signal::KILL).expect("signal sent");
    assert!(eventually(|| watchdog_of(mount).is_some_and(|next| next != first)));
}

/// Name of the thread that gets stuck.
const WAITS: &str = "notify";

/// A mount with a stuck thread. The kernel holds a directory's lock during a change, and the
/// change waits at the server for another mount that is stopped. A recall then makes a thread of
/// the mount drop a name in that directory. The thread waits for the same lock and cannot be
/// killed, and the change is never answered.
struct Stuck {
    server: TestServer,
    mount: Mount,
    stopped: Mount,
    other: Mount,
}

impl Stuck {
    fn new(mount: impl FnOnce(&TestServer) -> Mount) -> Stuck {
        let server =
            TestServer::with(16 * MIB, |config| config.recall_timeout = Some(Duration::from_secs(15)));
        let mount = mount(&server);
        let [stopped, other] = [0; 2].map(|_| server.mount(Over::Tcp, &[]));
        Stuck { server, mount, stopped, other }
    }

    /// Creates directories that all mounts cache and `user` may change.
    fn known(&self, names: &[&str], user: u32) {
        for name in names {
            fs::create_dir(self.other.path(name)).expect("made");
            fs::set_permissions(self.other.path(name), Permissions::from_mode(0o777)).expect("chmod");
            for each in [&self.mount, &self.stopped, &self.other] {
                let user = if each.point == self.mount.point { user } else { ROOT };
                let script = format!("test -z \"$(ls {})\"", each.path(name).display());
                assert_eq!(crate::common::shell_as(user, Path::new("/"), &script), Some(0));
            }
        }
        crate::common::stop(self.stopped.pid());
    }

    /// Starts a change, and waits until it has reached the server.
    fn change(&self, name: &str, user: u32) -> Child {
        let before = self.server.handled("mkdir");
        let change = mkdir_as(user, &self.mount.path(name));
        assert!(eventually(|| self.server.handled("mkdir") == before + 1));
        change
    }

    /// Makes the other mount change a directory, so that a name is recalled from the mount.
    fn recall(&self, name: &str) -> Child {
        let recalls = mkdir(&self.other.path(name));
        assert!(eventually(|| has_stuck_thread(self.mount.pid(), WAITS)));
        recalls
    }

    /// Ends the test after the mount is gone. The other mounts must not be affected.
    fn end(self, mut recalls: Child) {
        let Stuck { server: _server, stopped, other, .. } = self;
        stopped.signal(Signal::KILL);
        assert!(exit_of(&mut recalls).success());
        drop(stopped);
        other.unmount();
    }
}

fn with_a_stuck_thread(options: &[&str], end: impl FnOnce(&mut Mount)) {
    let mut stuck = Stuck::new(|server| server.mount(Over::Tcp, options));
    stuck.known(&["d"], ROOT);
    let mut waits = stuck.change("d/x", ROOT);
    let recalls = stuck.recall("d/y");
    end(&mut stuck.mount);
    assert!(!exit_of(&mut waits).success());
    stuck.end(recalls);
}

#[test]
fn a_thread_stuck_in_the_kernel_does_not_keep_a_dead_mount() {
    with_a_stuck_thread(&[], |mount| {
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(eventually(|| !is_mounted(&mount.point)));
    });
}

#[test]
fn a_stuck_thread_does_not_keep_a_dead_mount_that_is_left_on_request() {
    with_a_stuck_thread(&["--leave-dead-mount"], |mount| {
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(eventually(|| is_dead(&mount.point)));
        assert!(is_mounted(&mount.point));
    });
}

#[test]
fn a_stuck_thread_does_not_keep_a_dead_mount_after_its_watchdog_was_killed() {
    with_a_stuck_thread(&[], |mount| {
        replace_watchdog(mount);
        replace_watchdog(mount);
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(eventually(|| !is_mounted(&mount.point)));
    });
}

/// The busy mount is detached and its process ends.
#[test]
fn a_stuck_thread_does_not_keep_a_mount_that_gets_a_signal() {
    with_a_stuck_thread(&["--timeout", "3"], |mount| {
        let watchdog_pid = watchdog(mount);
        mount.signal(Signal::TERM);
        mount.wait();
        assert!(!is_mounted(&mount.point));
        assert!(eventually(|| test_kill_process(watchdog_pid).is_err()), "the watchdog ends, too");
    });
}

/// A signal for both processes of a mount, from a user or a script. Catches a watchdog that takes
/// any SIGUSR1 for the end of its mount.
#[test]
fn signals_without_a_purpose_leave_a_mount_as_it_is() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, &[]);
        fs::write(mount.path("file"), b"x").expect("written");
        let watchdog = watchdog(&mount);
        for signal in [Signal::USR1, Signal::USR2, Signal::PIPE] {
            mount.signal(signal);
            kill_process(watchdog, signal).expect("signal sent");
        }
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"x");
        // The watchdog would have ended the connection by now.
        std::thread::sleep(Duration::from_millis(200));
        fs::write(mount.path("other"), b"y").expect("written");
        assert_eq!(watchdog_of(&mount), Some(watchdog));
        mount.unmount();
    }
}

/// Kills a mount and its watchdog, so that neither reacts to the other's end.
fn kill_both(mount: &Mount) {
    // A stopped mount starts no new watchdog. The stuck thread does not stop.
    mount.signal(Signal::STOP);
    assert!(eventually(|| state_of(mount.pid()) == Some('T')));
    kill_process(watchdog(mount), Signal::KILL).expect("signal sent");
    mount.signal(Signal::KILL);
}

#[test]
fn a_stuck_thread_does_not_keep_a_dead_mount_without_a_watchdog() {
    with_a_stuck_thread(&["--no-io-uring"], |mount| {
        kill_both(mount);
        mount.wait();
        assert!(eventually(|| is_dead(&mount.point)));
        assert!(is_mounted(&mount.point), "the mount is still there");
    });
}

/// An ordinary user's watchdog cannot end the connection, unless fusectl is mounted. In that case
/// this test repeats the previous ones.
#[test]
fn a_stuck_thread_does_not_keep_a_dead_mount_of_an_ordinary_user() {
    crate::common::require_fuse();
    let _open = OpenDevice::new();
    let point = directory();
    chown(point.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut stuck = Stuck::new(|server| {
        let mut command = crate::common::program();
        let options = ["--provider", "tcp", "--timeout", "60", "--no-io-uring"];
        command.args(options).arg(server.address(Over::Tcp)).arg(point.path()).uid(NOBODY).gid(NOBODY);
        Mount::spawn(&mut command, point.path())
    });
    stuck.known(&["d"], NOBODY);
    let mut waits = stuck.change("d/x", NOBODY);
    let recalls = stuck.recall("d/y");
    stuck.mount.signal(Signal::KILL);
    stuck.mount.wait();
    assert!(eventually(|| !is_mounted(point.path())));
    assert!(!exit_of(&mut waits).success());
    stuck.end(recalls);
}

/// Runs `end` on a killed mount, and waits for the mount to end. It has a request that it has not
/// taken. The kernel does not end an untaken request while a thread of the mount exists. If that
/// request holds the lock, the thread stays stuck until the request's caller is killed or the
/// connection ends.
fn with_an_untaken_request(end: impl FnOnce(&Mount, &mut Child)) {
    let mut stuck = Stuck::new(|server| server.mount(Over::Tcp, &["--no-io-uring", "--threads", "1"]));
    stuck.known(&["d", "e"], ROOT);
    let mut taken = stuck.change("d/x", ROOT);
    let mut pending = mkdir(&stuck.mount.path("e/z"));
    assert!(eventually(|| waits_for_an_answer(&pending)));
    let recalls = stuck.recall("e/y");
    kill_both(&stuck.mount);
    assert!(!exit_of(&mut taken).success());
    // Only the main thread is a zombie; the stuck thread still exists.
    assert!(eventually(|| state_of(stuck.mount.pid()) == Some('Z')));
    assert!(has_stuck_thread(stuck.mount.pid(), WAITS));
    assert!(waits_for_an_answer(&pending));
    end(&stuck.mount, &mut pending);
    stuck.mount.wait();
    assert!(!exit_of(&mut pending).success());
    stuck.end(recalls);
}

#[test]
fn killing_the_caller_ends_an_untaken_request() {
    with_an_untaken_request(|mount, pending| {
        pending.kill().expect("signal sent");
        assert!(eventually(|| is_dead(&mount.point)));
        assert!(is_mounted(&mount.point), "the mount is still there");
    });
}

fn unmount_by_force(mount: &Mount) {
    assert!(is_mounted(&mount.point));
    unmount(&mount.point, UnmountFlags::FORCE | UnmountFlags::DETACH).expect("unmounted");
}

#[test]
fn a_forced_unmount_ends_an_untaken_request() {
    with_an_untaken_request(|mount, _| unmount_by_force(mount));
}

/// A request taken over a ring ends only with the connection.
#[test]
fn a_forced_unmount_ends_a_request_taken_over_a_ring() {
    if std::env::var_os("RFS_TEST_RING").is_none() {
        return eprintln!("not run: RFS_TEST_RING is not set (ci/mounts/ring sets it)");
    }
    with_a_stuck_thread(&[], |mount| {
        kill_both(mount);
        assert!(eventually(|| state_of(mount.pid()) == Some('Z')));
        assert!(has_stuck_thread(mount.pid(), WAITS));
        unmount_by_force(mount);
        mount.wait();
    });
}

/// Returns true if a process waits for the reply to a FUSE request.
fn waits_for_an_answer(process: &Child) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", process.id())).unwrap_or_default();
    place == "request_wait_answer"
}

/// Returns the state letter of a process (proc(5)).
fn state_of(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Without a watchdog a dead mount stays until the next mount. Over shared memory the server
/// notices the end of the process. Over other providers the session keeps its locks until its
/// lease expires.
#[test]
fn a_mount_killed_with_its_watchdog_stays_dead_until_the_next_mount() {
    for over in crate::common::providers() {
        let lease = Duration::from_secs(6);
        let server = TestServer::with(16 * MIB, |config| config.fencing.lease = Some(lease));
        let point = directory();
        let mut mount = Mount::start(&server.address(over), point.path(), &["--provider", &over.to_string()]);
        let other = server.mount(over, &[]);
        let file = open(&mount.path("file"));
        flock(&file, FlockOperation::LockExclusive).expect("locked");
        // Opened in advance, so that nothing has to be recalled from the dead mount.
        let there = open(&other.path("file"));
        // A stopped mount starts no new watchdog.
        crate::common::stop(mount.pid());
        kill_process(watchdog(&mount), Signal::KILL).expect("signal sent");
        mount.signal(Signal::KILL);
        mount.wait();
        // The dead mount still covers the directory.
        assert!(eventually(|| is_dead(point.path())));
        assert_eq!(error_of(file.set_len(1)), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
        let lock = || flock(&there, FlockOperation::NonBlockingLockExclusive).is_ok();
        // The server hears of the end of the connection. Until then it asks the holder, and ends
        // its session after the recall timeout.
        std::thread::sleep(Duration::from_secs(1));
        assert!(over == Over::Shm || !lock(), "the server cannot know over {over:?}");
        assert!(eventually(lock), "its lease is over");
        assert!(is_mounted(point.path()), "no process has cleaned up");
        drop(file);
        let next = Mount::start(&server.address(over), point.path(), &[]);
        assert!(next.path("file").exists());
        next.unmount();
        assert!(!is_mounted(point.path()), "the dead mount is gone, too");
        other.unmount();
    }
}

/// Holds even for files that were neither closed nor synchronized.
#[test]
fn writes_are_at_the_server_when_write_returns() {
    let server = TestServer::new(16 * MIB);
    for over in crate::common::providers() {
        for options in [&[][..], &["--cache", "none"]] {
            let (mut mount, other) = (server.mount(over, options), server.mount(over, &[]));
            let file = open(&mount.path("file"));
            let bytes = crate::common::pattern(300_001, 1);
            // Writes after a hole, and writes a part twice.
            file.write_all_at(&bytes, 5000).expect("written");
            file.write_all_at(&bytes[..9000], 100_000).expect("written");
            mount.signal(Signal::KILL);
            mount.wait();
            let mut expected = [vec![0; 5000], bytes.clone()].concat();
            expected[100_000..109_000].copy_from_slice(&bytes[..9000]);
            assert!(
                fs::read(other.path("file")).expect("read") == expected,
                "over {over:?} with {options:?}"
            );
            drop(file);
            fs::remove_file(other.path("file")).expect("removed");
            other.unmount();
        }
    }
}
