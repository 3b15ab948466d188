//! The end of the program after one of its threads has failed.

use std::{
    fs::File,
    io::Read,
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use rdmabox::Address;
use rfs_server::{Config, config::Persist, run::serve};

/// Environment variable with the directory of the server in the child process.
const DIRECTORY: &str = "RFS_TEST_FAILING_SERVER";

fn config(directory: &Path) -> Config {
    Config {
        inodes: Some(100),
        listen: vec![Address::Unix(directory.join("socket"))],
        persist: Some(Persist { every: None, ..Persist::new(directory.join("snapshots")) }),
        ..Config::new(1 << 20)
    }
}

/// Not a test: the child process of the test below. A thread panics when the server answers.
#[test]
fn failing_server() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let socket = directory.join("socket");
    let failing = thread::Builder::new().name("rfs-doomed".into());
    let fails = move || {
        while UnixStream::connect(&socket).is_err() {
            thread::yield_now();
        }
        panic!("a flaw");
    };
    failing.spawn(fails).unwrap();
    let outcome = serve(config(directory), None);
    std::process::exit(if outcome.is_err_and(|e| e.contains("rfs-doomed panicked")) { 77 } else { 1 });
}

/// The server does not go on without a thread. It ends with an error, and takes the last
/// snapshot.
#[test]
fn a_thread_that_panics_ends_the_server_and_the_last_snapshot_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("said");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "program::failure::failing_server"])
        .env(DIRECTORY, directory.path())
        .stdout(Stdio::null())
        .stderr(File::create(&said).unwrap())
        .status()
        .unwrap();
    let mut text = String::new();
    File::open(said).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(77), "{text}");
    assert!(text.contains("a flaw"), "{text}");
    let snapshots = std::fs::read_dir(directory.path().join("snapshots/rfs")).unwrap();
    assert_eq!(snapshots.count(), 1, "{text}");
}

/// The thread that moves data ends by an error of its own, without a panic. The server must not go
/// on without it: its sessions would wait for ever.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_engine_that_fails_ends_the_server_and_the_last_snapshot_is_made() {
    use std::io::{BufRead, BufReader};

    use measure::testing::{SleepingCall, fail_sleeping_call, thread_named, wait_until};
    use rdmabox::Session;
    use rfs_proto::Reply;

    use crate::common::{attach, program::piped};

    for scheme in ["unix", "tcp"] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let listen = match scheme {
            "unix" => format!("unix:{}", directory.join("socket").display()),
            _ => "tcp:127.0.0.1:0".to_owned(),
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        piped(&mut command);
        command.args(["--memory=1M", "--inodes=100", "--allow-without-keys", "--listen", &listen]);
        command.arg("--persist").arg(directory.join("snapshots"));
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().unwrap().unwrap().strip_prefix("listening on ").unwrap().to_owned();
        let address: Address = address.parse().unwrap();
        let session = Session::builder().provider(address.provider()).connect(&address).unwrap();
        assert!(matches!(attach(&session, "", false), Reply::Attached(_)));
        // The engine starts with the first session that needs it, and sleeps while no data moves.
        let pid = child.id();
        wait_until("the engine sleeps", &mut child, || {
            let engine = thread_named(pid, "rdmabox-engine");
            engine.is_some_and(|engine| fail_sleeping_call(engine, SleepingCall::EpollWait).unwrap())
        });
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{scheme}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("rfs-server: the thread that moves data stopped: "), "{scheme}: {said}");
        let snapshots = std::fs::read_dir(directory.join("snapshots/rfs")).unwrap();
        assert_eq!(snapshots.count(), 1, "{scheme}: {said}");
    }
}
