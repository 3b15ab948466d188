//! Exports that grow and shrink: while the server runs, and from one start to the next.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rdmabox::{Address, ProviderKind, Session};
use rfs_proto::{Attr, BLOCK, Errno, ROOT_INO, Reply, Request, StatFs};
use rfs_server::{Config, ExportConfig, Prefault, Server, server::ResizeError};

use crate::common::{
    Client, attach, connect_to,
    program::{self, Running, place, read},
    start_with,
};

const MIB: u64 = 1 << 20;

/// The program with its memory in a directory, or with snapshots in one.
struct Program(Running, PathBuf);

fn command(directory: &Path, rest: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    program::piped(&mut command);
    command.arg("--listen").arg(format!("unix:{}", directory.join("sock").display())).args(rest);
    command
}

fn in_directory(directory: &Path, size: &str, max: &str) -> Vec<String> {
    let memory = format!("--memory-dir={}", directory.join("memory").display());
    vec![memory, format!("--memory={size}"), format!("--max-memory={max}"), "--inodes=1000".into()]
}

fn with_snapshots(directory: &Path, size: &str, max: &str) -> Vec<String> {
    let persist = format!("--persist={}", directory.join("snapshots").display());
    let size = [format!("--memory={size}"), format!("--max-memory={max}")];
    [vec![persist, "--persist-every=none".into(), "--inodes=1000".into()], size.to_vec()].concat()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

impl Program {
    fn start(directory: &Path, options: &[String]) -> Program {
        Program(Running::start(&mut command(directory, &words(options))), directory.to_owned())
    }

    fn connect(&self) -> Client {
        let address = Address::Unix(self.1.join("sock"));
        let session = Session::builder().provider(ProviderKind::Shm).connect(&address).unwrap();
        let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
        Client { session, attached }
    }

    /// Runs `rfs-server resize` for the server.
    fn resize(&self, arguments: &[&str]) -> Output {
        let socket = self.1.join("sock").display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        program::piped(command.arg("resize").args(arguments).arg(socket));
        command.output().unwrap()
    }

    fn end(self) {
        self.0.signal("TERM");
        assert_eq!(self.0.end().code(), Some(0));
    }

    /// Returns the bytes of the arena that the system has allocated.
    fn allocated(&self) -> u64 {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.0.0.id())).unwrap();
        let paths = descriptors.map(|entry| entry.unwrap().path());
        let is_arena =
            |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("rfs-arena"));
        let arena = paths.into_iter().find(is_arena).expect("a descriptor of the arena");
        fs::metadata(arena).unwrap().blocks() * 512
    }
}

fn refuses(directory: &Path, options: &[String], said: &[&str]) {
    program::refuses(&mut command(directory, &words(options)), said);
}

fn data(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed) as u8 | 1).collect()
}

/// Writes behind the end of a file. Returns the server's error if there is no space.
fn append(client: &Client, attr: &Attr, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let request = Request::Allocate { ino: attr.ino, offset, len: data.len() as u64 };
    let layout = match client.ask(request) {
        Reply::Layout(layout) => layout,
        Reply::Error(refused) => return Err(refused),
        other => panic!("{other:?}"),
    };
    for extent in layout.extents {
        let from = extent.file.max(offset);
        let to = (extent.file + extent.len).min(offset + data.len() as u64);
        if from < to {
            let at = place(client.attached.arena, extent.arena + from - extent.file);
            client.session.write(at, &data[(from - offset) as usize..(to - offset) as usize]).unwrap();
        }
    }
    client.publish(attr, offset + data.len() as u64);
    Ok(())
}

/// Makes a closed file.
fn make(client: &Client, name: &[u8], data: &[u8]) {
    let attr = client.create(name).attr;
    append(client, &attr, 0, data).unwrap();
    client.ask(Request::Close { ino: attr.ino });
}

fn content(client: &Client, name: &[u8]) -> Vec<u8> {
    let Reply::Attr(attr) = client.ask(Request::Lookup { parent: ROOT_INO, name }) else { panic!("no file") };
    read(client, &attr)
}

fn totals(client: &Client) -> (u64, u64) {
    let Reply::StatFs(StatFs { blocks, blocks_free, .. }) = client.ask(Request::StatFs) else {
        panic!("none")
    };
    (blocks * BLOCK, blocks_free * BLOCK)
}

fn start(directory: &tempfile::TempDir, prefault: Prefault) -> Server {
    start_with(directory, |config: &mut Config| {
        config.listen.retain(|address| !matches!(address, Address::Rdma { .. }));
        config.prefault = prefault;
        let export = |name: &str, max| ExportConfig {
            name: name.into(),
            memory: 4 * MIB,
            max,
            inodes: None,
            root: config.root,
            eviction: Default::default(),
        };
        config.exports = vec![export("a", Some(64 * MIB)), export("b", None)];
    })
}

