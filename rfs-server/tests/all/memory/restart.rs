//! The program with memory in files: killed, ended in order, and started again.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::Command,
    sync::Barrier,
    time::{Duration, Instant},
};

use rdmabox::{Address, ProviderKind, Session};
use rfs_proto::{
    Attr, Errno, Identity, Layout, LockClass, LockKind, LockRange, ROOT_INO, Reply, Request, SetAttr,
    VERSION, encode_request,
};

use crate::common::{
    Client, ask, attach,
    program::{self, Running, place, read},
};

/// The program, with a working directory.
struct Program {
    child: Running,
    address: Address,
}

fn command(directory: &Path, rest: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    program::piped(&mut command);
    command.arg("--listen").arg(format!("unix:{}", directory.join("sock").display()));
    command.arg("--memory-dir").arg(directory.join("memory")).args(rest);
    command
}

impl Program {
    fn start(directory: &Path, rest: &[&str]) -> Program {
        let child = Running::start(&mut command(directory, rest));
        Program { child, address: Address::Unix(directory.join("sock")) }
    }

    fn connect(&self, provider: ProviderKind) -> Client {
        let session = Session::builder().provider(provider).connect(&self.address).unwrap();
        let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
        Client { session, attached }
    }

    /// Attaches as a mount that reconnects. Returns the session, and whether it was resumed.
    fn mount(&self, provider: ProviderKind, mount: u8) -> (Client, bool) {
        let session = Session::builder().provider(provider).connect(&self.address).unwrap();
        let mount = Some(Identity([mount; 16]));
        let (client, export) = ("test", "");
        let attach = Request::Attach { version: VERSION, client, export, keeps: false, alone: false, mount };
        let Reply::Attached(attached) = ask(&session, attach) else { panic!("not attached") };
        (Client { session, attached }, attached.resumed)
    }

    /// Ends the program. Returns its log.
    fn end(mut self, signal: &str) -> String {
        self.child.signal(signal);
        self.child.0.wait().unwrap();
        let mut said = String::new();
        self.child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

/// Checks that the program does not start, and that its message contains these words.
fn refuses(directory: &Path, rest: &[&str], words: &[&str]) {
    program::refuses(&mut command(directory, rest), words);
}

fn layout(client: &Client, request: Request<'_>) -> Layout {
    match client.ask(request) {
        Reply::Layout(layout) => layout,
        other => panic!("{other:?}"),
    }
}

/// Writes a file as clients do: the bytes one-sidedly, then size and time.
fn write(client: &Client, name: &[u8], data: &[u8]) -> Attr {
    let attr = client.create(name).attr;
    let layout = layout(client, Request::Allocate { ino: attr.ino, offset: 0, len: data.len() as u64 });
    let [extent] = layout.extents[..] else { panic!("{layout:?}") };
    client.session.write(place(client.attached.arena, extent.arena), data).unwrap();
    client.publish(&attr, data.len() as u64);
    attr
}

fn lookup(client: &Client, name: &[u8]) -> Attr {
    match client.ask(Request::Lookup { parent: ROOT_INO, name }) {
        Reply::Attr(attr) => attr,
        other => panic!("{other:?}"),
    }
}

fn data(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed) as u8).collect()
}

const SIZE: [&str; 2] = ["--memory=16M", "--inodes=1000"];

