//! Sessions with keys: the export that they get, their rights, and changes of keys.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rdmabox::{
    Address, ConnectError, Key, ProviderKind, RemoteAddr, RequestError, Secret, Session, WcStatus,
};
use rfs_proto::{
    Errno, FallocateFlags, LockClass, LockKind, LockRange, ROOT_INO, RegionRef, RenameFlags, Reply, Request,
    SetAttr, XattrSet, record,
};
use rfs_server::{ExportConfig, Server};

use crate::common::{self, Client, ask, attach, start_with, tests_rdma};

fn key(name: &str, secret: u8) -> Key {
    Key { id: name.parse().unwrap(), secret: Secret::new(&[secret; 32]).unwrap() }
}

/// Returns a line of the key file.
fn line(name: &str, secret: u8, export: &str, rights: &str) -> String {
    format!("{name} {} {export} {rights}\n", *key(name, secret).secret.to_hex())
}

struct Fixture {
    server: Server,
    dir: tempfile::TempDir,
}

impl Fixture {
    /// Starts a server with the exports "home" and "scratch", and these lines of keys.
    fn new(lines: &[String]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        write(&dir, lines);
        let server = start_with(&dir, |config| {
            let root = config.root;
            let export = |name: &str| ExportConfig {
                name: name.into(),
                memory: 4 << 20,
                max: None,
                inodes: Some(100),
                root,
                eviction: Default::default(),
            };
            config.exports = vec![export("home"), export("scratch")];
            config.keys = Some(dir.path().join("keys"));
        });
        Fixture { server, dir }
    }

    fn session(&self, provider: ProviderKind, key: Option<Key>) -> Result<Arc<Session>, ConnectError> {
        let address = self.server.addresses().iter().find(|address| address.provider() == provider).unwrap();
        let mut options = Session::builder().provider(provider).key(key).into_options();
        if provider == ProviderKind::Rdma {
            // RDMA is tested on emulated processors, which are slow.
            options.connect_timeout = Duration::from_secs(60);
            options.operation_timeout = Duration::from_secs(60);
        }
        Session::connect(address, &options)
    }

    fn connect(&self, provider: ProviderKind, key: Key, export: &str) -> Client {
        let session = self.session(provider, Some(key)).unwrap();
        let Reply::Attached(attached) = attach(&session, export, false) else { panic!("not attached") };
        Client { session, attached }
    }
}

fn write(dir: &tempfile::TempDir, lines: &[String]) {
    let path = dir.path().join("keys");
    fs::write(&path, lines.concat()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn providers() -> Vec<ProviderKind> {
    let mut all = vec![ProviderKind::Shm, ProviderKind::Tcp];
    if tests_rdma() {
        all.push(ProviderKind::Rdma);
    }
    all
}

fn all_keys() -> [String; 3] {
    [line("writer", 1, "home", "rw"), line("reader", 2, "home", "ro"), line("other", 3, "scratch", "rw")]
}

fn place(region: &RegionRef, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: region.addr + offset, rkey: region.rkey }
}

/// Checks that the device has refused an operation. Others on the same queue pair may be flushed
/// with it.
fn refused<T: std::fmt::Debug>(outcome: Result<T, RequestError>) {
    let is = matches!(outcome, Err(RequestError::Completion(WcStatus::RemAccessErr) | RequestError::Flushed));
    assert!(is, "{outcome:?}");
}

#[test]
fn a_key_is_for_its_export() {
    let f = Fixture::new(&all_keys());
    for provider in providers() {
        let writer = f.connect(provider, key("writer", 1), "home");
        let unnamed = f.connect(provider, key("other", 3), "");
        unnamed.create(&common::name(provider));
        let look = Request::Lookup { parent: ROOT_INO, name: &common::name(provider) };
        assert_eq!(writer.ask(look), Reply::Error(Errno::ENOENT), "it gets the export of its key");
        // It does not learn whether other exports exist.
        for export in ["scratch", "nowhere"] {
            let session = f.session(provider, Some(key("writer", 1))).unwrap();
            assert_eq!(attach(&session, export, false), Reply::Error(Errno::EACCES));
            assert!(matches!(attach(&session, "home", false), Reply::Attached(_)), "it may ask again");
        }
        // It cannot access their memory, although it knows the addresses.
        let theirs = unnamed.attached;
        for region in [theirs.arena, theirs.table] {
            refused(writer.session.read(place(&region, 0), &mut [0; 8]));
            refused(writer.session.write(place(&region, 0), &[1; 8]));
        }
        writer.create(&[&b"x"[..], &common::name(provider)].concat());
    }
}

/// A file with a block of space.
struct File {
    ino: u64,
    /// Offset of the block in the arena.
    at: u64,
    /// Offset of the file's record in the table.
    of_record: u64,
}

impl File {
    fn allocate(client: &Client, attr: &rfs_proto::Attr) -> File {
        let ino = attr.ino;
        let Reply::Layout(layout) = client.ask(Request::Allocate { ino, offset: 0, len: 4096 }) else {
            panic!("no space")
        };
        File { ino, at: layout.extents[0].arena, of_record: u64::from(attr.slot) * record::LEN as u64 }
    }
}

/// Returns a request that sets an extended attribute.
fn set_xattr(ino: u64, name: &[u8]) -> Request<'_> {
    Request::SetXattr {
        ino,
        name,
        value: b"x",
        how: XattrSet::Any,
        continued: false,
        drop_sgid: false,
        only_if: None,
    }
}

