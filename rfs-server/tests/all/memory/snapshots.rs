//! The program with snapshots: the state that outlives the memory.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{ChildStderr, Command},
    sync::atomic::Ordering,
};

use rdmabox::{Address, ProviderKind, Session};
use rfs_proto::{Attr, ROOT_INO, Reply, Request, Value, XattrSet};
use rfs_server::config::Persist;

use crate::common::{
    self, Client, attach,
    program::{self, Running, place, read},
};

/// The program, with a working directory.
struct Program {
    child: Running,
    address: Address,
    stderr: BufReader<ChildStderr>,
    said: Vec<String>,
}

fn command(directory: &Path, rest: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.arg("--listen").arg(format!("unix:{}", directory.join("sock").display()));
    command.arg("--persist").arg(directory.join("snapshots")).args(rest);
    program::piped(&mut command);
    command
}

impl Program {
    fn start(directory: &Path, rest: &[&str]) -> Program {
        Program::spawn(directory, &mut command(directory, rest))
    }

    fn spawn(directory: &Path, command: &mut Command) -> Program {
        let mut child = Running::start(command);
        let stderr = BufReader::new(child.0.stderr.take().unwrap());
        Program { child, address: Address::Unix(directory.join("sock")), stderr, said: Vec::new() }
    }

    fn connect(&self, export: &str) -> Client {
        let session = Session::builder().provider(ProviderKind::Shm).connect(&self.address).unwrap();
        let Reply::Attached(attached) = attach(&session, export, false) else { panic!("not attached") };
        Client { session, attached }
    }

    fn signal(&self, signal: &str) {
        self.child.signal(signal);
    }

    /// Reads its log up to a line that contains `words`.
    fn says(&mut self, words: &str) {
        loop {
            let mut line = String::new();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "{words:?} is not in {:?}", self.said);
            self.said.push(line);
            if self.said.last().is_some_and(|line| line.contains(words)) {
                return;
            }
        }
    }

    /// Requests a snapshot, and reads the log up to `words`.
    fn snapshot(&mut self, words: &str) {
        self.signal("USR1");
        self.says(words);
    }

    /// Ends the program. Returns its log.
    fn end(self, signal: &str) -> String {
        self.ended(signal).1
    }

    /// Ends the program. Returns the status and all of stderr.
    fn ended(mut self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        let status = self.child.0.wait().unwrap().code();
        for line in self.stderr.by_ref().lines() {
            self.said.push(line.unwrap());
        }
        (status, self.said.join("\n"))
    }
}

/// Checks that the program does not start, and that its message contains these words.
fn refuses(directory: &Path, rest: &[&str], words: &[&str]) {
    program::refuses(&mut command(directory, rest), words);
}

/// Writes a part of a file as clients do: the bytes one-sidedly, then size and time.
fn write(client: &Client, attr: &Attr, offset: u64, data: &[u8]) {
    let request = Request::Allocate { ino: attr.ino, offset, len: data.len() as u64 };
    let Reply::Layout(layout) = client.ask(request) else { panic!("no space") };
    let extent = layout.extents.iter().find(|extent| (extent.file..extent.file_end()).contains(&offset));
    let extent = extent.unwrap();
    assert!(offset + data.len() as u64 <= extent.file_end());
    let arena = client.attached.arena;
    client.session.write(place(arena, extent.arena + offset - extent.file), data).unwrap();
    client.publish(attr, offset + data.len() as u64);
}

fn make(client: &Client, name: &str, data: &[u8]) -> Attr {
    let attr = client.create(name.as_bytes()).attr;
    write(client, &attr, 0, data);
    client.ask(Request::Close { ino: attr.ino });
    attr
}

