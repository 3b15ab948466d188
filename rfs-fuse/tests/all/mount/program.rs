//! The program: starts, failures and ends.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpListener,
    os::unix::{
        fs::{FileExt, PermissionsExt},
        net::UnixDatagram,
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

use crate::common::{
    Mount, NOBODY, Over, TestServer, directory, eventually, is_mounted, mapping::Mapping, pattern, program,
    providers,
};
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;

/// Runs the program to its failure. The test runner ends a start that hangs.
pub(super) fn run_to_failure(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("rfs-fuse runs")
}

/// Asserts the exit code, one line on stderr with all of `words`, and nothing on stdout.
#[track_caller]
pub(super) fn assert_fails(out: &Output, code: i32, words: &[&str]) {
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
    let server = TestServer::new(16 * MIB);
    for (timeout, warned) in [("4", true), ("9", false)] {
        let mut mount = server.mount(Over::Shm, &["--timeout", timeout]);
        mount.signal(Signal::INT);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert_eq!(said.contains("--timeout 4: a call may take 8 s"), warned, "{said}");
    }
}

#[test]
fn a_failed_start_prints_the_reason_in_one_line() {
    let server = TestServer::new(16 * MIB);
    let good = server.address(Over::Shm);
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

#[test]
fn signals_and_fusermount_end_a_mount_cleanly() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut mount = server.mount(over, &[]);
            assert!(mount.greeting.contains("is mounted on"), "{}", mount.greeting);
            fs::write(mount.path("file"), b"x").expect("written");
            mount.signal(signal);
            let (status, said) = mount.wait();
            assert_eq!(status.code(), Some(0), "{said}");
            assert!(!is_mounted(&mount.point));
        }
        let mut mount = server.mount(over, &[]);
        let done = Command::new("fusermount3").arg("-u").arg(&mount.point).status().expect("fusermount3");
        assert!(done.success());
        let (status, said) = mount.wait();
        assert_eq!((status.code(), &said[..]), (Some(0), ""));
        assert!(!is_mounted(&mount.point));
        assert!(eventually(|| server.inner.stats().sessions == 0), "the server knows that everybody left");
    }
}

#[test]
fn a_service_manager_is_notified() {
    let server = TestServer::new(16 * MIB);
    let (point, place) = (directory(), directory());
    let manager = place.path().join("notify");
    let news = UnixDatagram::bind(&manager).expect("bound");
    let next = || {
        let mut bytes = [0; 100];
        let len = news.recv(&mut bytes).expect("told");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let mut command = program();
    command.arg(server.address(Over::Shm)).arg(point.path()).env("NOTIFY_SOCKET", &manager);
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
        let server = TestServer::new(16 * MIB);
        let mut mount = server.mount(over, &[]);
        let file = File::create(mount.path("file")).expect("created");
        file.write_all_at(b"kept", 0).expect("written");
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("busy"), "{said}");
        assert!(!is_mounted(&mount.point));
        assert!(file.write_at(b"lost", 0).is_err());
        drop(file);
        let mount = server.mount(over, &[]);
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
        let server = TestServer::new(16 * MIB);
        let mut mount = server.mount(over, &[]);
        let file = crate::common::locking::open(&mount.path("file"));
        file.set_len(MIB).expect("extended");
        let mut mapped = Mapping::new(&file, MIB as usize);
        let bytes = pattern(MIB as usize, 8);
        mapped.write(0, &bytes);
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("busy") && !said.contains("written back"), "{said}");
        drop((mapped, file));
        let mount = server.mount(over, &[]);
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
    let server = TestServer::new(16 * MIB);
    for over in providers() {
        let point = directory();
        let log = server.dir.path().join("log");
        let out = program()
            .args(["--daemon", "--stats-on-exit", "--log-file"])
            .arg(&log)
            .arg(server.address(over))
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

/// A process in the background leaves its directory, and needs the socket when it reconnects or
/// mounts again.
#[test]
fn relative_paths_of_a_background_mount_stay_valid() {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for (memory_dir, expected) in [(Some(memory.path().to_owned()), "kept"), (None, "missing")] {
        let server = TestServer::with(16 * MIB, |config| config.memory_dir.clone_from(&memory_dir));
        let place = server.dir.path().to_owned();
        fs::create_dir(place.join("point")).expect("created");
        let out = program()
            .current_dir(&place)
            .args(["--daemon", "--log-file", "log", "--lost-server", "remount", "./socket", "point"])
            .output()
            .expect("rfs-fuse runs");
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        let (point, socket) = (place.join("point"), place.join("socket"));
        let greeting = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(greeting.contains(&format!("{} is mounted", socket.display())), "{greeting}");
        fs::write(point.join("file"), "kept").expect("written");
        let server = server.again(16 * MIB, |config| config.memory_dir = memory_dir);
        let contents = || match fs::read_to_string(point.join("file")) {
            Ok(contents) => contents,
            // The directory below a mount that is gone is empty, too.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && is_mounted(&point) => "missing".into(),
            Err(e) => e.to_string(),
        };
        let log = || fs::read_to_string(place.join("log")).expect("log");
        assert!(eventually(|| contents() == expected), "{}: {}", contents(), log());
        // The new mount is busy while the program probes it.
        let mut unmount = Command::new("fusermount3");
        unmount.arg("-u").arg(&point).stderr(Stdio::null());
        assert!(eventually(|| unmount.status().expect("fusermount3").success()));
        assert!(eventually(|| processes(&place) == 0), "{}", log());
        drop(server);
    }
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    crate::common::require_fuse();
    let _open = crate::common::OpenDevice::new();
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        if let rdmabox::Address::Unix(socket) = &server.inner.addresses()[0] {
            fs::set_permissions(socket, PermissionsExt::from_mode(0o777)).expect("chmod");
        }
        let point = directory();
        let out =
            run_to_failure(program().arg(server.address(over)).arg(point.path()).uid(NOBODY).gid(NOBODY));
        assert_fails(&out, 1, &["cannot mount on", "access"]);
        std::os::unix::fs::chown(point.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
        let out = run_to_failure(
            program()
                .arg("--allow-other")
                .arg(server.address(over))
                .arg(point.path())
                .uid(NOBODY)
                .gid(NOBODY),
        );
        assert_fails(&out, 1, &["user_allow_other"]);

        let mut command = program();
        command.arg(server.address(over)).arg(point.path()).uid(NOBODY).gid(NOBODY);
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
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Tcp, &["--stats-on-exit"]);
    fs::write(mount.path("file"), pattern(MIB as usize, 1)).expect("written");
    let report = mount.report();
    let counters = report["counters"].as_object().expect("counters");
    assert!(!counters.is_empty());
    assert!(counters.values().any(|value| value.as_u64() >= Some(MIB)), "{report}");
}

/// Catches a line on standard output that is no JSON.
#[test]
fn standard_output_has_only_the_counters() {
    let server = TestServer::new(16 * MIB);
    for mode in [&[][..], &["--quiet"], &["--takeover"]] {
        let point = directory();
        let mut command = program();
        command.args(["--stats-on-exit"]).args(mode).arg(server.address(Over::Shm)).arg(point.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("rfs-fuse starts");
        assert!(eventually(|| is_mounted(point.path())));
        fs::write(point.path().join("file"), b"x").expect("written");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("signal sent");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{mode:?}: {said}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(report["counters"].is_object(), "{mode:?}: {report}");
        assert_eq!(said.contains("is mounted on"), !mode.contains(&"--quiet"), "{mode:?}: {said}");
    }
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
