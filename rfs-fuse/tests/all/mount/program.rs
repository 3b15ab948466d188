//! The program: starts, failures and ends.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::{
        fs::{FileExt, PermissionsExt},
        net::UnixDatagram,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::common::{
    Lender, Mount, NOBODY, Over, directory, eventually, exit_of, is_mounted, mapped::Mapped, pattern,
    program, providers, test_process,
};
use rustix::process::{Pid, Signal};

const MIB: u64 = 1 << 20;

/// Runs the program to its failure. The test runner ends a start that hangs.
fn run_to_failure(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("rfs-fuse runs")
}

/// Asserts the exit code, one line on stderr with all of `words`, and nothing on stdout.
#[track_caller]
fn assert_fails(out: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("rfs-fuse: "), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(out.stdout.is_empty());
}

#[test]
fn a_timeout_below_the_servers_recall_timeout_causes_a_warning() {
    let lender = Lender::new(16 * MIB);
    for (timeout, warned) in [("4", true), ("9", false)] {
        let mut mount = lender.mount(Over::Shm, &["--timeout", timeout]);
        mount.signal(Signal::INT);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert_eq!(said.contains("--timeout 4: a call may take 8 s"), warned, "{said}");
    }
}

#[test]
fn a_failed_start_prints_the_reason_in_one_line() {
    let lender = Lender::new(16 * MIB);
    let good = lender.address(Over::Shm);
    let point = directory();
    let point = point.path();
    let file = point.join("file");
    fs::write(&file, b"").expect("written");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        listener.local_addr().expect("address").to_string()
    };
    let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
    let silent = silent.local_addr().map(|a| (a.to_string(), silent)).expect("address");
    let missing = point.join("missing");
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let table = [
        ("/nowhere/socket".to_owned(), path(point), 1, vec!["/nowhere/socket", "no such socket"]),
        (closed.clone(), path(point), 1, vec![&closed[..], "refused"]),
        (silent.0.clone(), path(point), 1, vec![&silent.0[..], "no answer"]),
        ("tcp:no-such-host.invalid:7440".to_owned(), path(point), 1, vec!["no-such-host.invalid"]),
        ("nonsense".to_owned(), path(point), 2, vec!["nonsense", "invalid address"]),
        (good.clone(), path(&missing), 1, vec!["missing", "no such directory"]),
        (good.clone(), path(&file), 1, vec!["file", "not a directory"]),
        (good.clone(), format!("{}/x", path(&file)), 1, vec!["file/x"]),
    ];
    for (address, mount_point, code, words) in table {
        let out = run_to_failure(program().arg(&address).arg(&mount_point));
        assert_fails(&out, code, &words);
        // The failure is the same in the background.
        let out = run_to_failure(program().arg("--daemon").arg(&address).arg(&mount_point));
        assert_fails(&out, code, &words);
        assert!(!is_mounted(point));
    }
    let out = run_to_failure(program().args(["--provider", "tcp", &good]).arg(point));
    assert_fails(&out, 1, &["tcp"]);
    let out = run_to_failure(program().arg(point));
    assert_fails(&out, 2, &["address and a mount point"]);
    let out = run_to_failure(program().args(["--threads", "0", &good]).arg(point));
    assert_eq!(out.status.code(), Some(2));
    assert!(!is_mounted(point));

    let mount = Mount::start(&good, point, &[]);
    let out = run_to_failure(program().arg(&good).arg(point));
    assert_fails(&out, 1, &["mounted there already"]);
    mount.unmount();
}

#[test]
fn a_listener_that_is_no_server_is_refused() {
    let point = directory();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("address").to_string();
    let babbler = thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut first = [0; 4];
            if stream.read(&mut first).unwrap_or(0) == 0 {
                return;
            }
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    });
    let out = run_to_failure(program().arg(&address).arg(point.path()));
    assert_fails(&out, 1, &[&address]);
    std::net::TcpStream::connect(&address).expect("connected").shutdown(std::net::Shutdown::Both).ok();
    babbler.join().expect("babbler");
}