/// Returns all files of the root directory, with their bytes.
fn files(client: &Client) -> BTreeMap<String, (Attr, Vec<u8>)> {
    let request = Request::ReadDir { ino: ROOT_INO, cookie: 0, max_entries: 5000 };
    let Reply::Dir(page) = client.ask(request) else { panic!("no directory") };
    assert!(page.end);
    let file = |entry: rfs_proto::DirEntry| {
        let data =
            if entry.attr.kind == rfs_proto::FileKind::Regular { read(client, &entry.attr) } else { vec![] };
        (String::from_utf8(entry.name).unwrap(), (entry.attr, data))
    };
    page.entries.into_iter().map(file).collect()
}

fn names(client: &Client) -> Vec<String> {
    files(client).into_keys().collect()
}

fn data(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed) as u8).collect()
}

/// Returns the snapshot files, the newest first.
fn snapshots(directory: &Path, export: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("snapshots").join(export)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable_by(|one, other| other.cmp(one));
    paths
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

const SIZE: [&str; 3] = ["--memory=16M", "--inodes=1000", "--persist-every=none"];

/// Makes a file of each kind, with two names, holes and an extended attribute; and an open file
/// without a name.
fn make_all_kinds(client: &Client) {
    let plain = make(client, "plain", &data(1, 1_500_000));
    let sparse = make(client, "sparse", b"begin");
    client.ask(Request::Open { ino: sparse.ino, write: true });
    write(client, &sparse, 3 << 20, b"end");
    client.ask(Request::Close { ino: sparse.ino });
    client.ask(Request::Link { ino: plain.ino, parent: ROOT_INO, name: b"again" });
    let set = Request::SetXattr {
        ino: plain.ino,
        name: b"user.a",
        value: b"value",
        how: XattrSet::Any,
        continued: false,
        drop_sgid: false,
        only_if: None,
    };
    client.ask(set);
    let (uid, gid) = (5, 6);
    client.ask(Request::Symlink { parent: ROOT_INO, name: b"link", target: b"to/here", uid, gid });
    client.ask(Request::Mkdir { parent: ROOT_INO, name: b"sub", perm: 0o750, umask: 0, uid, gid });
    let gone = client.create(b"gone").attr;
    write(client, &gone, 0, b"unnamed");
    client.ask(Request::Unlink { parent: ROOT_INO, name: b"gone" });
}

/// Returns the attributes that a snapshot keeps.
fn kept(attr: &Attr) -> impl PartialEq + std::fmt::Debug + use<> {
    let Attr { ino, kind, perm, nlink, uid, gid, size, mtime, blocks, .. } = *attr;
    (ino, kind, perm, nlink, uid, gid, size, mtime, blocks)
}

/// Checks the files of [`make_all_kinds`] in new memory.
fn check_all_kinds(client: &Client, expected: &BTreeMap<String, (Attr, Vec<u8>)>) {
    let found = files(client);
    assert_eq!(found.len(), 5);
    for (name, (attr, bytes)) in expected {
        let (now, data) = &found[name];
        assert_eq!((kept(now), data), (kept(attr), bytes), "{name}");
    }
    assert_eq!((found["again"].0.ino, found["plain"].0.nlink), (found["plain"].0.ino, 2));
    assert!(found["sparse"].0.blocks * 512 < 1 << 20);
    let xattr = Request::GetXattr { ino: found["plain"].0.ino, name: b"user.a", offset: 0 };
    let Reply::Value(Value { bytes, .. }) = client.ask(xattr) else { panic!("no value") };
    assert_eq!(bytes, b"value");
    let target = client.ask(Request::Readlink { ino: found["link"].0.ino });
    assert_eq!(target, Reply::Target(b"to/here".to_vec()));
}

#[test]
fn a_snapshot_restores_everything_into_new_memory() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut program = Program::start(directory, &SIZE);
    let client = program.connect("");
    let first = client.attached.memory;
    make_all_kinds(&client);
    let expected = files(&client);
    program.snapshot("snapshot 1:");
    make(&client, "later", b"not in it");
    program.end("KILL");

    let program = Program::start(directory, &SIZE);
    let client = program.connect("");
    assert_ne!(client.attached.memory, first, "the memory is new");
    check_all_kinds(&client, &expected);
    // The last snapshot contains later changes.
    make(&client, "more", b"more");
    let said = program.end("TERM");
    assert!(said.contains("snapshot 2:") && !said.contains("ERROR") && !said.contains("WARN"), "{said}");
    let program = Program::start(directory, &SIZE);
    assert!(names(&program.connect("")).contains(&"more".to_owned()));
    drop(program);
}

