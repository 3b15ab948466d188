//! Attempts to shorten the memory of a server.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::{fd::BorrowedFd, unix::process::ExitStatusExt},
    path::Path,
    process::Command,
};

use rdmabox::{Address, ProviderKind, Session};
use rfs_proto::{Reply, Request};

use crate::common::{
    Client, attach,
    program::{self, Running},
};

fn start(directory: &Path) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    program::piped(&mut command);
    command.args(["--memory=32M", "--inodes=1000"]);
    command.arg("--listen").arg(format!("unix:{}", directory.join("socket").display()));
    command.arg("--memory-dir").arg(directory.join("memory"));
    Running::start(&mut command)
}

fn connect(directory: &Path) -> Client {
    let session = Session::builder()
        .provider(ProviderKind::Shm)
        .connect(&Address::Unix(directory.join("socket")))
        .unwrap();
    let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
    Client { session, attached }
}

/// Copies the descriptors of arenas below a directory that this process has.
fn received(directory: &Path) -> Vec<File> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let path = fs::read_link(entry.path()).ok()?;
        (path.starts_with(directory) && path.ends_with("arena")).then_some(())?;
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        // SAFETY: the descriptor is borrowed for the call, and the session keeps it open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        descriptor.try_clone_to_owned().ok().map(File::from)
    });
    descriptors.collect()
}

/// A client that maps the memory has a descriptor of it, and cannot shorten the memory with it.
#[test]
fn a_client_cannot_shorten_the_memory_through_its_descriptor() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let mut server = start(directory);
    let client = connect(directory);
    let attr = client.create(b"file").attr;
    // The arena is mapped at its first use.
    let request = Request::Allocate { ino: attr.ino, offset: 0, len: 4096 };
    let Reply::Layout(layout) = client.ask(request) else { panic!("no space") };
    let place = program::place(client.attached.arena, layout.extents[0].arena);
    client.session.write(place, b"bytes").unwrap();
    let files = received(&directory.join("memory"));
    assert!(!files.is_empty(), "the client has no descriptor: this test needs another way");
    for file in files {
        let len = file.metadata().unwrap().len();
        for shorter in [0, 4096, len - 1] {
            file.set_len(shorter).unwrap_err();
        }
        assert_eq!(file.metadata().unwrap().len(), len);
    }
    let mut bytes = [0; 5];
    client.session.read(place, &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    drop(client);
    server.signal("TERM");
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}

/// Root can shorten the files by their names. The server then ends with an error, and not by a
/// signal.
#[test]
fn memory_that_is_gone_ends_the_server_with_an_error() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let mut server = start(directory);
    let client = connect(directory);
    client.create(b"file");
    let table = OpenOptions::new().write(true).open(directory.join("memory/rfs/table")).unwrap();
    table.set_len(0).unwrap();
    // The reply may not arrive any more.
    let mut request = Vec::new();
    let make = Request::Mkdir { parent: 1, name: b"d", perm: 0o700, umask: 0, uid: 0, gid: 0 };
    rfs_proto::encode_request(&make, &mut request);
    let _ = client.session.call(&request, &mut Vec::new());
    let status = server.0.wait().unwrap();
    let mut said = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((status.signal(), status.code()), (None, Some(1)), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("shared memory is lost"), "{said}");
}

/// A file that a client has made longer is cut off at the next start.
#[test]
fn a_file_that_is_too_long_is_cut_off() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = directory.path();
    let mut server = start(directory);
    let client = connect(directory);
    client.create(b"file");
    drop(client);
    server.signal("TERM");
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    let path = directory.join("memory/rfs/arena");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len + 8192).unwrap();
    let server = start(directory);
    assert_eq!(fs::metadata(&path).unwrap().len(), len);
    let client = connect(directory);
    let look = Request::Lookup { parent: 1, name: b"file" };
    assert!(!matches!(client.ask(look), Reply::Error(_)));
    drop((client, server));
}
