//! `rfs-fuse status` and `--metrics`: figures of a running mount, and mounts that do not answer.

#[path = "../../../../rfs-status/tests/support/prometheus.rs"]
#[allow(unreachable_pub, reason = "the server's tests use it, too")]
mod prometheus;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Mount, NOBODY, Over, TestServer, checked, directory, eventually, is_mounted, program, providers,
    proxy::Proxy, stop,
};
use prometheus::Prometheus;
use rfs_server::server::status::SessionState;
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn asked(options: &[&str]) -> Output {
    program().arg("status").args(options).stdin(Stdio::null()).output().expect("rfs-fuse runs")
}

/// Returns the status of a mount.
fn status(mount: &Mount) -> Value {
    let output = asked(&[mount.point.to_str().expect("UTF-8"), "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Checks that a question fails, with one line on stderr that contains these words.
#[track_caller]
fn fails(output: &Output, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("rfs-fuse status: "), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr:?}");
    }
}

/// Returns the control socket of a mount of root.
fn control_socket(mount: &Mount) -> PathBuf {
    let device = fs::metadata(&mount.point).expect("attributes").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Path::new("/run/rfs-fuse").join(format!("mount-{major}:{minor}"))
}

/// Checks that hits and misses of caches grow by the requests that this makes.
fn assert_caches_count(mount: &Mount) {
    let uses = |cache: &str| {
        let now = status(mount);
        ["hits", "misses"].map(|what| now["caches"][cache][what].as_u64().expect("a counter"))
    };
    let grow = |cache: &str, [hits, misses]: [u64; 2], act: &dyn Fn()| {
        let before = uses(cache);
        act();
        let now = uses(cache);
        assert_eq!([now[0] - before[0], now[1] - before[1]], [hits, misses], "{cache}");
    };
    let directory = mount.path("caches");
    fs::create_dir(&directory).expect("made");
    // A new directory is listed once, and all other names are absent then.
    let absent = |name: &str| assert!(!directory.join(name).exists());
    grow("names", [0, 1], &|| absent("one"));
    grow("names", [2, 0], &|| ["two", "three"].into_iter().for_each(absent));
    let list = || assert_eq!(fs::read_dir(&directory).expect("listed").count(), 0);
    grow("listings", [0, 1], &list);
    grow("listings", [1, 0], &list);
    let read = || assert_eq!(fs::read(mount.path("file")).expect("read").len(), 64 << 10);
    read();
    grow("pages", [1, 0], &read);
    let dropped = || {
        let file = fs::File::open(mount.path("file")).expect("opened");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
    };
    dropped();
    let [hits, misses] = uses("layouts");
    read();
    let [more, same] = uses("layouts");
    assert!(more > hits && same == misses, "{hits} {misses} {more} {same}");
}

/// Catches figures that do not grow with requests, and a server that does not know its mounts.
#[test]
fn figures_agree_with_the_test_and_with_the_server() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, &[]);
        let before = status(&mount);
        (0..5).for_each(|number| fs::create_dir(mount.path(&format!("d{number}"))).expect("made"));
        fs::write(mount.path("file"), vec![7; 64 << 10]).expect("written");
        let now = status(&mount);
        let count = |status: &Value, name: &str| status["requests"][name].as_u64().unwrap_or(0);
        assert_eq!(count(&now, "mkdir") - count(&before, "mkdir"), 5, "{now:#}");
        assert_eq!(count(&now, "create") - count(&before, "create"), 1, "{now:#}");
        let written =
            |status: &Value| status["session"]["counters"]["bytes_written"].as_u64().expect("bytes");
        // With checksums the server writes the data.
        if !checked() {
            assert!(written(&now) - written(&before) >= 64 << 10, "{now:#}");
        }
        assert_caches_count(&mount);
        assert_eq!(now["session"]["state"], "connected");
        assert_eq!(now["session"]["mapped"], over == Over::Shm);
        assert!(now["session"]["latencies"]["call"]["count"].as_u64() > Some(5), "{now:#}");
        assert_eq!((&now["cache"], &now["read_only"]), (&"auto".into(), &false.into()));
        assert_eq!(now["waiting_requests"], 0);
        assert_eq!(now["mount_point"], mount.point.to_str().expect("UTF-8"));
        let of_server = server.inner.status_source().status();
        let [session] = &of_server.sessions[..] else { panic!("{of_server:?}") };
        assert_eq!(session.mount_point.as_deref(), mount.point.to_str());
        assert_eq!(session.pid, Some(mount.pid().as_raw_nonzero().get().unsigned_abs()));
        assert_eq!((session.user, session.cache.as_str()), (Some(0), "auto"));
        assert_eq!(session.provider, over.to_string());
        assert_eq!(session.transport.as_deref(), now["session"]["transport"].as_str());
        assert_eq!(Some(session.program.as_str()), Some(concat!("rfs-fuse ", env!("CARGO_PKG_VERSION"))));
        let table = String::from_utf8(asked(&[mount.point.to_str().expect("UTF-8")]).stdout).expect("UTF-8");
        assert!(table.contains("mkdir") && table.contains("Latencies"), "{table}");
        mount.unmount();
    }
}

