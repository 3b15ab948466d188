//! What is left of a mount whose process is killed: nothing.

mod common;

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

use common::{
    Lender, Mount, NOBODY, OpenDevice, Over, directory, eventually, exit_of, is_mounted, locking::open,
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
    let lender = Lender::new(16 * MIB);
    for over in common::providers() {
        let point = directory();
        for round in 0..3 {
            let mut mount = Mount::start(&lender.address(over), point.path(), &[]);
            fs::write(mount.path("file"), format!("{round}")).expect("written");
            mount.signal(Signal::KILL);
            mount.wait();
        }
        let mount = Mount::start(&lender.address(over), point.path(), &[]);
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"2");
        mount.unmount();
        assert!(!is_mounted(point.path()), "nor is a dead one there any more");
    }
}

#[test]
fn nothing_of_the_mount_is_left_and_the_log_says_why() {
    let lender = Lender::new(16 * MIB);
    let point = directory();
    let log = lender.dir.path().join("log");
    let options = ["--log-file", log.to_str().expect("UTF-8")];
    let mut mount = Mount::start(&lender.address(Over::Shm), point.path(), &options);
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

/// Whether the kernel has noticed that nobody serves a mount. With FUSE over io_uring that takes a moment after the end of the process.
fn is_dead(point: &std::path::Path) -> bool {
    // Attributes the kernel may know.
    error_of(fs::read_dir(point)) == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

#[test]
fn a_dead_mount_is_left_where_that_is_asked_for_and_cleaned_by_the_next() {
    let lender = Lender::new(16 * MIB);
    let point = directory();
    let mut mount = Mount::start(&lender.address(Over::Shm), point.path(), &["--leave-dead-mount"]);
    fs::write(mount.path("file"), b"kept").expect("written");
    mount.signal(Signal::KILL);
    mount.wait();
    assert!(eventually(|| is_dead(point.path())));
    let mount = Mount::start(&lender.address(Over::Tcp), point.path(), &[]);
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"kept");
    mount.unmount();
    assert!(!is_mounted(point.path()), "nor is the dead one there any more");
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

/// Whether a thread of a process waits where no signal reaches it.
fn has_stuck_thread(process: Pid, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("threads");
    tasks.flatten().any(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.starts_with(&format!("Name:\t{name}\n")) && status.contains("\nState:\tD")
    })
}

/// The process that takes care of a mount, if there is just one.
fn caretaker_of(mount: &Mount) -> Option<Pid> {
    let pid = mount.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("procfs");
    let mut named = children.split_whitespace().filter(|child| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.starts_with("Name:\trfs-watchdog\n") && !status.contains("\nState:\tZ")
    });
    let found = named.next()?.parse().ok().and_then(Pid::from_raw);
    found.filter(|_| named.next().is_none())
}

fn caretaker(mount: &Mount) -> Pid {
    caretaker_of(mount).expect("there is one")
}

/// Kills the process that takes care of a mount, and waits for the next one.
fn change_caretakers(mount: &Mount) {
    let first = caretaker(mount);
    kill_process(first, Signal::KILL).expect("signal sent");
    assert!(eventually(|| caretaker_of(mount).is_some_and(|next| next != first)));
}

/// The thread that does the waiting.
const WAITS: &str = "notify";

/// The kernel holds a directory's lock over a change that waits at the server for a mount that is stopped. A name in the directory
/// is recalled, and the thread that drops it waits for that lock: it cannot be killed, and the change is not answered any more.
struct Stuck {
    lender: Lender,
    mount: Mount,
    stopped: Mount,
    other: Mount,
}

impl Stuck {
    fn new(mount: impl FnOnce(&Lender) -> Mount) -> Stuck {
        let lender = Lender::with(16 * MIB, |config| config.recall_timeout = Some(Duration::from_secs(15)));
        let mount = mount(&lender);
        let [stopped, other] = [0; 2].map(|_| lender.mount(Over::Tcp, &[]));
        Stuck { lender, mount, stopped, other }
    }

    /// Directories that all know, and whoever may change them.
    fn known(&self, names: &[&str], user: u32) {
        for name in names {
            fs::create_dir(self.other.path(name)).expect("made");
            fs::set_permissions(self.other.path(name), Permissions::from_mode(0o777)).expect("chmod");
            for each in [&self.mount, &self.stopped, &self.other] {
                let user = if each.point == self.mount.point { user } else { ROOT };
                let script = format!("test -z \"$(ls {})\"", each.path(name).display());
                assert_eq!(common::shell_as(user, Path::new("/"), &script), Some(0));
            }
        }
        common::stop(self.stopped.pid());
    }