/// If the kernel offers io_uring and no option disables it. `ci/ring` enables it in the kernel.
#[test]
fn requests_come_over_io_uring_if_the_kernel_offers_it() {
    crate::common::require_fuse();
    let switch = fs::read_to_string(SWITCH);
    let offered = switch.is_ok_and(|value| value.trim() == "Y");
    assert!(offered || std::env::var_os("RFS_TEST_RING").is_none(), "the kernel does not offer it");
    for (options, way) in [
        (&["--null"][..], if offered { "io_uring" } else { "/dev/fuse" }),
        (&["--null", "--no-io-uring"], "/dev/fuse"),
        // The kernel would accept this size without checking that the longest extended attribute
        // fits.
        (&["--null", "--max-write", "64K"], "/dev/fuse"),
    ] {
        let point = directory();
        let mut command = program();
        command.args(options).arg(point.path()).env("RUST_LOG", "debug");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut String::new()).expect("it is mounted");
        fs::write(point.path().join("file"), b"bytes").expect("written");
        assert_eq!(fs::read(point.path().join("file")).expect("read"), b"bytes");
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("signal sent");
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!(exit_of(&mut child).code(), Some(0), "{said}");
        assert!(said.contains(&format!("requests come over {way}\n")), "{said}");
    }
}

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs a mount with `--null --io-uring=on` to its failure, after `prepare` in a mount namespace
/// of its own.
fn insist_on_a_ring(prepare: &str) -> Output {
    let point = directory();
    let script = format!("{prepare} && exec \"$0\" --null --io-uring=on \"$1\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_rfs-fuse")]).arg(point.path());
    let out = run_to_failure(&mut command);
    assert!(!is_mounted(point.path()));
    out
}

#[test]
fn io_uring_on_fails_with_the_next_step_if_it_cannot_be_enabled() {
    crate::common::require_fuse();
    let missing = insist_on_a_ring("mount -t tmpfs none /sys/module/fuse/parameters");
    assert_fails(&missing, 1, &[SWITCH, "Linux 6.14", "--io-uring=auto"]);
    let Ok(value) = fs::read_to_string(SWITCH) else {
        return eprintln!("not run further: the kernel has no {SWITCH}");
    };
    if value.trim() == "Y" {
        return eprintln!("not run further: FUSE over io_uring is on");
    }
    let fake = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&fake, "N\n").expect("written");
    let fake_path = fake.path().display();
    let refused =
        insist_on_a_ring(&format!("mount --bind {fake_path} {SWITCH} && mount -o remount,bind,ro {SWITCH}"));
    assert_fails(&refused, 1, &["cannot switch on", "Read-only", &format!("echo Y >{SWITCH}")]);
    // The kernel ignores this file.
    let out = insist_on_a_ring(&format!("mount --bind {fake_path} {SWITCH}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!(fs::read_to_string(&fake).expect("read"), "Y\n", "{said}");
    for words in ["is on now", "rfs-fuse: --io-uring=on: no FUSE over io_uring: the kernel does not agree"] {
        assert!(said.contains(words), "{said}");
    }
}

/// Runs without other tests, because it changes a setting of the kernel (`ci/nextest.toml`).
#[test]
fn io_uring_on_switches_it_on() {
    if std::env::var_os("RFS_TEST_RING").is_none() {
        return eprintln!("not run: RFS_TEST_RING is not set; ci/ring sets it");
    }
    crate::common::require_fuse();
    let before = fs::read_to_string(SWITCH).expect("the kernel has FUSE over io_uring");
    let _restore = Restore(&before);
    for (option, switched) in [("--io-uring=on", true), ("-oio_uring", false)] {
        if switched {
            fs::write(SWITCH, "N\n").expect("written");
        }
        let point = directory();
        let mut command = program();
        command.args(["--null", option]).arg(point.path()).env("RUST_LOG", "debug");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut String::new()).expect("it is mounted");
        assert_eq!(fs::read_to_string(SWITCH).expect("read").trim(), "Y");
        fs::write(point.path().join("file"), b"bytes").expect("written");
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("signal sent");
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!(exit_of(&mut child).code(), Some(0), "{said}");
        assert!(said.contains("requests come over io_uring\n"), "{said}");
        assert_eq!(said.contains(&format!("is on now: {SWITCH} is Y")), switched, "{said}");
    }
}