#[test]
fn a_torn_snapshot_is_reported_and_the_previous_one_restored() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut program = Program::start(directory, &SIZE);
    let client = program.connect("");
    for number in 1..=3 {
        make(&client, &format!("file-{number}"), &data(number, 10_000));
        program.snapshot(&format!("snapshot {number}:"));
    }
    program.end("KILL");
    let there = snapshots(directory, "rfs");
    assert_eq!(there.len(), 2);
    refuses(directory, &["--memory=8M", "--inodes=1000"], &["16777216", "8388608", "--memory"]);
    refuses(directory, &["--memory=16M", "--inodes=900"], &["1000", "900", "--inodes"]);
    damage(&there[0]);
    let mut program = Program::start(directory, &["--memory=32M", "--inodes=2000"]);
    program.says("is damaged at byte");
    let client = program.connect("");
    assert_eq!(names(&client), ["file-1", "file-2"]);
    assert_eq!(read(&client, &files(&client)["file-2"].0), data(2, 10_000));
    drop(program);
    damage(&there[1]);
    refuses(directory, &SIZE, &["none of the snapshots", "snapshots/rfs"]);
    assert_eq!(snapshots(directory, "rfs"), there, "unchanged");
}

#[test]
fn existing_memory_takes_precedence_over_snapshots() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let memory = format!("--memory-dir={}", directory.join("memory").display());
    let args = [&SIZE[..], &[&memory]].concat();
    let mut program = Program::start(directory, &args);
    let client = program.connect("");
    make(&client, "old", b"old");
    program.snapshot("snapshot 1:");
    make(&client, "new", b"new");
    program.end("KILL");
    let program = Program::start(directory, &args);
    let client = program.connect("");
    assert_eq!(names(&client), ["new", "old"]);
    let first = client.attached.memory;
    program.end("KILL");
    // As after a reboot.
    fs::remove_dir_all(directory.join("memory")).unwrap();
    let program = Program::start(directory, &args);
    let client = program.connect("");
    assert_eq!(names(&client), ["old"]);
    assert_ne!(client.attached.memory, first);
    make(&client, "since", b"since");
    let said = program.end("KILL");
    assert!(said.contains("restored"), "{said}");
    // The restored memory is kept as any other.
    let program = Program::start(directory, &args);
    assert_eq!(names(&program.connect("")), ["old", "since"]);
    let said = program.end("TERM");
    assert!(said.contains("of another memory") && said.contains("snapshot 2:"), "{said}");
    refuses(
        directory,
        &[&SIZE[..], &[&format!("--memory-dir={}/snapshots", directory.display())]].concat(),
        &["each"],
    );
}

#[test]
fn each_export_has_its_own_snapshots() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let args = ["--export=one=8M", "--export=two=8M", "--persist-every=none"];
    let program = Program::start(directory, &args);
    for export in ["one", "two"] {
        make(&program.connect(export), export, export.as_bytes());
    }
    refuses(directory, &["--memory=8M", "--listen=unix:/nowhere/sock"], &["another server"]);
    program.end("TERM");
    let program = Program::start(directory, &args);
    for export in ["one", "two"] {
        assert_eq!(names(&program.connect(export)), [export]);
        assert_eq!(snapshots(directory, export).len(), 1);
    }
}

/// Without changes since the last snapshot, there is no snapshot at the end.
#[test]
fn no_snapshot_is_taken_without_changes() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut program = Program::start(directory, &SIZE);
    program.snapshot("snapshot 1:");
    let said = program.end("TERM");
    assert!(said.contains("nothing has changed"), "{said}");
    assert_eq!(snapshots(directory, "rfs").len(), 1);
}

