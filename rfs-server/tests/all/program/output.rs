//! The program: its output, its exit status, and signals.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    process::{Child, Command, Output, Stdio},
    thread,
};

use rdmabox::{Address, Key, ProviderKind, Session};
use rfs_paging::{PagerOptions, PagingError, RemotePager};
use rfs_proto::{ClientDescription, Reply, Request, VERSION, decode_reply, encode_request};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// Checks that the program ends with this status. stderr contains all of `words`, and exactly one
/// line unless clap explains the usage.
fn fails(args: &[&str], status: i32, words: &[&str]) {
    let output = output(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty());
    if status == 1 {
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr:?}");
    }
}

/// The program; killed if a test fails.
struct Running {
    child: Option<Child>,
    lines: Vec<String>,
}

impl Running {
    /// Starts the program, and reads its output up to the line "ready".
    fn start(args: &[&str]) -> Running {
        Running::spawn(program().args(args))
    }

    fn spawn(command: &mut Command) -> Running {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running { child: Some(child), lines: Vec::new() };
        let out = running.child.as_mut().and_then(|child| child.stdout.take()).unwrap();
        for line in BufReader::new(out).lines() {
            running.lines.push(line.unwrap());
            if running.lines.last().is_some_and(|line| line.starts_with("ready:")) {
                return running;
            }
        }
        panic!("ended before it was ready: {:?}", running.lines);
    }

    /// Sends a signal that does not end the program.
    fn tell(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Sends a signal. Returns the exit status and stderr.
    fn signal(mut self, name: &str) -> (Option<i32>, String) {
        let child = self.child.take().unwrap();
        assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn works(address: &Address) {
    let session = Session::builder().provider(address.provider()).connect(address).unwrap();
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    encode_request(
        &Request::Attach {
            version: VERSION,
            client: "test",
            export: "",
            keeps: false,
            alone: false,
            mount: None,
        },
        &mut request,
    );
    session.call(&request, &mut reply).unwrap();
    assert!(matches!(decode_reply(&reply), Ok(Reply::Attached(_))));
}

fn serves_and_stops(signal: &str) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rfs.sock");
    let unix = format!("unix:{}", socket.display());
    let server = Running::start(&[
        "--memory=4M",
        "--inodes=100",
        "--listen",
        &unix,
        "--listen",
        "tcp:127.0.0.1:0",
        "--allow-without-keys",
    ]);
    let [first, second, ready] = server.lines.as_slice() else { panic!("{:?}", server.lines) };
    assert_eq!(first, &format!("listening on {unix}"));
    assert_eq!(ready, "ready: lending 4 MiB (100 inodes)");
    let tcp = second.strip_prefix("listening on ").unwrap();
    assert!(tcp.starts_with("tcp:127.0.0.1:") && !tcp.ends_with(":0"), "{tcp}");
    works(&unix.parse().unwrap());
    works(&tcp.parse().unwrap());
    let (status, log) = server.signal(signal);
    assert_eq!(status, Some(0), "{log}");
    // The log has the sessions and the signal, and no warnings.
    assert!(log.contains("attached to the export rfs as session "), "{log}");
    let (end, sessions): (Vec<_>, Vec<_>) = log.lines().partition(|line| line.contains("the server stops"));
    assert!(sessions.iter().all(|line| line.contains(" INFO ") && line.contains("session")), "{log}");
    assert!(end.len() == 1 && end[0].contains(&format!("SIG{signal}: ")), "{log}");
    assert!(!socket.exists());
}

/// Without keys, certificates, --persist and a service manager. Catches a signal that ends the
/// server with all files.
#[test]
fn signals_without_a_purpose_leave_the_server_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server = Running::start(&["--memory=4M", "--listen", &address]);
    for signal in ["HUP", "USR1", "USR2", "PIPE"] {
        server.tell(signal);
        works(&address.parse().unwrap());
    }
    let (status, log) = server.signal("TERM");
    assert_eq!(status, Some(0), "{log}");
    for said in ["no key file to reload", "runs without --persist", "SIGUSR2 has no effect"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

/// Catches lent memory that no pager reaches, and a pager that reaches files.
#[test]
fn a_pager_pages_to_memory_that_the_server_lends_beside_its_files() {
    const PAGE: usize = 4096;
    let directory = tempfile::tempdir().unwrap();
    let [files, pages] =
        ["rfs.sock", "lend.sock"].map(|name| format!("unix:{}", directory.path().join(name).display()));
    let server = Running::start(&["--memory=4M", "--listen", &files, "--lend=16M", "--lend-listen", &pages]);
    assert!(server.lines.contains(&format!("lending 16 MiB to pagers at {pages}")), "{:?}", server.lines);
    let connect = |address: &str| {
        RemotePager::connect(&[address.parse().unwrap()], PagerOptions::new(64 * PAGE as u64))
    };
    let pager = match connect(&pages) {
        Err(reason @ PagingError::Userfaultfd(_)) => {
            eprintln!("not run: {reason}");
            return;
        }
        pager => pager.unwrap(),
    };
    let mut memory = pager.map(1000 * PAGE).unwrap();
    let value = |page: usize| (page % 251) as u8 + 1;
    memory.chunks_mut(PAGE).enumerate().for_each(|(page, bytes)| bytes.fill(value(page)));
    works(&files.parse().unwrap());
    for (page, bytes) in memory.chunks(PAGE).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == value(page)), "page {page}");
    }
    let stats = pager.stats();
    assert!(stats.pages_written >= 936 && stats.pages_read >= 936, "{stats:?}");
    assert!(connect(&files).is_err(), "a pager at the address of files");
    drop((memory, pager));
    assert_eq!(server.signal("TERM").0, Some(0));
}