/// A program whose output is read line by line, killed when dropped.
struct Watch(Child);

impl Watch {
    fn start(mount: &Mount, options: &[&str]) -> (Watch, impl Iterator<Item = String> + use<>) {
        let mut command = program();
        command.arg("status").arg(&mount.point).args(options).stdout(Stdio::piped());
        let mut child = command.spawn().expect("rfs-fuse runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        (Watch(child), lines.map(|line| line.expect("UTF-8")))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Catches a watch that asks once, output that no parser reads, and rates of the whole time.
#[test]
fn a_watch_goes_on_and_prints_each_time() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, &[]);
    let (_watch, mut lines) = Watch::start(&mount, &["--watch", "0.1", "--json"]);
    let mut next = || serde_json::from_str::<Value>(&lines.next().expect("a line")).expect("JSON");
    let first = next();
    fs::create_dir(mount.path("d")).expect("made");
    let later =
        (0..600).map(|_| next()).find(|status| status["requests"]["mkdir"] == 1).expect("the request");
    let up = |status: &Value| status["process"]["uptime_seconds"].as_f64().expect("seconds");
    assert!(up(&later) > up(&first), "{first} {later}");
    // Two tables: the first has means, and the second the rates of the time in between.
    let (_watch, mut lines) = Watch::start(&mount, &["--watch=0.1"]);
    for words in ["Requests of the kernel (mean since the start)", "Requests of the kernel (in the last "] {
        let line = lines.find(|line| line.starts_with("Requests of the kernel")).expect("a table");
        assert!(line.starts_with(words), "{line}");
    }
    assert_eq!(asked(&["--watch=nan"]).status.code(), Some(2));
    mount.unmount();
}

/// Catches a question that touches the mount, or waits for its server.
#[test]
fn a_mount_whose_server_is_silent_answers() {
    let server = TestServer::new(16 * MIB);
    let proxy = Proxy::to(server.address(Over::Tcp));
    let mount = Mount::start(proxy.address(), directory_of_test(), &["--provider", "tcp", "--timeout", "60"]);
    let path = mount.path("directory");
    thread::scope(|scope| {
        let held = scope.spawn(|| proxy.hold_for(Duration::from_secs(8)));
        // The proxy holds from the start of its thread on, or a moment later.
        thread::sleep(Duration::from_millis(200));
        let blocked = scope.spawn(|| fs::create_dir(path));
        let mut now = Value::Null;
        assert!(eventually(|| {
            now = status(&mount);
            now["waiting_requests"].as_u64() > Some(0)
        }));
        assert!(!held.is_finished() && !blocked.is_finished(), "it does not hang: {now:#}");
        blocked.join().expect("a thread").expect("made");
    });
    mount.unmount();
}

/// Returns a new directory that stays until the process ends.
fn directory_of_test() -> &'static Path {
    Box::leak(Box::new(directory())).path()
}

/// Catches a question that hangs with the mount, and a server that waits for a stopped client.
#[test]
fn a_stopped_mount_is_named_and_the_server_answers() {
    let server = TestServer::with(16 * MIB, |config| {
        config.fencing = rdmabox::Fencing::new(Duration::from_secs(60), false);
    });
    let mount = server.mount(Over::Shm, &[]);
    let pid = mount.pid().as_raw_nonzero();
    stop(mount.pid());
    let point = mount.point.to_str().expect("UTF-8");
    let begin = Instant::now();
    let silent = asked(&[point]);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    fails(&silent, &[point, &format!("process {pid} does not answer"), &format!("kill -CONT {pid}")]);
    let all = asked(&["--all", "--json"]);
    assert_eq!(all.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&all.stdout).expect("JSON");
    let own = all.as_array().expect("a list").iter().find(|status| status["mount_point"] == point);
    assert!(own.expect("the mount")["error"].as_str().is_some_and(|e| e.contains("kill -CONT")), "{own:?}");
    let begin = Instant::now();
    let of_server = server.inner.status_source().status();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    let [session] = &of_server.sessions[..] else { panic!("{of_server:?}") };
    assert_eq!(session.state, SessionState::Connected);
    assert!(session.silent_seconds > Some(4.0), "{session:?}");
    mount.signal(Signal::CONT);
    assert!(eventually(|| asked(&[point]).status.success()));
    mount.unmount();
}