/// Returns a request that renames a file in the root directory.
fn rename<'a>(name: &'a [u8], new_name: &'a [u8]) -> Request<'a> {
    Request::Rename {
        parent: ROOT_INO,
        name,
        new_parent: ROOT_INO,
        new_name,
        flags: RenameFlags::empty(),
        whiteout: None,
        moved: None,
        replaced: None,
    }
}

/// Checks that a client looks up, opens, locks and reads a file with the bytes "written!".
fn reads(reader: &Client, name: &[u8], file: &File) {
    let is = |request, wanted: fn(&Reply) -> bool| {
        let reply = reader.ask(request);
        assert!(wanted(&reply), "{reply:?}");
    };
    let ino = file.ino;
    is(Request::Lookup { parent: ROOT_INO, name }, |reply| matches!(reply, Reply::Attr(_)));
    is(Request::Open { ino, write: false }, |reply| matches!(reply, Reply::Opened(_)));
    let (range, class) = (LockRange { first: 0, last: 7 }, LockClass::Record);
    let lock = Request::Lock { ino, owner: 1, class, kind: LockKind::Shared, range, pid: 1, ticket: None };
    is(lock, |reply| matches!(reply, Reply::Locked(_)));
    let mut bytes = [0; 8];
    reader.session.read(place(&reader.attached.arena, file.at), &mut bytes).unwrap();
    assert_eq!(&bytes, b"written!");
    reader.session.read(place(&reader.attached.table, file.of_record), &mut bytes).unwrap();
}

/// Returns a request of each kind that changes something. The file has this name.
fn changes(ino: u64, name: &[u8]) -> Vec<Request<'_>> {
    let (parent, perm, umask, uid, gid, rdev) = (ROOT_INO, 0o644, 0, 0, 0, 0);
    let new = &b"new"[..];
    vec![
        Request::SetAttr { ino, changes: SetAttr { size: Some(0), ..SetAttr::default() } },
        Request::Mknod { parent, name: new, mode: 0o100_644, umask, rdev, uid, gid },
        Request::Create { parent, name: new, perm, umask, uid, gid, exclusive: false },
        Request::Create { parent, name, perm, umask, uid, gid, exclusive: false },
        Request::Mkdir { parent, name: new, perm, umask, uid, gid },
        Request::Symlink { parent, name: new, target: b"x", uid, gid },
        Request::Link { ino, parent, name: new },
        Request::Unlink { parent, name },
        Request::Rmdir { parent, name },
        rename(name, new),
        Request::Open { ino, write: true },
        Request::Allocate { ino, offset: 0, len: 1 << 20 },
        set_xattr(ino, b"user.a"),
        Request::XattrPart { value: b"x" },
        Request::RemoveXattr { ino, name: b"user.a", only_if: None },
        Request::Fallocate { ino, offset: 0, len: 4096, flags: FallocateFlags::ZERO_RANGE },
        Request::Copy { from: ino, from_offset: 0, to: ino, to_offset: 4096, len: 1 },
    ]
}