/// Catches a signal that ends a store with all data that it lends.
#[test]
fn signals_without_a_purpose_leave_a_store_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("pool.key");
    fs::write(&key, format!("pool {}\n", "ab".repeat(32))).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let address = format!("unix:{}", directory.path().join("store.sock").display());
    let store = Running::start(&[
        "--store",
        "--memory=4M",
        "--listen",
        &address,
        "--pool-key",
        key.to_str().unwrap(),
    ]);
    assert_eq!(store.lines, [format!("listening on {address}"), "ready: lending 4 MiB to a pool".into()]);
    ["HUP", "USR1", "USR2", "PIPE"].into_iter().for_each(|signal| store.tell(signal));
    let (status, log) = store.signal("TERM");
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("the store stops"), "{log}");
}

/// A service reports when it is ready and when it stops. SIGHUP makes it read its keys again, and
/// never ends it.
#[test]
fn a_service_manager_gets_notifications() {
    let directory = tempfile::tempdir().unwrap();
    let manager = directory.path().join("notify");
    let news = UnixDatagram::bind(&manager).unwrap();
    let next = || {
        let mut bytes = [0; 100];
        let len = news.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let address = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server =
        Running::spawn(program().args(["--memory=4M", "--listen", &address]).env("NOTIFY_SOCKET", &manager));
    assert_eq!(next(), "READY=1\n");
    server.tell("HUP");
    works(&address.parse().unwrap());
    let (status, log) = server.signal("TERM");
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(next(), "STOPPING=1\n");
    // There are no more messages.
    news.set_nonblocking(true).unwrap();
    assert_eq!(news.recv(&mut [0; 100]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn sigterm() {
    serves_and_stops("TERM");
}

#[test]
fn ctrl_c() {
    serves_and_stops("INT");
}

#[test]
fn a_busy_address() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server = Running::start(&[
        "--memory=4M",
        "--listen",
        &unix,
        "--listen",
        "tcp:127.0.0.1:0",
        "--allow-without-keys",
    ]);
    let tcp = server.lines[1].strip_prefix("listening on ").unwrap().to_owned();
    fails(&["--memory=4M", "--listen", &unix], 1, &["rfs-server: cannot listen on", &unix]);
    fails(
        &["--memory=4M", "--listen", &tcp, "--allow-without-keys"],
        1,
        &["rfs-server: cannot listen on", &tcp],
    );
    // If one address is busy, the server leaves no socket for the other.
    let other = directory.path().join("other.sock");
    let other_unix = format!("unix:{}", other.display());
    fails(&["--memory=4M", "--listen", &other_unix, "--listen", &tcp, "--allow-without-keys"], 1, &[&tcp]);
    assert!(!other.exists());
    works(&unix.parse().unwrap());
    assert_eq!(server.signal("TERM").0, Some(0));
}

#[test]
fn the_socket_of_a_killed_server_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rfs.sock");
    let unix = format!("unix:{}", socket.display());
    drop(Running::start(&["--memory=4M", "--listen", &unix]));
    assert!(socket.exists());
    let server = Running::start(&["--memory=4M", "--listen", &unix]);
    works(&unix.parse().unwrap());
    assert_eq!(server.signal("TERM").0, Some(0));
}

#[test]
fn several_exports() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server =
        Running::start(&["--export=home=4M,inodes=100", "--export=tmp=2M,inodes=50", "--listen", &unix]);
    let [_, home, tmp, ready] = server.lines.as_slice() else { panic!("{:?}", server.lines) };
    assert_eq!([home, tmp], ["exporting home: 4 MiB (100 inodes)", "exporting tmp: 2 MiB (50 inodes)"]);
    assert_eq!(ready, "ready: lending 6 MiB (150 inodes)");
    works(&unix.parse().unwrap());
    assert_eq!(server.signal("TERM").0, Some(0));
}

/// Writes a file with this text and mode. Returns its path.
fn file(directory: &tempfile::TempDir, text: &str, mode: u32) -> String {
    let path = directory.path().join("keys");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
}

#[test]
fn a_new_key_gives_access_until_it_is_removed() {
    let made = output(&["--new-key", "laptop,ro"]);
    let text = String::from_utf8(made.stdout).unwrap();
    assert_eq!((made.status.code(), made.stderr.len()), (Some(0), 0));
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let [for_server, for_client] = lines[..] else { panic!("{text}") };
    assert_eq!(for_server, format!("{for_client} rfs ro"));
    assert_ne!(output(&["--new-key", "laptop,ro"]).stdout, text.as_bytes(), "each key is new");

    let directory = tempfile::tempdir().unwrap();
    let keys = file(&directory, for_server, 0o600);
    let server = Running::start(&["--memory=4M", "--listen=tcp:127.0.0.1:0", "--keys", &keys]);
    let address: Address = server.lines[0].strip_prefix("listening on ").unwrap().parse().unwrap();
    let key = Key::from_words(&mut for_client.split_whitespace()).unwrap();
    let (provider, key) = (Some(ProviderKind::Tcp), Some(key));
    let options = Session::builder().provider(provider).key(key).into_options();
    let session = Session::connect(&address, &options).unwrap();
    let refused =
        Session::builder().options(options.clone()).key(None).connect(&address).unwrap_err().to_string();
    assert!(refused.ends_with("this server requires a key: pass --key FILE"), "{refused}");
    // Another key replaces the first.
    let other = String::from_utf8(output(&["--new-key", "tv"]).stdout).unwrap();
    file(&directory, other.lines().nth(1).unwrap(), 0o600);
    server.tell("HUP");
    while session.is_connected() {
        thread::yield_now();
    }
    let refused = Session::connect(&address, &options).unwrap_err().to_string();
    assert!(refused.contains("the key laptop is not in the server's key file"), "{refused}");
    let (status, log) = server.signal("TERM");
    assert_eq!(status, Some(0), "{log}");
    for said in [
        ", key laptop): connected",
        "reloaded 1 keys",
        "there is no key laptop",
        "its key was removed or its rights changed",
    ] {
        assert!(log.contains(said), "{said:?} is not in {log}");
    }
    assert!(!log.contains(for_client.split(' ').nth(1).unwrap()), "secrets are not for logs");
}

#[test]
fn unusable_key_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("k {} rfs rw\n", "00".repeat(16));
    let with = |text: &str, mode, words: &[&str]| {
        let keys = file(&directory, text, mode);
        fails(
            &["--memory=4M", "--listen=tcp:127.0.0.1:0", "--keys", &keys],
            1,
            &[words, &[&keys[..]]].concat(),
        );
    };
    with(&line, 0o644, &["other users can use this file", "mode is 644", "chmod 600"]);
    with(&line.replace("rfs", "home"), 0o600, &["line 1", "no export named \"home\""]);
    with("", 0o600, &["no key in it"]);
    fails(&["--memory=4M", "--keys=/no/such/file"], 1, &["/no/such/file"]);
    fails(&["--memory=4M", "--keys=/k", "--allow-without-keys"], 2, &["--keys"]);
}