/// Restores the setting when dropped.
struct Restore<'a>(&'a str);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        fs::write(SWITCH, self.0).ok();
    }
}

#[test]
fn signals_and_fusermount_end_a_mount_cleanly() {
    for over in providers() {
        let lender = Lender::new(16 * MIB);
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut mount = lender.mount(over, &[]);
            assert!(mount.greeting.contains("is mounted on"), "{}", mount.greeting);
            fs::write(mount.path("file"), b"x").expect("written");
            mount.signal(signal);
            let (status, said) = mount.wait();
            assert_eq!(status.code(), Some(0), "{said}");
            assert!(!is_mounted(&mount.point));
        }
        let mut mount = lender.mount(over, &[]);
        let done = Command::new("fusermount3").arg("-u").arg(&mount.point).status().expect("fusermount3");
        assert!(done.success());
        let (status, said) = mount.wait();
        assert_eq!((status.code(), &said[..]), (Some(0), ""));
        assert!(!is_mounted(&mount.point));
        assert!(eventually(|| lender.server.stats().sessions == 0), "the server knows that everybody left");
    }
}

#[test]
fn a_service_manager_is_notified() {
    let lender = Lender::new(16 * MIB);
    let (point, place) = (directory(), directory());
    let manager = place.path().join("notify");
    let news = UnixDatagram::bind(&manager).expect("bound");
    let next = || {
        let mut bytes = [0; 100];
        let len = news.recv(&mut bytes).expect("told");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let mut command = program();
    command.arg(lender.address(Over::Shm)).arg(point.path()).env("NOTIFY_SOCKET", &manager);
    let mut mount = Mount::spawn(&mut command, point.path());
    assert_eq!(next(), "READY=1\n");
    assert!(is_mounted(point.path()));
    mount.signal(Signal::TERM);
    let (status, said) = mount.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(next(), "STOPPING=1\n");
}

#[test]
fn a_busy_mount_is_detached_with_a_message() {
    for over in providers() {
        let lender = Lender::new(16 * MIB);
        let mut mount = lender.mount(over, &[]);
        let file = File::create(mount.path("file")).expect("created");
        file.write_all_at(b"kept", 0).expect("written");
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("busy"), "{said}");
        assert!(!is_mounted(&mount.point));
        assert!(file.write_at(b"lost", 0).is_err());
        drop(file);
        let mount = lender.mount(over, &[]);
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"kept");
        mount.unmount();
    }
}

/// Changes of mapped memory are written back before a signal detaches the mount.
#[test]
fn mapped_changes_before_a_signal_are_written_back() {
    // An older kernel writes copies of pages back, and no other process can wait for that.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("its release");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(16)) {
        return eprintln!(
            "not run: nothing can wait for Linux {} to write pages back; 6.16 can",
            release.trim()
        );
    }
    for over in crate::common::providers() {
        let lender = Lender::new(16 * MIB);
        let mut mount = lender.mount(over, &[]);
        let file = crate::common::locking::open(&mount.path("file"));
        file.set_len(MIB).expect("extended");
        let mut mapped = Mapped::new(&file, MIB as usize);
        let bytes = pattern(MIB as usize, 8);
        mapped.write(0, &bytes);
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("busy") && !said.contains("written back"), "{said}");
        drop((mapped, file));
        let mount = lender.mount(over, &[]);
        assert!(fs::read(mount.path("file")).expect("read") == bytes);
        mount.unmount();
    }
}

/// Returns the number of processes whose arguments contain the path.
fn processes(path: &Path) -> usize {
    let path = path.to_str().expect("UTF-8").as_bytes();
    let mut found = 0;
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        found += usize::from(arguments.windows(path.len()).any(|part| part == path));
    }
    found
}