/// Checks that a reader may not write one-sidedly, with its own regions nor with those of a writer.
fn writes_are_refused(reader: &Client, writer: &Client, file: &File) {
    let size = place(&reader.attached.table, file.of_record + record::SIZE as u64);
    let data = place(&reader.attached.arena, file.at);
    refused(reader.session.write(data, b"tampered"));
    refused(reader.session.write(size, &9u64.to_le_bytes()));
    refused(reader.session.compare_swap(size, 0, 9));
    refused(reader.session.fetch_add(size, 9));
    for region in [writer.attached.arena, writer.attached.table] {
        refused(reader.session.write(place(&region, 0), &[1; 8]));
        refused(reader.session.read(place(&region, 0), &mut [0; 8]));
    }
    if let Some((memory, _)) = reader.session.map(data, 8) {
        assert!(!memory.is_writable());
    }
}

#[test]
fn a_read_only_session_cannot_change_anything() {
    let f = Fixture::new(&all_keys());
    for provider in providers() {
        eprintln!("--- {provider}");
        let writer = f.connect(provider, key("writer", 1), "");
        let reader = f.connect(provider, key("reader", 2), "");
        assert!(reader.attached.read_only && !writer.attached.read_only);
        let name = common::name(provider);
        let file = File::allocate(&writer, &writer.create(&name).attr);
        let data = place(&writer.attached.arena, file.at);
        writer.session.write(data, b"written!").unwrap();

        reads(&reader, &name, &file);
        for request in changes(file.ino, &name) {
            assert_eq!(reader.ask(request), Reply::Error(Errno::EROFS), "{request:?}");
        }
        writes_are_refused(&reader, &writer, &file);

        let mut bytes = [0; 8];
        writer.session.read(data, &mut bytes).unwrap();
        assert_eq!(&bytes, b"written!");
        let Reply::Attr(attr) = writer.ask(Request::GetAttr { ino: file.ino }) else { panic!("gone") };
        assert_eq!(attr.size, 0);
        // The reader may still send permitted requests.
        let reply = reader.ask(Request::StatFs);
        assert!(matches!(reply, Reply::StatFs(_)), "{reply:?}");
    }
}

#[test]
fn through_the_unix_socket_the_servers_user_needs_no_key() {
    let f = Fixture::new(&all_keys());
    for export in ["", "home", "scratch"] {
        let session = f.session(ProviderKind::Shm, None).unwrap();
        assert!(matches!(attach(&session, export, false), Reply::Attached(attached) if !attached.read_only));
    }
    let session = f.session(ProviderKind::Shm, None).unwrap();
    assert_eq!(attach(&session, "nowhere", false), Reply::Error(Errno::ENOENT));
    assert!(f.session(ProviderKind::Tcp, None).is_err());
}

#[test]
fn keys_change_while_the_server_runs() {
    let f = Fixture::new(&all_keys());
    let (writer, reader, other) = (
        f.connect(ProviderKind::Tcp, key("writer", 1), ""),
        f.connect(ProviderKind::Tcp, key("reader", 2), ""),
        f.connect(ProviderKind::Shm, key("other", 3), ""),
    );
    // One key stays, one gets the right to write, one is removed, and one is new.
    write(
        &f.dir,
        &[line("writer", 1, "home", "rw"), line("reader", 2, "home", "rw"), line("late", 4, "scratch", "ro")],
    );
    assert_eq!(f.server.reload_keys().unwrap(), Some(3));
    while reader.session.is_connected() || other.session.is_connected() {
        std::thread::yield_now();
    }
    assert!(matches!(writer.ask(Request::StatFs), Reply::StatFs(_)));
    assert!(!f.connect(ProviderKind::Tcp, key("reader", 2), "").attached.read_only);
    assert!(f.connect(ProviderKind::Tcp, key("late", 4), "").attached.read_only);
    assert!(f.session(ProviderKind::Tcp, Some(key("other", 3))).is_err());
    // A file with an error changes nothing.
    write(&f.dir, &["nonsense\n".into()]);
    assert!(f.server.reload_keys().is_err());
    assert!(matches!(ask(&writer.session, Request::StatFs), Reply::StatFs(_)));
    f.connect(ProviderKind::Tcp, key("late", 4), "");
}