/// Starts a server whose snapshots are on a file system of 4 MiB. Needs the right to mount.
fn with_small_disk(directory: &Path, rest: &[&str]) -> Program {
    let disk = directory.join("snapshots");
    fs::create_dir(&disk).unwrap();
    let server = command(directory, rest);
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c"]);
    unshare.arg("mount -t tmpfs -o size=4m,mode=700 disk \"$0\" && exec \"$@\"").arg(&disk);
    unshare.arg(server.get_program()).args(server.get_args());
    program::piped(&mut unshare);
    Program::spawn(directory, &mut unshare)
}

/// If the disk is full, the last snapshot fails. The status and the last line of stderr say so.
#[test]
fn a_failed_last_snapshot_is_an_error_that_reports_the_loss() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let kept = memory.path().join("kept").display().to_string();
    let in_files = format!("--memory-dir={kept}");
    for (option, snapshot, outcome) in [
        (None, false, "changes since the start are in no snapshot; those changes are lost"),
        (None, true, "00001 are in no snapshot; those changes are lost"),
        (Some(&in_files), false, &*format!("--memory-dir {kept} has the files")),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let args: Vec<&str> = SIZE.into_iter().chain(option.map(String::as_str)).collect();
        let mut program = with_small_disk(directory.path(), &args);
        let client = program.connect("");
        if snapshot {
            program.snapshot("snapshot 1:");
        }
        make(&client, "large", &data(2, 6 << 20));
        drop(client);
        let (status, said) = program.ended("TERM");
        let last = said.lines().last().unwrap();
        assert_eq!(status, Some(1), "{said}");
        assert!(last.starts_with("rfs-server: the last snapshot of export rfs failed: "), "{said}");
        assert!(last.contains("No space left") && last.contains(outcome), "{said}");
    }
}

/// If the disk is full, a snapshot fails, earlier snapshots stay, and the server goes on.
#[test]
fn a_full_disk_leaves_earlier_snapshots() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let disk = directory.join("snapshots");
    let mut program = with_small_disk(directory, &SIZE);
    let client = program.connect("");
    make(&client, "small", &data(1, 1 << 20));
    program.snapshot("snapshot 1:");
    make(&client, "large", &data(2, 6 << 20));
    program.snapshot("snapshot failed");
    assert!(program.said.last().unwrap().contains("No space left"), "{:?}", program.said);
    let within = PathBuf::from(format!("/proc/{}/root", program.child.0.id()))
        .join(disk.strip_prefix("/").unwrap())
        .join("rfs");
    let left: Vec<_> = fs::read_dir(within).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(names(&client), ["large", "small"]);
    client.ask(Request::Unlink { parent: ROOT_INO, name: b"large" });
    program.snapshot("snapshot 2:");
}

/// A snapshot without a request, beside a client.
#[test]
fn snapshots_are_taken_periodically() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut program = Program::start(directory, &["--memory=16M", "--inodes=1000", "--persist-every=1"]);
    let client = program.connect("");
    make(&client, "file", b"bytes");
    for number in 1..=3 {
        program.says(&format!("snapshot {number}:"));
    }
    program.end("KILL");
    let program = Program::start(directory, &SIZE);
    assert_eq!(names(&program.connect("")), ["file"]);
}

/// A second signal interrupts the last snapshot.
#[test]
fn an_interrupted_last_snapshot_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let persist = Persist { every: None, ..Persist::new(directory.path().join("snapshots")) };
    for (hurry, snapshots_made) in [(true, 0), (false, 1)] {
        let server = common::start_with(&directory, |config| config.persist = Some(persist.clone()));
        let client = common::connect(&server, ProviderKind::Shm, false);
        make(&client, "file", b"bytes");
        drop(client);
        server.hurry().store(hurry, Ordering::Relaxed);
        assert_eq!(server.shutdown().is_err(), hurry);
        assert_eq!(snapshots(directory.path(), "rfs").len(), snapshots_made);
    }
}