#[test]
fn impossible_options_are_refused() {
    for host in ["0.0.0.0", "127.0.0.1"] {
        let listen = format!("--listen=tcp:{host}:0");
        let told =
            [&format!("tcp:{host}:0"), "any program that connects", "--keys FILE", "--allow-without-keys"];
        fails(&["--memory=4M", &listen], 1, &told);
    }
    fails(
        &["--memory=1000000T", "--listen=tcp:127.0.0.1:0", "--allow-without-keys"],
        1,
        &["cannot lend 976.6 PiB"],
    );
    fails(&["--memory=1K", "--listen=unix:/x"], 1, &["the least is 1 MiB"]);
    fails(&["--memory=4M", "--listen=unix:/no/such/directory/rfs.sock"], 1, &["/no/such/directory"]);
    let twice =
        ["--memory=4M", "--listen=tcp:127.0.0.1:7999", "--listen=tcp:127.0.0.1:7999", "--allow-without-keys"];
    fails(&twice, 1, &["given twice"]);
    fails(&["--export=a=1M", "--export=a=2M"], 1, &["\"a\"", "given twice"]);
    fails(&["--memory=4M", "--lease=5", "--recall-timeout=5"], 1, &["--recall-timeout 5s", "--lease 5s"]);
}

#[test]
fn invalid_options_are_refused() {
    fails(&[], 2, &["--memory"]);
    fails(&["--memory=lots"], 2, &["lots", "4g"]);
    fails(&["--memory=4M", "--nonsense"], 2, &["--nonsense"]);
    fails(&["--memory=4M", "--inodes=0"], 2, &["--inodes"]);
    fails(&["--export=a=4M,inodes=0"], 2, &["inodes=0"]);
    fails(&["--export=a"], 2, &["NAME=SIZE"]);
    fails(&["--export=a=4M", "--memory=4M"], 2, &["--memory"]);
    fails(&["--memory=4M", "--listen=nowhere"], 2, &["nowhere", "tcp:host:port"]);
}