    /// A change that the mount has passed on to the server.
    fn change(&self, name: &str, user: u32) -> Child {
        let before = self.lender.handled("mkdir");
        let change = mkdir_as(user, &self.mount.path(name));
        assert!(eventually(|| self.lender.handled("mkdir") == before + 1));
        change
    }

    /// Has a name recalled from the mount in a directory that it changes.
    fn recall(&self, name: &str) -> Child {
        let recalls = mkdir(&self.other.path(name));
        assert!(eventually(|| has_stuck_thread(self.mount.pid(), WAITS)));
        recalls
    }

    /// The mount is gone; nobody else is held up by it.
    fn end(self, mut recalls: Child) {
        let Stuck { lender: _lender, stopped, other, .. } = self;
        stopped.signal(Signal::KILL);
        assert!(exit_of(&mut recalls).success());
        drop(stopped);
        other.unmount();
    }
}

fn with_a_thread_that_no_signal_reaches(options: &[&str], end: impl FnOnce(&mut Mount)) {
    let mut stuck = Stuck::new(|lender| lender.mount(Over::Tcp, options));
    stuck.known(&["d"], ROOT);
    let mut waits = stuck.change("d/x", ROOT);
    let recalls = stuck.recall("d/y");
    end(&mut stuck.mount);
    assert!(!exit_of(&mut waits).success());
    stuck.end(recalls);
}

#[test]
fn a_thread_that_waits_for_a_lock_of_the_kernel_is_no_reason_to_stay() {
    with_a_thread_that_no_signal_reaches(&[], |mount| {
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(eventually(|| !is_mounted(&mount.point)));
    });
}

#[test]
fn nor_where_the_dead_mount_is_to_be_left() {
    with_a_thread_that_no_signal_reaches(&["--leave-dead-mount"], |mount| {
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(eventually(|| is_dead(&mount.point)));
        assert!(is_mounted(&mount.point));
    });
}

#[test]
fn nor_where_the_process_that_takes_care_was_killed_before() {
    with_a_thread_that_no_signal_reaches(&[], |mount| {
        change_caretakers(mount);
        change_caretakers(mount);
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(eventually(|| !is_mounted(&mount.point)));
    });
}

/// It is in use, is taken out of the tree, and its process ends.
#[test]
fn nor_at_an_end_that_somebody_asks_for() {
    with_a_thread_that_no_signal_reaches(&["--timeout", "3"], |mount| {
        let caretaker = caretaker(mount);
        mount.signal(Signal::TERM);
        mount.wait();
        assert!(!is_mounted(&mount.point));
        assert!(eventually(|| test_kill_process(caretaker).is_err()), "nothing is left to do for it");
    });
}

/// Kills a mount and who takes care of it, so that neither can do anything about the other's end.
fn kill_both(mount: &Mount) {
    // So that it starts no other one. Not all of its threads stop.
    mount.signal(Signal::STOP);
    assert!(eventually(|| state_of(mount.pid()) == Some('T')));
    kill_process(caretaker(mount), Signal::KILL).expect("signal sent");
    mount.signal(Signal::KILL);
}

#[test]
fn nor_where_nobody_takes_care() {
    with_a_thread_that_no_signal_reaches(&["--no-io-uring"], |mount| {
        kill_both(mount);
        mount.wait();
        assert!(eventually(|| is_dead(&mount.point)));
        assert!(is_mounted(&mount.point), "nobody has unmounted");
    });
}