#[test]
fn the_background_mount_answers_when_the_command_returns() {
    let lender = Lender::new(16 * MIB);
    for over in providers() {
        let point = directory();
        let log = lender.dir.path().join("log");
        let out = program()
            .args(["--daemon", "--stats-on-exit", "--log-file"])
            .arg(&log)
            .arg(lender.address(over))
            .arg(point.path())
            .output()
            .expect("rfs-fuse runs");
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(String::from_utf8_lossy(&out.stdout).contains("is mounted on"));
        assert!(is_mounted(point.path()));
        fs::write(point.path().join("file"), b"x").expect("written at once");
        assert_eq!(processes(point.path()), 2, "with the one that takes care of the mount");
        let done = Command::new("fusermount3").arg("-u").arg(point.path()).status().expect("fusermount3");
        assert!(done.success());
        assert!(eventually(|| processes(point.path()) == 0));
        let said = fs::read_to_string(&log).expect("log");
        assert!(said.contains("counters"), "{said}");
        fs::remove_file(&log).expect("removed");
    }
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    crate::common::require_fuse();
    let _open = crate::common::OpenDevice::new();
    for over in providers() {
        let lender = Lender::new(16 * MIB);
        if let rdmabox::Address::Unix(socket) = &lender.server.addresses()[0] {
            fs::set_permissions(socket, PermissionsExt::from_mode(0o777)).expect("chmod");
        }
        let point = directory();
        let out =
            run_to_failure(program().arg(lender.address(over)).arg(point.path()).uid(NOBODY).gid(NOBODY));
        assert_fails(&out, 1, &["cannot mount on", "access"]);
        std::os::unix::fs::chown(point.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
        let out = run_to_failure(
            program()
                .arg("--allow-other")
                .arg(lender.address(over))
                .arg(point.path())
                .uid(NOBODY)
                .gid(NOBODY),
        );
        assert_fails(&out, 1, &["user_allow_other"]);

        let mut command = program();
        command.arg(lender.address(over)).arg(point.path()).uid(NOBODY).gid(NOBODY);
        let mut mount = Mount::spawn(&mut command, point.path());
        let done = crate::common::shell_as(
            NOBODY,
            Path::new("/"),
            &format!("cd {0} && echo hi > f && grep -q hi f", point.path().display()),
        );
        assert_eq!(done, Some(0));
        assert!(fs::read(mount.path("f")).is_err(), "not even root without allow_other");
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(!is_mounted(point.path()));

        // The watchdog unmounts a killed mount through fusermount3, too.
        let mut mount = Mount::spawn(&mut command, point.path());
        mount.signal(Signal::KILL);
        mount.wait();
        assert!(crate::common::eventually(|| !is_mounted(point.path())));
    }
}

#[test]
fn counters_are_printed_at_the_end() {
    // With checksums, writes are calls.
    if crate::common::checked() {
        return eprintln!("not run: a server with checksums carries writes out itself");
    }
    let lender = Lender::new(16 * MIB);
    let mount = lender.mount(Over::Tcp, &["--stats-on-exit"]);
    fs::write(mount.path("file"), pattern(MIB as usize, 1)).expect("written");
    let report = mount.report();
    let counters = report["counters"].as_object().expect("counters");
    assert!(!counters.is_empty());
    assert!(counters.values().any(|value| value.as_u64() >= Some(MIB)), "{report}");
}

#[test]
fn the_null_file_system_keeps_bytes_while_it_is_mounted() {
    crate::common::require_fuse();
    for options in [&[][..], &["--direct-io"]] {
        let point = directory();
        let mount = Mount::spawn(program().arg("--null").args(options).arg(point.path()), point.path());
        fs::create_dir(mount.path("d")).expect("directory");
        let data = pattern(5 * MIB as usize + 3, 9);
        fs::write(mount.path("d/file"), &data).expect("written");
        assert!(fs::read(mount.path("d/file")).expect("read") == data);
        let file = File::options().write(true).open(mount.path("d/file")).expect("opened");
        file.set_len(MIB + 5).expect("cut");
        file.set_len(2 * MIB).expect("extended");
        let mut expected = data[..MIB as usize + 5].to_vec();
        expected.resize(2 * MIB as usize, 0);
        assert!(fs::read(mount.path("d/file")).expect("read") == expected);
        drop(file);
        fs::rename(mount.path("d/file"), mount.path("file")).expect("renamed");
        assert_eq!(fs::read_dir(mount.path("d")).expect("directory").count(), 0);
        fs::remove_file(mount.path("file")).expect("removed");
        fs::remove_dir(mount.path("d")).expect("removed");
        assert!(!mount.path("file").exists());
        mount.unmount();
    }
}

/// Not a test: the server process of the tests below, which is this program started again.
#[test]
#[ignore = "a helper process of other tests"]
fn server_process() {
    if std::env::var_os("RFS_TEST_SERVER").is_none() {
        return;
    }
    let lender = Lender::new(16 * MIB);
    println!("\nserving {} {}", lender.address(Over::Shm), lender.address(Over::Tcp));
    io::stdout().flush().expect("stdout");
    // Waits until the test closes the input.
    io::stdin().read_to_end(&mut Vec::new()).ok();
}

struct ServerProcess {
    child: Child,
    addresses: Vec<String>,
}

impl ServerProcess {
    fn start() -> ServerProcess {
        let mut child = test_process(module_path!(), "server_process")
            .arg("--ignored")
            .env("RFS_TEST_SERVER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server process");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let line = out.lines().map_while(Result::ok).find(|line| line.starts_with("serving "));
        let line = line.expect("a server that starts");
        ServerProcess { child, addresses: line.split(' ').skip(1).map(str::to_owned).collect() }
    }

    fn address(&self, over: Over) -> &str {
        &self.addresses[usize::from(over == Over::Tcp)]
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("signal");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        // A killed server cannot remove its directory.
        if let Some(socket) = self.addresses[0].strip_prefix("unix:") {
            PathBuf::from(socket).parent().map(|dir| fs::remove_dir_all(dir).ok());
        }
    }
}

/// Runs `f` on a thread. Returns its result if it ends within `limit`.
fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(f()));
    wait.recv_timeout(limit).ok()
}