#[test]
fn help_and_version() {
    let help = output(&["--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success());
    for word in ["Examples:", "rfs-server --memory 4G", "--allow-without-keys", "Exit status:"] {
        assert!(text.contains(word), "{word:?} is not in the help");
    }
    let version = String::from_utf8(output(&["--version"]).stdout).unwrap();
    assert!(version.starts_with(concat!("rfs-server ", env!("CARGO_PKG_VERSION"), " (commit ")), "{version}");
    let protocols = format!("protocol {}, runtime protocol {})\n", rfs_proto::VERSION, rdmabox::PROTOCOL);
    assert!(version.ends_with(&protocols), "{version}");
}

/// Catches a log that a client without access fills, each time from another port.
#[test]
fn a_refusal_that_repeats_is_one_line() {
    let server = Running::start(&["--memory=4M", "--listen", "tcp:127.0.0.1:0", "--allow-without-keys"]);
    let tcp = server.lines[0].strip_prefix("listening on tcp:").unwrap().to_owned();
    for _ in 0..20 {
        let mut stream = std::net::TcpStream::connect(&tcp).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n and so on, up to the length of a preamble").unwrap();
        // The server may have refused the first bytes and reset the connection already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Until the server has closed the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (status, log) = server.signal("TERM");
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(log.matches("connection closed").count(), 1, "{log}");
}

/// A client is a person's program: the log says which, and where.
#[test]
fn the_log_names_the_client_of_a_session_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server = Running::start(&["--memory=4M", "--listen", &unix, "--log-format=json"]);
    let client = ClientDescription {
        program: "rfs-fuse 9.9".into(),
        pid: Some(4711),
        host: "node\u{1b}7".into(),
        user: Some(1000),
        mount_point: "/mnt/a".into(),
        ..ClientDescription::default()
    };
    let session = Session::builder().connect(&unix.parse().unwrap()).unwrap();
    let (client, export) = (client.to_text(), "");
    let attach = Request::Attach {
        version: VERSION,
        client: &client,
        export,
        keeps: false,
        alone: false,
        mount: None,
    };
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    encode_request(&attach, &mut request);
    session.call(&request, &mut reply).unwrap();
    let (_, log) = server.signal("TERM");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let attached = lines.iter().find(|line| line["message"].as_str().unwrap().contains("attached to"));
    let attached = attached.unwrap_or_else(|| panic!("{log}"));
    let message = attached["message"].as_str().unwrap();
    let expected = "rfs-fuse 9.9, host node\\u{1b}7, process 4711, user 1000, mounted on /mnt/a";
    assert!(message.ends_with(expected), "{message}");
    assert_eq!(attached["level"], "info");
}