/// Catches space that a client sees only after a new connection, and a size that leaks into another
/// export.
#[test]
fn an_export_grows_while_a_client_writes() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let directory = tempfile::tempdir().unwrap();
        let server = start(&directory, Prefault::Background);
        let [client, other] = ["a", "b"].map(|name| connect_to(&server, provider, name, false));
        assert_eq!([totals(&client), totals(&other)], [(4 * MIB, 4 * MIB); 2]);
        let (attr, was_full) = (client.create(b"f").attr, AtomicBool::new(false));
        let (chunk, chunks) = (data(3, MIB / 2), 20);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..chunks {
                    while let Err(refused) = append(&client, &attr, number * MIB / 2, &chunk) {
                        assert_eq!(refused, Errno::ENOSPC);
                        was_full.store(true, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            while !was_full.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(server.resize("a", 12 * MIB + 5).unwrap(), (4 * MIB, 12 * MIB));
        });
        let Reply::Attr(attr) = client.ask(Request::GetAttr { ino: attr.ino }) else {
            panic!("no attributes")
        };
        assert!(read(&client, &attr) == chunk.repeat(chunks as usize));
        assert_eq!([totals(&client).0, totals(&other).0], [12 * MIB, 4 * MIB]);
        assert!(
            matches!(server.resize("a", 65 * MIB), Err(ResizeError::BeyondMax { max, .. }) if max == 64 * MIB)
        );
        assert!(matches!(server.resize("b", 5 * MIB), Err(ResizeError::BeyondMax { .. })));
        assert!(
            matches!(server.resize("c", 5 * MIB), Err(ResizeError::NoExport { there, .. }) if there == ["a", "b"])
        );
        assert!(matches!(server.resize("a", MIB - 1), Err(ResizeError::TooLittle { .. })));
    }
}

/// Catches bytes of a removed file in a new one.
#[test]
fn space_that_was_returned_is_zero() {
    for prefault in [Prefault::Background, Prefault::Never] {
        let directory = tempfile::tempdir().unwrap();
        let server = start(&directory, prefault);
        let client = connect_to(&server, ProviderKind::Shm, "a", false);
        server.resize("a", 16 * MIB).unwrap();
        let attr = client.create(b"f").attr;
        append(&client, &attr, 0, &data(9, 12 * MIB)).unwrap();
        client.ask(Request::Close { ino: attr.ino });
        client.ask(Request::Unlink { parent: ROOT_INO, name: b"f" });
        assert_eq!(server.resize("a", MIB).unwrap(), (16 * MIB, MIB));
        assert_eq!(totals(&client), (MIB, MIB));
        assert_eq!(server.resize("a", 16 * MIB).unwrap(), (MIB, 16 * MIB));
        let attr = client.create(b"g").attr;
        assert!(matches!(
            client.ask(Request::Allocate { ino: attr.ino, offset: 0, len: 16 * MIB }),
            Reply::Layout(_)
        ));
        client.publish(&attr, 16 * MIB);
        let Reply::Attr(attr) = client.ask(Request::GetAttr { ino: attr.ino }) else {
            panic!("no attributes")
        };
        assert!(read(&client, &attr).iter().all(|byte| *byte == 0));
    }
}

/// Catches memory that stays with the server, a refusal without the possible size, and an exit
/// status that hides it.
#[test]
fn an_export_shrinks_to_what_is_used_and_returns_its_memory() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let options = |prefault: &str| {
        let size = ["--memory=32M", "--max-memory=1G", "--inodes=1000", prefault];
        size.map(str::to_owned).to_vec()
    };
    for prefault in ["--prefault=first", "--prefault=never"] {
        let program = Program::start(directory, &options(prefault));
        let client = program.connect();
        make(&client, b"kept", &data(1, 4 * MIB));
        make(&client, b"gone", &data(2, 20 * MIB));
        client.ask(Request::Unlink { parent: ROOT_INO, name: b"gone" });
        let before = program.allocated();
        let said = program.resize(&["rfs", "3M"]);
        program::fails(&said, "rfs-server resize: server at ", &["the least size is 4M now"]);
        assert_eq!(totals(&client), (32 * MIB, 28 * MIB));
        let said = program.resize(&["rfs", "4M"]);
        assert_eq!(said.status.code(), Some(0), "{}", String::from_utf8_lossy(&said.stderr));
        assert!(program::text(&said).starts_with("export rfs: 32 MiB -> 4 MiB;"), "{}", program::text(&said));
        assert!(before >= 24 * MIB, "{before}");
        assert_eq!(program.allocated(), 4 * MIB);
        assert_eq!(totals(&client), (4 * MIB, 0));
        let attr = client.create(b"more").attr;
        assert_eq!(append(&client, &attr, 0, b"x"), Err(Errno::ENOSPC));
        assert_eq!(program.resize(&["rfs", "128M"]).status.code(), Some(0));
        append(&client, &attr, 0, &data(5, 40 * MIB)).unwrap();
        assert!(content(&client, b"kept") == data(1, 4 * MIB));
        program::fails(&program.resize(&["rfs", "2G"]), "rfs-server resize: ", &["the largest size is 1G"]);
        program::fails(&program.resize(&["x", "2G"]), "rfs-server resize: ", &["no export \"x\"", "\"rfs\""]);
        assert_eq!(program.resize(&["rfs", "much"]).status.code(), Some(2));
        drop(client);
        program.end();
    }
}

