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
            let export =
                |name: &str| ExportConfig { name: name.into(), memory: 4 << 20, inodes: Some(100), root };
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

#[test]
fn a_read_only_session_cannot_change_anything() {
    let f = Fixture::new(&all_keys());
    for provider in providers() {
        eprintln!("--- {provider}");
        let writer = f.connect(provider, key("writer", 1), "");
        let reader = f.connect(provider, key("reader", 2), "");
        assert!(reader.attached.read_only && !writer.attached.read_only);
        let name = common::name(provider);
        let opened = writer.create(&name);
        let (ino, slot) = (opened.attr.ino, opened.attr.slot);
        let Reply::Layout(layout) = writer.ask(Request::Allocate { ino, offset: 0, len: 4096 }) else {
            panic!("no space")
        };
        let at = layout.extents[0].arena;
        writer.session.write(place(&writer.attached.arena, at), b"written!").unwrap();

        // It may look up, read and lock.
        let is = |request, wanted: fn(&Reply) -> bool| {
            let reply = reader.ask(request);
            assert!(wanted(&reply), "{reply:?}");
        };
        is(Request::Lookup { parent: ROOT_INO, name: &name }, |reply| matches!(reply, Reply::Attr(_)));
        is(Request::Open { ino, write: false }, |reply| matches!(reply, Reply::Opened(_)));
        let (range, class) = (LockRange { first: 0, last: 7 }, LockClass::Record);
        let lock =
            Request::Lock { ino, owner: 1, class, kind: LockKind::Shared, range, pid: 1, ticket: None };
        is(lock, |reply| matches!(reply, Reply::Locked(_)));
        let mut bytes = [0; 8];
        reader.session.read(place(&reader.attached.arena, at), &mut bytes).unwrap();
        assert_eq!(&bytes, b"written!");
        let of_record = u64::from(slot) * record::LEN as u64;
        reader.session.read(place(&reader.attached.table, of_record), &mut bytes).unwrap();

        // It may not send these requests.
        let (parent, perm, umask, uid, gid, rdev) = (ROOT_INO, 0o644, 0, 0, 0, 0);
        let (name, new) = (&name[..], &b"new"[..]);
        let open = Request::Open { ino, write: true };
        for request in [
            Request::SetAttr { ino, changes: SetAttr { size: Some(0), ..SetAttr::default() } },
            Request::Mknod { parent, name: new, mode: 0o100_644, umask, rdev, uid, gid },
            Request::Create { parent, name: new, perm, umask, uid, gid, exclusive: false },
            Request::Create { parent, name, perm, umask, uid, gid, exclusive: false },
            Request::Mkdir { parent, name: new, perm, umask, uid, gid },
            Request::Symlink { parent, name: new, target: b"x", uid, gid },
            Request::Link { ino, parent, name: new },
            Request::Unlink { parent, name },
            Request::Rmdir { parent, name },
            Request::Rename {
                parent,
                name,
                new_parent: parent,
                new_name: new,
                flags: RenameFlags::empty(),
                whiteout: None,
                moved: None,
                replaced: None,
            },
            open,
            Request::Allocate { ino, offset: 0, len: 1 << 20 },
            Request::SetXattr {
                ino,
                name: b"user.a",
                value: b"x",
                how: XattrSet::Any,
                continued: false,
                drop_sgid: false,
                only_if: None,
            },
            Request::XattrPart { value: b"x" },
            Request::RemoveXattr { ino, name: b"user.a", only_if: None },
            Request::Fallocate { ino, offset: 0, len: 4096, flags: FallocateFlags::ZERO_RANGE },
            Request::Copy { from: ino, from_offset: 0, to: ino, to_offset: 4096, len: 1 },
        ] {
            assert_eq!(reader.ask(request), Reply::Error(Errno::EROFS), "{request:?}");
        }
        // It may not write one-sidedly, with its own regions nor with those of a writer.
        let size = place(&reader.attached.table, of_record + record::SIZE as u64);
        let data = place(&reader.attached.arena, at);
        refused(reader.session.write(data, b"tampered"));
        refused(reader.session.write(size, &9u64.to_le_bytes()));
        refused(reader.session.compare_swap(size, 0, 9));
        refused(reader.session.fetch_add(size, 9));
        for region in [writer.attached.arena, writer.attached.table] {
            refused(reader.session.write(place(&region, 0), &[1; 8]));
            refused(reader.session.read(place(&region, 0), &mut bytes));
        }
        if let Some((memory, _)) = reader.session.map(data, 8) {
            assert!(!memory.is_writable());
        }
        writer.session.read(place(&writer.attached.arena, at), &mut bytes).unwrap();
        assert_eq!(&bytes, b"written!");
        let Reply::Attr(attr) = writer.ask(Request::GetAttr { ino }) else { panic!("gone") };
        assert_eq!(attr.size, 0);
        // It may still send permitted requests.
        is(Request::StatFs, |reply| matches!(reply, Reply::StatFs(_)));
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

/// A client that sends any request of the protocol, as root of its host can.
#[test]
fn a_squashed_client_is_never_root() {
    let lines = [
        line("writer", 1, "home", "rw"),
        line("box", 2, "home", "rw squash=root uid=500 gid=501"),
        line("user", 3, "home", "rw squash=all uid=1000 gid=1000"),
    ];
    let f = Fixture::new(&lines);
    for provider in providers() {
        let writer = f.connect(provider, key("writer", 1), "");
        let make = |perm, uid, name: &[u8]| {
            let made =
                Request::Create { parent: ROOT_INO, name, perm, umask: 0, uid, gid: uid, exclusive: true };
            let Reply::Opened(opened) = writer.ask(made) else { panic!("not made") };
            let Reply::Layout(layout) =
                writer.ask(Request::Allocate { ino: opened.attr.ino, offset: 0, len: 4096 })
            else {
                panic!("no space")
            };
            (opened.attr.ino, layout.extents[0].arena, u64::from(opened.attr.slot) * record::LEN as u64)
        };
        let name = common::name(provider);
        let (ino, at, of_record) = make(0o600, 0, &name);
        let (public, ..) = make(0o755, 0, &[&name[..], b"-public"].concat());
        // The export's root directory belongs to root, and others may not write to it.
        for (client, uid, gid) in [
            (f.connect(provider, key("box", 2), ""), 500, 501),
            (f.connect(provider, key("user", 3), ""), 1000, 1000),
        ] {
            assert!(client.attached.confined && !client.attached.read_only && !writer.attached.confined);
            let denied = |request| {
                let reply = client.ask(request);
                assert!(
                    matches!(reply, Reply::Error(Errno::EPERM | Errno::EACCES)),
                    "{request:?}: {reply:?}"
                );
            };
            let (parent, new) = (ROOT_INO, &b"new"[..]);
            let set = |ino, changes| Request::SetAttr { ino, changes };
            let none = SetAttr::default();
            let xattr = |name| Request::SetXattr {
                ino: public,
                name,
                value: b"x",
                how: XattrSet::Any,
                continued: false,
                drop_sgid: false,
                only_if: None,
            };
            for request in [
                Request::Open { ino, write: false },
                Request::Open { ino: public, write: true },
                Request::Unlink { parent, name: &name },
                Request::Create {
                    parent,
                    name: new,
                    perm: 0o4755,
                    umask: 0,
                    uid: 0,
                    gid: 0,
                    exclusive: true,
                },
                Request::Mkdir { parent, name: new, perm: 0o755, umask: 0, uid: 0, gid: 0 },
                Request::Mknod { parent, name: new, mode: 0o020_666, umask: 0, rdev: 259, uid: 0, gid: 0 },
                Request::Symlink { parent, name: new, target: b"x", uid: 0, gid: 0 },
                Request::Link { ino, parent, name: new },
                Request::Rename {
                    parent,
                    name: &name,
                    new_parent: parent,
                    new_name: new,
                    flags: RenameFlags::empty(),
                    whiteout: None,
                    moved: None,
                    replaced: None,
                },
                set(public, SetAttr { size: Some(0), ..none }),
                set(public, SetAttr { perm: Some(0o4777), ..none }),
                set(public, SetAttr { uid: Some(uid), gid: Some(gid), ..none }),
                set(ino, SetAttr { perm: Some(0o666), ..none }),
                xattr(b"user.a"),
                xattr(b"trusted.a"),
                xattr(b"security.capability"),
                Request::Verify { ino: 0, offset: 0 },
            ] {
                denied(request);
            }
            // A file that is open to read cannot be written in other ways.
            assert!(matches!(client.ask(Request::Open { ino: public, write: false }), Reply::Opened(_)));
            denied(Request::Allocate { ino: public, offset: 0, len: 4096 });
            denied(Request::Fallocate {
                ino: public,
                offset: 0,
                len: 4096,
                flags: FallocateFlags::ZERO_RANGE,
            });
            let (check, growth) = (rfs_proto::checksum::check_data(b"x"), rfs_proto::Growth::Reach);
            denied(Request::Write { ino: public, offset: 0, check, growth, data: b"x" });
            // Nor one-sidedly: sizes and times of all files are in the table.
            for region in [client.attached.arena, writer.attached.arena] {
                refused(client.session.write(place(&region, at), b"tampered"));
            }
            for region in [client.attached.table, writer.attached.table] {
                refused(client.session.write(place(&region, of_record + record::SIZE as u64), &[0; 8]));
                refused(client.session.compare_swap(place(&region, of_record), 0, 9));
            }
        }
        // Where all users may make names, the new files belong to the user of the key.
        let open = SetAttr { perm: Some(0o1777), ..SetAttr::default() };
        assert!(matches!(writer.ask(Request::SetAttr { ino: ROOT_INO, changes: open }), Reply::Attr(_)));
        for (name_of_key, secret, owner) in [("box", 2, (500, 501)), ("user", 3, (1000, 1000))] {
            let client = f.connect(provider, key(name_of_key, secret), "");
            let new = [&name[..], name_of_key.as_bytes()].concat();
            let made = Request::Create {
                parent: ROOT_INO,
                name: &new,
                perm: 0o4755,
                umask: 0,
                uid: 0,
                gid: 0,
                exclusive: true,
            };
            let Reply::Opened(opened) = client.ask(made) else { panic!("not made") };
            assert_eq!((opened.attr.uid, opened.attr.gid), owner);
            let ino = opened.attr.ino;
            for (uid, gid) in [(Some(0), None), (None, Some(0)), (Some(1001), None)] {
                let changes = SetAttr { uid, gid, ..SetAttr::default() };
                assert_eq!(client.ask(Request::SetAttr { ino, changes }), Reply::Error(Errno::EPERM));
            }
            // A file of another user in a sticky directory cannot be removed.
            let public = [&name[..], b"-public"].concat();
            let theirs = Request::Unlink { parent: ROOT_INO, name: &public };
            assert_eq!(client.ask(theirs), Reply::Error(Errno::EPERM));
            assert!(matches!(client.ask(Request::Unlink { parent: ROOT_INO, name: &new }), Reply::Done));
        }
        let closed = SetAttr { perm: Some(0o755), ..SetAttr::default() };
        assert!(matches!(writer.ask(Request::SetAttr { ino: ROOT_INO, changes: closed }), Reply::Attr(_)));
    }
}