fn survives(signal: &str, provider: ProviderKind) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let mut numbers = Vec::new();
    for turn in 0..4usize {
        let program = Program::start(directory, &SIZE);
        refuses(directory, &SIZE, &["another server"]);
        let client = program.connect(provider);
        for (before, &ino) in numbers.iter().enumerate() {
            let attr = lookup(&client, format!("file-{before}").as_bytes());
            assert_eq!((attr.ino, attr.mtime, attr.perm), (ino, 77, 0o600 + before as u32));
            assert_eq!(read(&client, &attr), data(before, 100_000 * (before + 1)));
        }
        let name = format!("file-{turn}");
        let attr = write(&client, name.as_bytes(), &data(turn, 100_000 * (turn + 1)));
        assert!(!numbers.contains(&attr.ino));
        numbers.push(attr.ino);
        // A file that is open and has no name ends with the server.
        write(&client, b"gone", &data(9, 5000));
        assert_eq!(client.ask(Request::Unlink { parent: ROOT_INO, name: b"gone" }), Reply::Done);
        let changes = SetAttr { perm: Some(0o600 + turn as u32), ..SetAttr::default() };
        let Reply::Attr(_) = client.ask(Request::SetAttr { ino: attr.ino, changes }) else {
            panic!("not changed")
        };
        let said = program.end(signal);
        assert!(!said.contains("ERROR") && !said.contains("WARN"), "{said}");
        assert_eq!(said.contains("did not end in order"), signal == "KILL" && turn > 0, "{said}");
    }
    refuses(directory, &["--memory=17M", "--inodes=1000"], &["--memory 16777216 --inodes 1000"]);
    refuses(directory, &["--memory=16M", "--inodes=1001"], &["--memory 16777216 --inodes 1000"]);
    let state = directory.join("memory/rfs/state");
    let mut damaged = fs::read(&state).unwrap();
    damaged[30] ^= 1;
    damaged[2048 + 30] ^= 1;
    fs::write(&state, &damaged).unwrap();
    refuses(directory, &SIZE, &["damaged", "move ", "to start empty"]);
    assert_eq!(fs::read(&state).unwrap(), damaged);
}

/// A server that was stopped, or whose machine was suspended, does not count that time against
/// mounts, which could not reconnect.
#[test]
fn a_mount_can_reconnect_after_the_server_was_stopped() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let mut program = Program::start(directory, &["--memory=16M", "--inodes=1000", "--lease=3"]);
    drop(program.mount(ProviderKind::Shm, 7));
    let stderr = BufReader::new(program.child.0.stderr.take().unwrap());
    let mut said = stderr.lines();
    assert!(said.any(|line| line.unwrap().contains("disconnected; kept for")), "it does not wait");
    program.child.signal("STOP");
    std::thread::sleep(Duration::from_secs(4));
    program.child.signal("CONT");
    assert!(program.mount(ProviderKind::Shm, 7).1, "it was given up");
    // A mount that could reconnect and does not is given up.
    drop(program.mount(ProviderKind::Shm, 7));
    assert!(said.any(|line| line.unwrap().contains("has not come back")));
    assert!(!program.mount(ProviderKind::Shm, 7).1);
}

#[test]
fn memory_survives_a_kill_with_clients_that_map_it() {
    survives("KILL", ProviderKind::Shm);
}

#[test]
fn memory_survives_an_orderly_end() {
    survives("TERM", ProviderKind::Shm);
}

fn once(client: &Client, sequence: u64, request: Request<'_>) -> Reply {
    let mut bytes = Vec::new();
    encode_request(&request, &mut bytes);
    client.ask(Request::Once { slot: 0, sequence, request: &bytes })
}

/// Checks that mounts find their state at the next server: open files, locks, and replies to
/// exactly-once requests.
fn mounts_go_on(signal: &str, provider: ProviderKind) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let mut program = Program::start(directory, &SIZE);
    let (one, two) = (program.mount(provider, 1), program.mount(provider, 2));
    assert!(!one.1 && !two.1);
    let sessions = [&one, &two].map(|(client, _)| client.attached.session);
    let (parent, name) = (ROOT_INO, &b"f"[..]);
    let create = Request::Create { parent, name, perm: 0o644, umask: 0, uid: 0, gid: 0, exclusive: true };
    let made = once(&one.0, 1, create);
    let Reply::Opened(opened) = &made else { panic!("{made:?}") };
    let ino = opened.attr.ino;
    let Reply::Opened(_) = once(&two.0, 1, Request::Open { ino, write: true }) else { panic!("not open") };
    let lock = |kind| {
        let (class, range) = (LockClass::Flock, LockRange::ALL);
        Request::Lock { ino, owner: 1, class, kind, range, pid: 1, ticket: None }
    };
    let Reply::Locked(_) = once(&one.0, 2, lock(LockKind::Exclusive)) else { panic!("not locked") };
    assert_eq!(once(&two.0, 2, Request::Unlink { parent, name }), Reply::Done);
    for _ in 0..3 {
        drop(program.end(signal));
        program = Program::start(directory, &SIZE);
        let (one, two) = (program.mount(provider, 1), program.mount(provider, 2));
        assert!(one.1 && two.1);
        assert_eq!([&one, &two].map(|(client, _)| client.attached.session), sessions);
        // The stored reply is returned, and the request is not carried out again.
        assert_eq!(once(&two.0, 2, Request::Unlink { parent, name }), Reply::Done);
        assert_eq!(two.0.ask(Request::Lookup { parent, name }), Reply::Error(Errno::ENOENT));
        assert_eq!(two.0.ask(lock(LockKind::Shared)), Reply::Error(Errno::EAGAIN));
        let Reply::Layout(_) = one.0.ask(Request::Layout { ino, offset: 0 }) else { panic!("not open") };
    }
    let (stranger, was_there) = program.mount(provider, 3);
    assert!(!was_there && !sessions.contains(&stranger.attached.session));
    drop(program.end("KILL"));
    let program = Program::start(directory, &SIZE);
    let (one, two) = (program.mount(provider, 1).0, program.mount(provider, 2).0);
    assert_eq!(once(&one, 3, lock(LockKind::Unlock)), Reply::Done);
    let Reply::Locked(_) = two.ask(lock(LockKind::Exclusive)) else { panic!("not locked") };
    assert_eq!(once(&one, 4, Request::Close { ino }), Reply::Done);
    assert_eq!(once(&one, 5, Request::Close { ino }), Reply::Error(Errno::EBADF));
}