/// Catches latencies of the server that leave out the time of a recall. Also catches latencies that
/// count the time in which a session waits for its next recall.
#[test]
fn the_server_tells_requests_that_wait_for_another_mount_from_others() {
    let server = TestServer::with(16 * MIB, |config| {
        config.fencing = rdmabox::Fencing::new(Duration::from_secs(60), false);
    });
    let (mount, other) = (server.mount(Over::Shm, &[]), server.mount(Over::Shm, &[]));
    fs::write(mount.path("file"), "bytes").expect("written");
    // No mount keeps attributes of a file that another one has open for writing.
    server.all_closed_but(0);
    // The other mount has the attributes, and does not acknowledge their recall for a while.
    fs::metadata(other.path("file")).expect("found");
    stop(other.pid());
    thread::scope(|scope| {
        let change =
            scope.spawn(|| fs::set_permissions(mount.path("file"), fs::Permissions::from_mode(0o600)));
        thread::sleep(Duration::from_secs(3));
        assert!(!change.is_finished());
        other.signal(Signal::CONT);
        change.join().expect("a thread").expect("changed");
    });
    let of_server = server.inner.status_source().status();
    let latencies = &of_server.exports[0].latencies;
    let (prompt, held) = (&latencies["at_once"], &latencies["after_recalls"]);
    assert!(held.count >= 1 && held.max_seconds > 2.0, "{latencies:?}");
    assert!(prompt.count > 5 && prompt.max_seconds < 2.0, "{latencies:?}");
    mount.unmount();
    other.unmount();
}

/// Catches sockets that the end of a mount leaves, however it ends.
#[test]
fn the_end_of_a_mount_leaves_no_socket() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, &[]);
    let socket = control_socket(&mount);
    assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o600);
    mount.unmount();
    assert!(!socket.exists());
    let mut mount = server.mount(Over::Shm, &[]);
    let socket = control_socket(&mount);
    assert!(socket.exists());
    mount.signal(Signal::KILL);
    mount.wait();
    assert!(eventually(|| !is_mounted(&mount.point) && !socket.exists()));
    let point = mount.point.to_str().expect("UTF-8");
    fails(&asked(&[point]), &[point, "nothing is mounted there"]);
}

/// Catches a mount that answers every user.
#[test]
fn another_user_is_refused() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, &[]);
    let place = directory();
    // Every user may run it there.
    let copy = place.path().join("rfs-fuse");
    fs::copy(env!("CARGO_BIN_EXE_rfs-fuse"), &copy).expect("copied");
    let as_nobody = || {
        let mut command = Command::new(&copy);
        command.arg("status").arg(&mount.point).uid(NOBODY).gid(NOBODY).output().expect("it runs")
    };
    fails(&as_nobody(), &["no permission: only root and the user of the program may ask"]);
    fs::set_permissions(control_socket(&mount), PermissionsExt::from_mode(0o666)).expect("chmod");
    fails(&as_nobody(), &["only root and user 0 may ask this program"]);
    mount.unmount();
}

/// Catches metrics without the figures of the mount, and a bad address that mounts.
#[test]
fn metrics_are_scraped() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, &["--metrics", "127.0.0.1:0"]);
    fs::create_dir(mount.path("d")).expect("made");
    let address = status(&mount)["metrics_address"].as_str().expect("an address").to_owned();
    let mut stream = TcpStream::connect(&address).expect("connected");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    for line in [
        "rfs_mount_requests_total{kind=\"mkdir\"} 1\n",
        "rfs_mount_session_connected 1\n",
        "rfs_mount_runtime_total{counter=\"calls\"} ",
        "rfs_mount_runtime_total{counter=\"bytes_written\"} ",
        "# TYPE rfs_mount_request_duration_seconds histogram\n",
        "rfs_mount_request_duration_seconds_bucket{kind=\"call\",le=\"10\"} ",
    ] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
    check_with_promtool(answer.split_once("\r\n\r\n").expect("a body").1);
    match Prometheus::scrape(&address) {
        Some(prometheus) => {
            prometheus.wait_for("up", "\"1\"]");
            prometheus.wait_for("rfs_mount_session_connected", "\"1\"]");
        }
        None => println!("not run: prometheus is not installed (ci/setup)"),
    }
    let point = directory();
    let point = point.path().to_str().expect("UTF-8");
    for (bad, code, words) in [
        ("9430", 2, "expected a numeric address and a port"),
        (address.as_str(), 1, "Address already in use"),
    ] {
        let output = program().args(["--metrics", bad, &server.address(Over::Shm), point]).output();
        let output = output.expect("rfs-fuse runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(!is_mounted(Path::new(point)));
    }
    mount.unmount();
}

/// Checks a text with the program of Prometheus, if it is here.
fn check_with_promtool(metrics: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = promtool.spawn() else {
        return println!("not run: promtool check metrics, as promtool is not installed (ci/setup)");
    };
    child.stdin.take().expect("piped").write_all(metrics.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("promtool runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