type Operation = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Returns one operation of every kind.
fn operations(mount: &Mount, file: &File) -> Vec<(&'static str, Operation)> {
    let (path, point) = (mount.path("file"), mount.point.clone());
    let file = file.try_clone().expect("dup");
    vec![
        ("read", {
            let file = file.try_clone().expect("dup");
            Box::new(move || file.read_at(&mut [0; 4096], 8192).map(drop))
        }),
        ("write", {
            let file = file.try_clone().expect("dup");
            Box::new(move || file.write_at(b"x", 0).map(drop))
        }),
        ("fstat", Box::new(move || file.metadata().map(drop))),
        ("open", Box::new(move || File::open(path).map(drop))),
        ("create", {
            let path = mount.path("new");
            Box::new(move || File::create(path).map(drop))
        }),
        ("mkdir", {
            let path = mount.path("dir");
            Box::new(move || fs::create_dir(path))
        }),
        ("readdir", Box::new(move || fs::read_dir(point)?.next().map_or(Ok(()), |e| e.map(drop)))),
    ]
}

/// Runs every operation on a mount whose server is gone or silent.
fn every_operation(mount: &Mount, file: File, limit: Duration) -> Vec<(&'static str, Option<i32>)> {
    operations(mount, &file)
        .into_iter()
        .map(|(name, run)| {
            let result = within(limit, run).unwrap_or_else(|| panic!("{name} hangs"));
            (name, result.err().and_then(|e| e.raw_os_error()))
        })
        .collect()
}

/// Creates a file of three blocks. The kernel caches nothing of this mount.
fn uncached_file(mount: &Mount) -> File {
    let path = mount.path("file");
    fs::write(&path, pattern(3 * 4096, 1)).expect("written");
    File::options().read(true).write(true).open(path).expect("opened")
}

#[test]
fn a_killed_server_is_an_errno_and_not_a_hang() {
    crate::common::require_fuse();
    for over in providers() {
        let mut server = ServerProcess::start();
        let point = directory();
        let options = ["--cache", "none", "--timeout", "5"];
        let mount = Mount::start(server.address(over), point.path(), &options);
        let file = uncached_file(&mount);
        server.signal(Signal::KILL);
        exit_of(&mut server.child);
        for (name, errno) in every_operation(&mount, file, Duration::from_secs(10)) {
            assert_eq!(errno, Some(rustix::io::Errno::HOSTDOWN.raw_os_error()), "{name} over {over:?}");
        }
        mount.unmount();
    }
}