#[test]
fn mounts_resume_after_a_kill() {
    mounts_go_on("KILL", ProviderKind::Shm);
}

#[test]
fn mounts_resume_after_an_orderly_end() {
    mounts_go_on("TERM", ProviderKind::Shm);
}

fn unlink(name: &str) -> Request<'_> {
    Request::Unlink { parent: ROOT_INO, name: name.as_bytes() }
}

/// Makes and removes files until the server is killed. Returns the names that are left, and the
/// name of the last request, whose outcome is unknown.
fn make_and_remove(client: &Client, prefix: &str) -> (Vec<String>, String) {
    let ends = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    let mut there = Vec::new();
    for number in 0.. {
        let name = format!("{prefix}-{number}");
        let is_kept = number % 3 == 0;
        let killed = ends(&|| {
            let attr = client.create(name.as_bytes()).attr;
            ask(&client.session, Request::Close { ino: attr.ino });
            if !is_kept {
                ask(&client.session, unlink(&name));
            }
        });
        if killed {
            return (there, name);
        }
        if is_kept {
            there.push(name);
        }
        // Leaves room for the files of all rounds.
        if there.len() > 40 {
            let name = there.remove(0);
            if ends(&|| drop(ask(&client.session, unlink(&name)))) {
                return (there, name);
            }
        }
    }
    unreachable!()
}

/// Kills a server while sessions make and remove files. Returns for each session the names that are
/// left, and the name whose state is unknown.
fn kill_under_load(program: &Program, round: usize) -> (Vec<Vec<String>>, Vec<String>) {
    const SESSIONS: usize = 4;
    let attached_all = Barrier::new(SESSIONS + 1);
    let work = |at: usize| {
        let client = program.connect(ProviderKind::Shm);
        attached_all.wait();
        make_and_remove(&client, &format!("{round}-{at}"))
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..SESSIONS).map(|at| scope.spawn(move || work(at))).collect();
        attached_all.wait();
        let begin = Instant::now();
        while begin.elapsed().as_millis() < 200 {
            std::thread::yield_now();
        }
        let pid = program.child.0.id().to_string();
        assert!(Command::new("kill").args(["-s", "KILL", &pid]).status().unwrap().success());
        workers.into_iter().map(|worker| worker.join().unwrap()).unzip()
    })
}

/// The program is killed while several sessions make and remove files. All answered changes are
/// there.
#[test]
fn killed_under_load() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    for round in 0..4usize {
        let program = Program::start(directory, &SIZE);
        let (there, unknown) = kill_under_load(&program, round);
        drop(program);
        let program = Program::start(directory, &SIZE);
        let client = program.connect(ProviderKind::Shm);
        let Reply::Dir(page) = client.ask(Request::ReadDir { ino: ROOT_INO, cookie: 0, max_entries: 5000 })
        else {
            panic!("no directory")
        };
        assert!(page.end);
        let names: Vec<String> =
            page.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect();
        for name in there.iter().flatten() {
            assert!(names.contains(name), "{name} is lost");
        }
        let expected: usize = there.iter().map(Vec::len).sum();
        let here = names.iter().filter(|name| !unknown.contains(name)).count();
        assert_eq!(here, expected, "{names:?}");
        for name in names {
            client.ask(unlink(&name));
        }
        program.end("KILL");
    }
}