/// Catches an object that is changed by a start that is refused, pages that stay allocated, and
/// files that a smaller size loses.
#[test]
fn a_memory_object_is_used_with_other_sizes() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let options = |size: &str| in_directory(directory, size, "64M");
    let arena = directory.join("memory/rfs/arena");
    let allocated = || fs::metadata(&arena).unwrap().blocks() * 512;
    let program = Program::start(directory, &options("8M"));
    assert_eq!((allocated(), fs::metadata(&arena).unwrap().len()), (8 * MIB, 64 * MIB));
    let client = program.connect();
    make(&client, b"one", &data(1, 5 * MIB));
    assert_eq!(program.resize(&["rfs", "24M"]).status.code(), Some(0));
    assert_eq!(allocated(), 24 * MIB);
    make(&client, b"two", &data(2, 10 * MIB));
    drop(client);
    program.end();
    // 15 MiB are used.
    let state = || fs::read(directory.join("memory/rfs/state")).unwrap();
    let before = state();
    refuses(directory, &options("8M"), &["do not fit in 8M", "at least 15M", "--memory"]);
    assert!(state() == before, "a start that is refused changes nothing");
    refuses(directory, &in_directory(directory, "64M", "65M"), &["--memory SIZE --max-memory 67108864"]);
    let fixed = vec![format!("--memory-dir={}", directory.join("memory").display()), "--memory=24M".into()];
    refuses(directory, &fixed, &["--memory SIZE --max-memory 67108864", "--inodes 1000"]);
    for (size, len, signal) in
        [("15M", 15, "TERM"), ("40M", 40, "KILL"), ("16M", 16, "TERM"), ("64M", 64, "TERM")]
    {
        let program = Program::start(directory, &options(size));
        assert_eq!(allocated(), len * MIB, "{size}");
        let client = program.connect();
        assert_eq!(totals(&client), (len * MIB, (len - 15) * MIB));
        assert!(content(&client, b"one") == data(1, 5 * MIB));
        assert!(content(&client, b"two") == data(2, 10 * MIB));
        drop(client);
        program.0.signal(signal);
        program.0.end();
    }
}

/// Catches a start that the kernel ends by SIGXFSZ, without a message.
#[test]
fn a_limit_on_file_sizes_is_one_for_the_largest_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    program::piped(&mut command);
    command.args(["-c", "ulimit -f 65536 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_rfs-server")]);
    command.arg("--listen").arg(format!("unix:{}", directory.path().join("sock").display()));
    command.args(["--memory=4M", "--max-memory=1G"]);
    program::refuses(&mut command, &["cannot lend 1 GiB", "the limit on file sizes (ulimit -f)"]);
}

/// Catches a restored file outside of the space of the export, and one that is lost.
#[test]
fn a_snapshot_is_restored_into_another_size() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let program = Program::start(directory, &with_snapshots(directory, "32M", "32M"));
    let client = program.connect();
    make(&client, b"gone", &data(1, 8 * MIB));
    make(&client, b"kept", &data(2, 5 * MIB));
    client.ask(Request::Unlink { parent: ROOT_INO, name: b"gone" });
    drop(client);
    program.end();
    refuses(directory, &with_snapshots(directory, "4M", "32M"), &["do not fit in 4M", "at least 5M"]);
    refuses(directory, &with_snapshots(directory, "8M", "16M"), &["cannot restore", "--max-memory"]);
    for (size, max, len) in [("5M", "32M", 5), ("16M", "128M", 16)] {
        let program = Program::start(directory, &with_snapshots(directory, size, max));
        let client = program.connect();
        assert_eq!(totals(&client), (len * MIB, (len - 5) * MIB));
        assert!(content(&client, b"kept") == data(2, 5 * MIB));
        let attr = client.create(b"more").attr;
        let request = Request::Allocate { ino: attr.ino, offset: 0, len: (len - 5) * MIB + 1 };
        assert_eq!(client.ask(request), Reply::Error(Errno::ENOSPC));
        drop(client);
        program.0.signal("KILL");
        program.0.end();
    }
}