/// Options of a mount that waits for half a second, and the maximum time of an operation on it.
/// The semantics allow twice `--timeout` and `--connect-timeout`; a busy machine takes longer.
const IMPATIENT: [&str; 6] = ["--cache", "none", "--timeout", "0.5", "--connect-timeout", "0.5"];
const MAX_OPERATION_TIME: Duration = Duration::from_millis(3 * 500 + 4000);

#[test]
fn the_first_operation_on_a_silent_server_fails_in_time() {
    crate::common::require_fuse();
    for over in providers() {
        let server = ServerProcess::start();
        let start = |_| {
            let point = directory();
            let mount = Mount::start(server.address(over), point.path(), &IMPATIENT);
            let file = uncached_file(&mount);
            (mount, file, point)
        };
        // A new mount for each operation, because operations after a loss fail at once.
        let first = start(0);
        let mut mounts = vec![first];
        mounts.extend((1..operations(&mounts[0].0, &mounts[0].1).len()).map(start));
        crate::common::stop(server.pid());
        let waits: Vec<_> = mounts
            .iter()
            .enumerate()
            .map(|(at, (mount, file, _))| {
                let (name, run) = operations(mount, file).swap_remove(at);
                (name, thread::spawn(move || within(MAX_OPERATION_TIME, run)))
            })
            .collect();
        for (name, wait) in waits {
            let result =
                wait.join().expect("no panic").unwrap_or_else(|| panic!("{name} over {over:?} hangs"));
            let errno = result.err().and_then(|e| e.raw_os_error());
            // With mapped memory, operations on allocated space need no server.
            if !(["read", "write", "fstat"].contains(&name) && errno.is_none()) {
                // The error depends on the step that detects the loss.
                let told = [rustix::io::Errno::TIMEDOUT, rustix::io::Errno::HOSTDOWN];
                let told = told.map(|errno| Some(errno.raw_os_error()));
                assert!(told.contains(&errno), "{name} over {over:?}: {errno:?}");
            }
        }
        for (mount, file, _point) in mounts {
            drop(file);
            mount.unmount();
        }
        server.signal(Signal::CONT);
    }
}

#[test]
fn a_silent_server_is_an_errno_and_not_a_hang() {
    crate::common::require_fuse();
    for over in providers() {
        let server = ServerProcess::start();
        let point = directory();
        let mount = Mount::start(server.address(over), point.path(), &IMPATIENT);
        let file = uncached_file(&mount);
        crate::common::stop(server.pid());
        let first = within(MAX_OPERATION_TIME, {
            let path = mount.path("dir");
            move || fs::create_dir(path)
        });
        let first = first.expect("mkdir hangs").expect_err("the server does not answer").raw_os_error();
        assert_eq!(first, Some(rustix::io::Errno::TIMEDOUT.raw_os_error()), "over {over:?}");
        // The session has ended by now.
        for (name, errno) in every_operation(&mount, file, MAX_OPERATION_TIME) {
            assert!(errno.is_some(), "{name} over {over:?} worked");
        }
        mount.unmount();
        server.signal(Signal::CONT);
    }
}

/// A process that waits for its own file system could not be killed, so another process probes
/// the mount.
#[test]
fn a_probe_from_outside_reports_its_result() {
    let dir = directory();
    fs::write(dir.path().join("file"), "").expect("written");
    let look = |what: &str, name: &str| {
        let looked =
            program().args(["--mount-probe", what]).arg(dir.path().join(name)).output().expect("ran");
        assert_eq!((&looked.stdout[..], &looked.stderr[..]), (&b""[..], &b""[..]));
        looked.status.code()
    };
    use rustix::io::Errno;
    assert_eq!(look("directory", ""), Some(0));
    assert_eq!(look("directory", "file"), Some(Errno::NOTDIR.raw_os_error()));
    assert_eq!(look("directory", "missing"), Some(Errno::NOENT.raw_os_error()));
    assert_eq!(look("sync", ""), Some(0));
    assert_eq!(look("sync", "missing"), Some(Errno::NOENT.raw_os_error()));
}