/// Returns the names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Catches files of a refused start, which block later starts with other options.
#[test]
fn a_refused_start_leaves_nothing_behind() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let snapshots = root.path().join("snapshots");
    let persist = format!("--persist={}", snapshots.display());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("--listen=tcp:{}", taken.local_addr().unwrap());
    let reasons: [(&[&str], &str); 4] = [
        // After the memory is there, and the file system in it.
        (&["--memory=8M", &taken, "--allow-without-keys"], "in use"),
        (&["--memory=8M", "--keys=/nowhere/keys"], "/nowhere/keys"),
        (&["--memory=1000T", "--inodes=100"], "annot"),
        (&["--memory=8M", "--listen=unix:/nowhere/at/all/sock"], "/nowhere/at"),
    ];
    for (options, word) in reasons {
        refuses(root.path(), &[options, &[&persist]].concat(), &[word]);
        assert_eq!(names(root.path()), [""; 0], "{options:?}");
    }
    // With files, which a refused start leaves as they were.
    let program = Program::start(root.path(), &["--memory=4M", &persist]);
    let client = program.connect(ProviderKind::Shm);
    write(&client, b"file", &data(1, 5000));
    drop(client);
    program.end("TERM");
    let before = (names(root.path()), names(&root.path().join("memory")), names(&snapshots));
    refuses(root.path(), &["--memory=4M", &persist, &taken, "--allow-without-keys"], &["in use"]);
    refuses(root.path(), &["--memory=8M", &persist], &["made with other options", "--memory 4194304"]);
    let after = (names(root.path()), names(&root.path().join("memory")), names(&snapshots));
    assert_eq!(before, after);
    let program = Program::start(root.path(), &["--memory=4M", &persist]);
    let client = program.connect(ProviderKind::Shm);
    assert_eq!(read(&client, &lookup(&client, b"file")), data(1, 5000));
    drop(client);
    let said = program.end("TERM");
    assert!(!said.contains("did not end in order"), "{said}");
}

#[test]
fn a_memory_directory_on_a_disk_is_a_warning() {
    let warning = "not on a tmpfs or hugetlbfs";
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let said = Program::start(memory.path(), &["--memory=4M"]).end("TERM");
    assert!(!said.contains(warning), "{said}");
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let on_tmpfs = Command::new("stat").args(["-f", "-c", "%T"]).arg(disk.path()).output().unwrap();
    if on_tmpfs.stdout.starts_with(b"tmpfs") {
        return eprintln!("not run: this tree is on a tmpfs");
    }
    let said = Program::start(disk.path(), &["--memory=4M"]).end("TERM");
    assert!(said.contains(warning), "{said}");
}

/// Catches an empty file system in place of files, because of a typing error.
#[test]
fn a_misspelt_name_is_refused_with_the_names_that_are_there() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    Program::start(root.path(), &["--export=home=4M", "--export=scratch=4M"]).end("TERM");
    let refused = ["no export \"hone\" is there, but \"home\"", "correct the name"];
    refuses(root.path(), &["--export=hone=4M", "--export=scratch=4M"], &refused);
    refuses(root.path(), &["--memory=4M"], &["no export \"rfs\" is there, but \"home\", \"scratch\""]);
    // A part of the exports, and another one beside all of them.
    let said = Program::start(root.path(), &["--export=home=4M"]).end("TERM");
    assert!(said.contains("the export \"scratch\" is there, and not served"), "{said}");
    let all = ["--export=home=4M", "--export=scratch=4M", "--export=new=4M"];
    Program::start(root.path(), &all).end("TERM");
    // Snapshots, without the memory.
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let persist = format!("--persist={}", other.path().join("snapshots").display());
    Program::start(other.path(), &["--memory=4M", "--name=one", &persist]).end("TERM");
    fs::remove_dir_all(other.path().join("memory")).unwrap();
    let refused = ["--persist", "no export \"two\" is there, but \"one\""];
    refuses(other.path(), &["--memory=4M", "--name=two", &persist], &refused);
    assert!(!other.path().join("memory").exists());
}
