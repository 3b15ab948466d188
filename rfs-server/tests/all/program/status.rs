//! `rfs-server status` and `--metrics`: figures of a running program, and programs that do not
//! answer.

#[path = "../../../../rfs-status/tests/support/prometheus.rs"]
#[allow(unreachable_pub, reason = "the mount's tests use it, too")]
mod prometheus;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, Session};
use rfs_proto::{
    ClientDescription, Errno, LockClass, LockKind, LockRange, ROOT_INO, Reply, Request, VERSION,
};
use rfs_server::server::ServerStatus;

use crate::common::{
    ask,
    program::{self, text},
};
use prometheus::Prometheus;

const NOBODY: u32 = 65534;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A running program with a socket in a directory of its own.
struct Running {
    child: Child,
    /// Lines up to the one that says that clients can connect.
    lines: Vec<String>,
    directory: tempfile::TempDir,
}

impl Running {
    fn start(options: &[&str]) -> Running {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let listen = format!("unix:{}", directory.path().join("socket").display());
        let mut command = program();
        command.args(["--listen", &listen]).args(options).stdout(Stdio::piped()).stderr(Stdio::null());
        // Dropping it ends the program, also if it does not get ready.
        let mut running = Running { child: command.spawn().unwrap(), lines: Vec::new(), directory };
        let lines = BufReader::new(running.child.stdout.take().unwrap()).lines();
        for line in lines {
            running.lines.push(line.unwrap());
            if running.lines.last().is_some_and(|line| line.starts_with("ready:")) {
                return running;
            }
        }
        panic!("it has not started: {:?}", running.lines);
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Runs `rfs-server status` for this server.
    fn asked(&self, options: &[&str]) -> Output {
        program().arg("status").arg(self.socket()).args(options).output().unwrap()
    }

    fn status(&self) -> ServerStatus {
        let output = self.asked(&["--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Repeats the question until the answer is right.
    fn eventually(&self, is_right: impl Fn(&ServerStatus) -> bool) -> ServerStatus {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.status();
            if is_right(&status) {
                return status;
            }
            assert!(Instant::now() < end, "{status:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn session(&self) -> Arc<Session> {
        Session::builder().connect(&Address::Unix(self.socket())).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn attach(session: &Session, client: &str, export: &str) {
    attach_as(session, client, export, true);
}

fn attach_as(session: &Session, client: &str, export: &str, keeps: bool) {
    let attach = Request::Attach { version: VERSION, client, export, keeps, alone: false, mount: None };
    assert!(matches!(ask(session, attach), Reply::Attached(_)));
}

fn lookup(session: &Session, name: &[u8]) {
    assert_eq!(ask(session, Request::Lookup { parent: ROOT_INO, name }), Reply::Error(Errno::ENOENT));
}

/// Checks that a question fails, with one line on stderr that contains these words.
fn fails(output: &Output, words: &[&str]) {
    program::fails(output, "rfs-server status: server at ", words);
}

/// Catches figures of other exports or sessions, and words of a client that are lost or trusted.
#[test]
fn figures_are_those_of_the_sessions() {
    let server = Running::start(&["--export=a=4M,inodes=100", "--export=b=8M"]);
    assert_eq!(server.status().sessions, []);
    let (first, second) = (server.session(), server.session());
    let description = ClientDescription {
        program: "test 7".into(),
        pid: Some(1),
        host: "node\u{1b}1".into(),
        mount_point: "/mnt/data".into(),
        transport: "shared memory".into(),
        ..ClientDescription::default()
    };
    attach(&first, &description.to_text(), "b");
    attach(&second, "an older client, process 12", "");
    (0..7).for_each(|_| lookup(&first, b"x"));
    lookup(&second, b"x");
    let status = server.status();
    let [a, b] = &status.exports[..] else { panic!("{status:?}") };
    assert_eq!((a.name.as_str(), a.size_bytes, a.inodes, a.sessions), ("a", 4 << 20, 100, 1));
    assert_eq!((b.name.as_str(), b.size_bytes, b.sessions), ("b", 8 << 20, 1));
    assert_eq!((a.requests["lookup"], b.requests["lookup"], b.requests["attach"]), (1, 7, 1));
    assert_eq!((a.free_inodes, a.snapshots.as_ref(), a.scrub.as_ref()), (99, None, None));
    let [old, new] = &status.sessions[..] else { panic!("{status:?}") };
    assert_eq!((new.export.as_str(), new.requests, new.provider.as_str()), ("b", 7, "shm"));
    assert_eq!((new.program.as_str(), new.mount_point.as_deref()), ("test 7", Some("/mnt/data")));
    // The kernel's word counts, not the client's.
    assert_eq!(new.pid, Some(std::process::id()));
    assert_eq!((new.cache.as_str(), new.read_only, new.recalls), ("auto", false, 0));
    assert_eq!((old.export.as_str(), old.host.as_str()), ("a", "this host"));
    assert_eq!(status.process.pid, server.child.id());
    assert!(status.process.resident_bytes > 1 << 20, "{status:?}");
    let table = text(&server.asked(&[]));
    assert!(table.contains("/mnt/data") && table.contains("node\\u{1b}1"), "{table}");
    drop(first);
    server.eventually(|status| status.sessions.len() == 1);
}

/// Catches a status that waits behind a client that hangs, and one that does not name it.
#[test]
fn the_client_that_others_wait_for_is_named() {
    let server = Running::start(&["--memory=4M"]);
    let (silent, other) = (server.session(), server.session());
    attach(&silent, "silent, process 1", "");
    attach(&other, "other, process 2", "");
    // It caches that there is no such name, and never acknowledges a recall.
    lookup(&silent, b"d");
    let make = Arc::clone(&other);
    let blocked = thread::spawn(move || {
        ask(&make, Request::Mkdir { parent: ROOT_INO, name: b"d", perm: 0o755, umask: 0, uid: 0, gid: 0 })
    });
    let status = server.eventually(|status| status.exports[0].waiting_recalls == 1);
    let session = status.sessions.iter().find(|session| session.program == "silent").unwrap();
    assert_eq!((session.recalls, session.holds_back), (1, 1));
    assert!(session.oldest_recall_seconds.is_some());
    let table = text(&server.asked(&[]));
    assert!(table.contains("Sessions that others wait for"), "{table}");
    drop(silent);
    assert!(matches!(blocked.join().unwrap(), Reply::Attr(_)));
    server.eventually(|status| status.exports[0].waiting_recalls == 0);
}

/// Catches waiting lock requests that are not listed, and a wrong holder.
#[test]
fn the_holder_of_a_lock_is_named() {
    let server = Running::start(&["--memory=4M"]);
    let (holder, waiter) = (server.session(), server.session());
    // They cache nothing, so that no request waits for a recall.
    attach_as(&holder, "holder", "", false);
    attach_as(&waiter, "waiter", "", false);
    let make = Request::Create {
        parent: ROOT_INO,
        name: b"f",
        perm: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
        exclusive: true,
    };
    let Reply::Opened(opened) = ask(&holder, make) else { panic!("not created") };
    let ino = opened.attr.ino;
    assert!(matches!(ask(&waiter, Request::Open { ino, write: true }), Reply::Opened(_)));
    let lock = |pid, ticket| Request::Lock {
        ino,
        owner: 1,
        class: LockClass::Flock,
        kind: LockKind::Exclusive,
        range: LockRange::ALL,
        pid,
        ticket,
    };
    ask(&holder, lock(11, None));
    ask(&waiter, lock(22, Some(5)));
    let status = server.eventually(|status| status.exports[0].waiting_locks == 1);
    let [wait] = &status.lock_waits[..] else { panic!("{status:?}") };
    assert_eq!((wait.inode, wait.pid, wait.exclusive, wait.class.as_str()), (ino, 22, true, "flock"));
    assert_eq!(wait.holder_pid, Some(11));
    assert_ne!(wait.holder_session, Some(wait.session));
    assert_eq!(status.exports[0].locks, 1);
}

/// Catches a question that waits for ever, and a message that does not help.
#[test]
fn a_server_that_is_stopped_or_gone_is_named_with_the_next_step() {
    let server = Running::start(&["--memory=4M"]);
    let pid = server.child.id();
    server.signal("STOP");
    let begin = Instant::now();
    let silent = server.asked(&[]);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    fails(&silent, &[&format!("process {pid} does not answer within 5 s"), &format!("kill -CONT {pid}")]);
    server.signal("CONT");
    assert!(server.asked(&[]).status.success());
    server.signal("KILL");
    let killed = server.eventually_fails();
    fails(&killed, &["has ended: start it again"]);
    let nowhere = program().args(["status", "/nowhere/socket"]).output().unwrap();
    fails(&nowhere, &["/nowhere/socket.status: no such control socket"]);
}

impl Running {
    fn eventually_fails(&self) -> Output {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.asked(&[]);
            if !output.status.success() {
                return output;
            }
            assert!(Instant::now() < end);
        }
    }
}

/// Catches files that the end of the server leaves, and a start that they prevent.
#[test]
fn the_end_of_a_server_leaves_nothing() {
    let mut server = Running::start(&["--memory=4M"]);
    let control = server.directory.path().join("socket.status");
    assert_eq!(fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
    assert_eq!(fs::read_dir(server.directory.path()).unwrap().count(), 0);
}

/// Catches a server that answers every user.
#[test]
fn another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("not run: only root can act as another user");
    }
    let server = Running::start(&["--memory=4M"]);
    // Every user may run it there.
    let copy = server.directory.path().join("program");
    fs::copy(env!("CARGO_BIN_EXE_rfs-server"), &copy).unwrap();
    let as_nobody = || {
        let mut command = Command::new(&copy);
        command.arg("status").arg(server.socket()).uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    fails(&as_nobody(), &["no permission: only root and the user of the program may ask"]);
    // A wrong mode alone opens nothing.
    let control = server.directory.path().join("socket.status");
    fs::set_permissions(control, PermissionsExt::from_mode(0o666)).unwrap();
    fails(&as_nobody(), &["only root and user 0 may ask this program"]);
}

/// Connects to a Unix socket as an ordinary user of this group. Returns true if the kernel permits
/// it.
fn connects(socket: &Path, group: u32) -> bool {
    let script = "import socket, sys\nsocket.socket(socket.AF_UNIX).connect(sys.argv[1])";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(socket).uid(NOBODY).gid(group).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// Catches sockets that a group cannot use, and sockets that others can use.
#[test]
fn a_group_uses_the_sockets_that_are_given_to_it() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not run: only root starts programs as other users");
    }
    // Debian has a group `daemon`, of number 1.
    let options = ["--memory", "4M", "--socket-mode", "0660", "--socket-group", "daemon"];
    let server = Running::start(&[&options[..], &["--allow-without-keys"]].concat());
    let status = server.socket().with_file_name("socket.status");
    for path in [&server.socket(), &status] {
        let meta = fs::metadata(path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o7777, meta.gid()), (0o660, 1), "{path:?}");
        assert!(connects(path, 1) && !connects(path, NOBODY), "{path:?}");
    }
    // Every user may run it there.
    let copy = server.directory.path().join("program");
    fs::copy(env!("CARGO_BIN_EXE_rfs-server"), &copy).unwrap();
    let run = |words: &[&str], group| {
        let mut command = Command::new(&copy);
        command.args(words).arg(server.socket()).uid(NOBODY).gid(group).output().unwrap()
    };
    let ask = |group| run(&["status"], group);
    let refused = String::from_utf8(run(&["pool", "drain", "1"], 1).stderr).unwrap();
    assert!(refused.contains("only root and the user of the server may change its pool"), "{refused}");
    assert!(ask(1).status.success(), "{}", text(&ask(1)));
    fails(&ask(NOBODY), &["ermission"]);
    // Without a mode the group can connect.
    let server = Running::start(&["--memory", "4M", "--socket-group", "1"]);
    assert!(connects(&server.socket(), 1) && !connects(&server.socket(), NOBODY));
}

#[test]
fn a_group_that_does_not_exist_is_refused() {
    let output = program().args(["--memory", "1M", "--socket-group", "no-such-group"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no group \"no-such-group\""), "{said}");
}

/// Catches a watch that asks once, and output that no parser reads.
#[test]
fn a_watch_goes_on_and_prints_a_line_each_time() {
    let server = Running::start(&["--memory=4M"]);
    let session = server.session();
    attach(&session, "test", "");
    let mut watch = program()
        .arg("status")
        .arg(server.socket())
        .args(["--watch", "0.1", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<ServerStatus>(&lines.next().unwrap().unwrap()).unwrap();
    let first = next();
    lookup(&session, b"x");
    let seen = (0..600).map(|_| next()).find(|status| status.exports[0].requests["lookup"] == 1);
    assert!(seen.unwrap().process.uptime_seconds > first.process.uptime_seconds);
    watch.kill().unwrap();
    watch.wait().unwrap();
    let text = program().arg("status").arg(server.socket()).args(["--watch=nan"]).output().unwrap();
    assert_eq!(text.status.code(), Some(2));
}

/// Returns the body of an answer over HTTP.
fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// Checks a text with the program of Prometheus, if it is here.
fn check_with_promtool(arguments: &[&str], input: &str) {
    let mut promtool = Command::new("promtool");
    promtool.arg("check").args(arguments);
    promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = promtool.spawn() else {
        return println!("not run: promtool check {}, as promtool is not installed (ci/setup)", arguments[0]);
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Catches names and figures that Prometheus does not understand, and a free port that is not told.
#[test]
fn metrics_are_scraped() {
    let mut server = Running::start(&["--memory=4M", "--metrics=127.0.0.1:0"]);
    let session = server.session();
    attach(&session, "test", "");
    lookup(&session, b"x");
    let line = server.lines.iter().find_map(|line| line.strip_prefix("metrics at http://")).unwrap();
    let address = line.strip_suffix("/metrics").unwrap().to_owned();
    let metrics = scrape(&address);
    for line in [
        "rfs_server_export_size_bytes{export=\"rfs\"} 4194304\n",
        "rfs_server_requests_total{export=\"rfs\",kind=\"lookup\"} 1\n",
        "rfs_server_sessions{export=\"rfs\",state=\"connected\"} 1\n",
        "rfs_server_runtime_total{counter=\"answer_messages\"} ",
        "# TYPE rfs_server_requests_total counter\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    check_with_promtool(&["metrics"], &metrics);
    match Prometheus::scrape(&address) {
        Some(prometheus) => {
            prometheus.wait_for("up", "\"1\"]");
            let query = "rfs_server_requests_total%7Bkind=%22lookup%22%7D";
            prometheus.wait_for(query, "\"kind\":\"lookup\"");
            prometheus.wait_for(query, ",\"1\"]");
        }
        None => println!("not run: prometheus is not installed (ci/setup)"),
    }
    // A second server is refused before it takes memory.
    let output = program().args(["--memory=4M", "--metrics", &address]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(&format!("--metrics {address}: Address already in use")), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
    assert!(TcpStream::connect(address).is_err());
}

/// Returns the names and labels of all figures, without the figures.
fn series(metrics: &str) -> BTreeSet<String> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

/// Catches labels that clients choose: each client would add series to Prometheus, for ever.
#[test]
fn clients_add_no_series_to_the_metrics() {
    let server = Running::start(&["--memory=4M", "--metrics=127.0.0.1:0"]);
    let address = server.lines.iter().find_map(|line| line.strip_prefix("metrics at http://")).unwrap();
    let address = address.strip_suffix("/metrics").unwrap();
    let connect = |number: u32| {
        let session = server.session();
        let description = ClientDescription {
            program: format!("program {number}"),
            pid: Some(number),
            user: Some(number),
            host: format!("host{number}"),
            mount_point: format!("/mnt/{number}"),
            transport: format!("transport {number}"),
            ..ClientDescription::default()
        };
        attach(&session, &description.to_text(), "");
        lookup(&session, format!("name{number}").as_bytes());
        session
    };
    let counted = |count: usize| {
        let line = format!("rfs_server_sessions{{export=\"rfs\",state=\"connected\"}} {count}\n");
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let metrics = scrape(address);
            if metrics.contains(&line) {
                return metrics;
            }
            assert!(Instant::now() < end, "{metrics}");
            thread::sleep(Duration::from_millis(100));
        }
    };
    let mut sessions = vec![connect(100)];
    let before = series(&counted(1));
    sessions.extend((101..150).map(connect));
    let metrics = counted(50);
    assert_eq!(series(&metrics), before);
    for word in ["host1", "/mnt/1", "program 1"] {
        assert!(!metrics.contains(word), "{word}: {metrics}");
    }
}

/// Catches rules and a dashboard that Prometheus and Grafana do not load.
#[test]
fn alerts_and_dashboard_can_be_loaded() {
    let dashboard = include_str!("../../../monitoring/dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| panel["title"].is_string() && panel["type"].is_string()));
    check_with_promtool(&["rules", concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring/alerts.yml")], "");
}

/// A server without a Unix socket is found by its address.
#[test]
fn a_server_on_a_network_address_answers() {
    let home = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| {
        let mut command = program();
        command.args(options).env("XDG_RUNTIME_DIR", home.path());
        command
    };
    let options = ["--memory=4M", "--listen=tcp:127.0.0.1:0", "--allow-without-keys"];
    let mut child = run(&options).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.next().unwrap().unwrap();
    let address = address.strip_prefix("listening on ").unwrap().to_owned();
    assert!(lines.any(|line| line.unwrap().starts_with("ready:")));
    let output = run(&["status", &address, "--json"]).output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The killed program leaves it.
    let name = format!("rfs-{address}.status");
    for directory in [home.path(), Path::new("/run/rfs"), Path::new("/tmp")] {
        fs::remove_file(directory.join(&name)).ok();
    }
    let status: ServerStatus = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status.addresses, [address]);
}