/// Who takes care may not end the connection, unless somebody has mounted the file system of connections: then he does, and this shows no more than the
/// tests before it.
#[test]
fn nor_where_an_ordinary_user_has_mounted() {
    common::require_fuse();
    let _open = OpenDevice::new();
    let point = directory();
    chown(point.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut stuck = Stuck::new(|lender| {
        let mut command = common::program();
        let options = ["--provider", "tcp", "--timeout", "60", "--no-io-uring"];
        command.args(options).arg(lender.address(Over::Tcp)).arg(point.path()).uid(NOBODY).gid(NOBODY);
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

/// The kernel does not end a request that nobody has taken, as long as there is somebody who could. So the thread waits on if that holds
/// the lock, until who made it is killed, or the connection is ended.
fn with_a_request_that_nobody_takes(end: impl FnOnce(&Mount, &mut Child)) {
    let mut stuck = Stuck::new(|lender| lender.mount(Over::Tcp, &["--no-io-uring", "--threads", "1"]));
    stuck.known(&["d", "e"], ROOT);
    let mut taken = stuck.change("d/x", ROOT);
    let mut pending = mkdir(&stuck.mount.path("e/z"));
    assert!(eventually(|| waits_for_an_answer(&pending)));
    let recalls = stuck.recall("e/y");
    kill_both(&stuck.mount);
    assert!(!exit_of(&mut taken).success());
    // What its main thread is by then. The other one is still there.
    assert!(eventually(|| state_of(stuck.mount.pid()) == Some('Z')));
    assert!(has_stuck_thread(stuck.mount.pid(), WAITS));
    assert!(waits_for_an_answer(&pending));
    end(&stuck.mount, &mut pending);
    stuck.mount.wait();
    assert!(!exit_of(&mut pending).success());
    stuck.end(recalls);
}

#[test]
fn killing_who_waits_ends_what_nobody_has_taken() {
    with_a_request_that_nobody_takes(|mount, pending| {
        pending.kill().expect("signal sent");
        assert!(eventually(|| is_dead(&mount.point)));
        assert!(is_mounted(&mount.point), "nobody has unmounted");
    });
}

fn unmount_by_force(mount: &Mount) {
    assert!(is_mounted(&mount.point));
    unmount(&mount.point, UnmountFlags::FORCE | UnmountFlags::DETACH).expect("unmounted");
}

#[test]
fn unmounting_by_force_ends_what_nobody_has_taken() {
    with_a_request_that_nobody_takes(|mount, _| unmount_by_force(mount));
}

/// What was taken over a ring ends with the connection only.
#[test]
fn unmounting_by_force_ends_what_was_taken_over_a_ring() {
    if std::env::var_os("RFS_TEST_RING").is_none() {
        return eprintln!("not run: RFS_TEST_RING is not set (ci/ring sets it)");
    }
    with_a_thread_that_no_signal_reaches(&[], |mount| {
        kill_both(mount);
        assert!(eventually(|| state_of(mount.pid()) == Some('Z')));
        assert!(has_stuck_thread(mount.pid(), WAITS));
        unmount_by_force(mount);
        mount.wait();
    });
}

/// Whether a process waits for a request that it has made of FUSE.
fn waits_for_an_answer(process: &Child) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", process.id())).unwrap_or_default();
    place == "request_wait_answer"
}

/// What a process does, by the letter that proc(5) has for it.
fn state_of(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// With nobody to clean up behind it a dead mount stays, until the next one comes. Over shared memory the server sees the end of the process;
/// elsewhere nobody tells it, so that what the mount had is its own until its lease is over.
#[test]
fn a_mount_that_is_killed_with_its_caretaker_stays_dead_until_the_next_one() {
    for over in common::providers() {
        let lease = Duration::from_secs(6);
        let lender = Lender::with(16 * MIB, |config| config.fencing.lease = Some(lease));
        let point = directory();
        let mut mount = Mount::start(&lender.address(over), point.path(), &["--provider", &over.to_string()]);
        let other = lender.mount(over, &[]);
        let file = open(&mount.path("file"));
        flock(&file, FlockOperation::LockExclusive).expect("locked");
        // Opened before, so that nothing has to be recalled from who does not answer any more.
        let there = open(&other.path("file"));
        // It starts no other one.
        common::stop(mount.pid());
        kill_process(caretaker(&mount), Signal::KILL).expect("signal sent");
        mount.signal(Signal::KILL);
        mount.wait();
        // Whoever looks now does not find the directory below.
        assert!(eventually(|| is_dead(point.path())));
        assert_eq!(error_of(file.set_len(1)), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
        let lock = || flock(&there, FlockOperation::NonBlockingLockExclusive).is_ok();
        assert!(over == Over::Shm || !lock(), "nobody has told the server over {over:?}");
        assert!(eventually(lock), "its lease is over");
        assert!(is_mounted(point.path()), "nobody has cleaned up");
        drop(file);
        let next = Mount::start(&lender.address(over), point.path(), &[]);
        assert!(next.path("file").exists());
        next.unmount();
        assert!(!is_mounted(point.path()), "nor is the dead one there any more");
        other.unmount();
    }
}

/// Also where nobody has closed or synchronized it.
#[test]
fn what_was_written_is_at_the_server_when_write_returns() {
    let lender = Lender::new(16 * MIB);
    for over in common::providers() {
        for options in [&[][..], &["--cache", "none"]] {
            let (mut mount, other) = (lender.mount(over, options), lender.mount(over, &[]));
            let file = open(&mount.path("file"));
            let bytes = common::pattern(300_001, 1);
            // A hole before it, and some of it twice.
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