/// Environment variable with the server's socket for the child process.
const SOCKET: &str = "RFS_TEST_KEYS_SOCKET";

/// Not a test: the child process of the test below. It writes to the memory that it has mapped,
/// also after the end of its session.
#[test]
fn writing_client() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let session = Session::builder().key(key("other", 3)).connect(&Address::Unix(socket.into())).unwrap();
    let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
    let (memory, offset) = session.map(place(&attached.arena, 0), 8).unwrap();
    assert!(memory.is_writable());
    for count in 1u64.. {
        memory.write(offset, &count.to_le_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client over shared memory whose key is revoked is killed: nothing else ends its mapping.
#[test]
fn a_revoked_key_ends_the_process_that_has_memory_mapped() {
    let f = Fixture::new(&all_keys());
    let unix = |address: &&Address| address.provider() == ProviderKind::Shm;
    let Some(Address::Unix(socket)) = f.server.addresses().iter().find(unix) else { panic!("no socket") };
    let mut client = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "sessions::keys::writing_client"])
        .env(SOCKET, socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The server's own user needs no key, and sees the bytes that the client writes.
    let session = f.session(ProviderKind::Shm, None).unwrap();
    let Reply::Attached(attached) = attach(&session, "scratch", false) else { panic!("not attached") };
    let count = || {
        let mut bytes = [0; 8];
        session.read(place(&attached.arena, 0), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    while count() < 10 {
        assert!(client.try_wait().unwrap().is_none(), "the client writes");
        std::thread::sleep(Duration::from_millis(1));
    }
    write(&f.dir, &[line("writer", 1, "home", "rw")]);
    assert_eq!(f.server.reload_keys().unwrap(), Some(1));
    let ended = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match client.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > ended => {
                client.kill().unwrap();
                panic!("the client goes on with the memory");
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(status.signal(), Some(9), "{status}");
    let last = count();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(count(), last);
}

/// Creates a file with space.
fn make(writer: &Client, perm: u32, name: &[u8]) -> File {
    let made = Request::Create { parent: ROOT_INO, name, perm, umask: 0, uid: 0, gid: 0, exclusive: true };
    let Reply::Opened(opened) = writer.ask(made) else { panic!("not made") };
    File::allocate(writer, &opened.attr)
}

/// Checks that a squashed client may not send a request.
fn denied(client: &Client, request: Request<'_>) {
    let reply = client.ask(request);
    assert!(matches!(reply, Reply::Error(Errno::EPERM | Errno::EACCES)), "{request:?}: {reply:?}");
}

/// Returns requests that only root, or the owner of a file, may send. The file `ino` with this name
/// is private to root; all users may read the `public` one.
fn privileged(ino: u64, name: &[u8], public: u64, (uid, gid): (u32, u32)) -> Vec<Request<'_>> {
    let (parent, new) = (ROOT_INO, &b"new"[..]);
    let set = |ino, changes| Request::SetAttr { ino, changes };
    let none = SetAttr::default();
    vec![
        Request::Open { ino, write: false },
        Request::Open { ino: public, write: true },
        Request::Unlink { parent, name },
        Request::Create { parent, name: new, perm: 0o4755, umask: 0, uid: 0, gid: 0, exclusive: true },
        Request::Mkdir { parent, name: new, perm: 0o755, umask: 0, uid: 0, gid: 0 },
        Request::Mknod { parent, name: new, mode: 0o020_666, umask: 0, rdev: 259, uid: 0, gid: 0 },
        Request::Symlink { parent, name: new, target: b"x", uid: 0, gid: 0 },
        Request::Link { ino, parent, name: new },
        rename(name, new),
        set(public, SetAttr { size: Some(0), ..none }),
        set(public, SetAttr { perm: Some(0o4777), ..none }),
        set(public, SetAttr { uid: Some(uid), gid: Some(gid), ..none }),
        set(ino, SetAttr { perm: Some(0o666), ..none }),
        set_xattr(public, b"user.a"),
        set_xattr(public, b"trusted.a"),
        set_xattr(public, b"security.capability"),
        Request::Verify { ino: 0, offset: 0 },
    ]
}

/// Checks that a squashed client cannot write a file that it has open to read. Checks that it can
/// write to no file of root one-sidedly: sizes and times of all files are in the table.
fn cannot_write(client: &Client, writer: &Client, public: u64, file: &File) {
    assert!(matches!(client.ask(Request::Open { ino: public, write: false }), Reply::Opened(_)));
    denied(client, Request::Allocate { ino: public, offset: 0, len: 4096 });
    let flags = FallocateFlags::ZERO_RANGE;
    denied(client, Request::Fallocate { ino: public, offset: 0, len: 4096, flags });
    let (check, growth) = (rfs_proto::checksum::check_data(b"x"), rfs_proto::Growth::Reach);
    denied(client, Request::Write { ino: public, offset: 0, check, growth, data: b"x" });
    for region in [client.attached.arena, writer.attached.arena] {
        refused(client.session.write(place(&region, file.at), b"tampered"));
    }
    for region in [client.attached.table, writer.attached.table] {
        refused(client.session.write(place(&region, file.of_record + record::SIZE as u64), &[0; 8]));
        refused(client.session.compare_swap(place(&region, file.of_record), 0, 9));
    }
}

/// Checks a squashed client in a sticky directory where all users may make names. A new file
/// belongs to the user of the key, and the client cannot remove the `public` file of root.
fn makes_only_own_files(client: &Client, new: &[u8], owner: (u32, u32), public: &[u8]) {
    let (parent, perm) = (ROOT_INO, 0o4755);
    let made = Request::Create { parent, name: new, perm, umask: 0, uid: 0, gid: 0, exclusive: true };
    let Reply::Opened(opened) = client.ask(made) else { panic!("not made") };
    assert_eq!((opened.attr.uid, opened.attr.gid), owner);
    let ino = opened.attr.ino;
    for (uid, gid) in [(Some(0), None), (None, Some(0)), (Some(1001), None)] {
        let changes = SetAttr { uid, gid, ..SetAttr::default() };
        assert_eq!(client.ask(Request::SetAttr { ino, changes }), Reply::Error(Errno::EPERM));
    }
    assert_eq!(client.ask(Request::Unlink { parent, name: public }), Reply::Error(Errno::EPERM));
    assert!(matches!(client.ask(Request::Unlink { parent, name: new }), Reply::Done));
}

/// A client that sends any request of the protocol, as root of its host can.
#[test]
fn a_squashed_client_is_never_root() {
    let lines = [
        line("writer", 1, "home", "rw"),
        line("box", 2, "home", "rw squash=root uid=500 gid=501"),
        line("user", 3, "home", "rw squash=all uid=1000 gid=1000"),
    ];
    let keys = [("box", 2, (500, 501)), ("user", 3, (1000, 1000))];
    let f = Fixture::new(&lines);
    for provider in providers() {
        let writer = f.connect(provider, key("writer", 1), "");
        let name = common::name(provider);
        let public_name = [&name[..], b"-public"].concat();
        let file = make(&writer, 0o600, &name);
        let public = make(&writer, 0o755, &public_name).ino;
        let set_perm = |perm| {
            let changes = SetAttr { perm: Some(perm), ..SetAttr::default() };
            assert!(matches!(writer.ask(Request::SetAttr { ino: ROOT_INO, changes }), Reply::Attr(_)));
        };
        // The export's root directory belongs to root, and others may not write to it.
        for (id, secret, user) in keys {
            let client = f.connect(provider, key(id, secret), "");
            assert!(client.attached.confined && !client.attached.read_only && !writer.attached.confined);
            privileged(file.ino, &name, public, user)
                .into_iter()
                .for_each(|request| denied(&client, request));
            cannot_write(&client, &writer, public, &file);
        }
        set_perm(0o1777);
        for (id, secret, owner) in keys {
            let client = f.connect(provider, key(id, secret), "");
            let new = [&name[..], id.as_bytes()].concat();
            makes_only_own_files(&client, &new, owner, &public_name);
        }
        set_perm(0o755);
    }
}
