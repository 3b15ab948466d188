//! A server that violates the protocol: the errors that programs get, and that the mount
//! continues to work.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    sync::Arc,
};

use crate::common::{Mount, Over, directory, require_fuse};
use parking_lot::Mutex;
use rdmabox::{Access, Address, CallError, Domain, Host, HostHandle, Memory, Peer, Service};
use rfs_proto::{BLOCK, Errno, Extent, Reply, Request, StatFs, decode_reply, decode_request, encode_reply};
use rfs_server::{
    Config,
    dispatch::Dispatcher,
    service::{ExportRegions, FileService, ServedExport},
    space::Space,
};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const INODES: u64 = 64;
const RECORD: u64 = 128;

/// Replaces a reply.
type Lie = fn(&Request<'_>, &mut Vec<u8>);

/// A service that replaces some replies of the service behind it.
struct Liar {
    honest: FileService,
    lie: Mutex<Option<Lie>>,
}

impl Service for Liar {
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        self.honest.connected(peer)
    }

    fn call(&self, peer: &Peer, request: &[u8], reply: &mut rdmabox::Reply<'_>) -> Result<(), CallError> {
        self.honest.call(peer, request, reply)?;
        if let Some(lie) = *self.lie.lock() {
            let decode = |bytes| decode_request(bytes).map_err(|e| e.to_string());
            match decode(request)? {
                Request::Once { request, .. } => lie(&decode(request)?, reply),
                request => lie(&request, reply),
            }
        }
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        self.honest.disconnected(peer);
    }
}

/// A server with a [`Liar`], and a mount of it.
struct Lying {
    mount: Mount,
    liar: Arc<Liar>,
    _point: TempDir,
    _socket: TempDir,
    _running: HostHandle,
}

/// Mounts over TCP or shared memory. `lie` applies from the start.
fn mount(over: Over, lie: Option<Lie>) -> Lying {
    require_fuse();
    let host = Host::new().expect("a host");
    let memory = |name, len| Arc::new(Memory::shared(name, len as usize).expect("memory"));
    let (arena, table) = (memory("liar-arena", MIB), memory("liar-table", INODES * RECORD));
    let data = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let export = |memory, access| host.export_in(Domain::default(), memory, access).expect("exported");
    let open = ExportRegions {
        arena: export(&arena, data),
        table: export(&table, data | Access::REMOTE_ATOMIC),
        sums: None,
    };
    let config = Config::new(MIB);
    let space = Arc::new(Space::new(arena, config.zeroing));
    let dispatcher = Dispatcher::new(space, table, config.root, config.clock).expect("room for the root");
    let lent = ServedExport { name: String::new(), dispatcher: Arc::new(dispatcher), open, keyed: [].into() };
    let liar = Arc::new(Liar { honest: FileService::new(vec![lent], None), lie: Mutex::new(lie) });
    let socket = directory();
    let address = match over {
        Over::Tcp => Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 },
        _ => Address::Unix(socket.path().join("socket")),
    };
    let running = host.listen(&[address], Arc::<Liar>::clone(&liar)).expect("listening");
    let point = directory();
    let options = ["--cache", "none", "--timeout", "60"];
    let mount = Mount::start(&running.addresses()[0].to_string(), point.path(), &options);
    Lying { mount, liar, _point: point, _socket: socket, _running: running }
}

impl Lying {
    /// Returns the error of `act` while the server lies. The server is honest again afterwards.
    fn told<T>(&self, lie: Lie, act: impl FnOnce(&Mount) -> io::Result<T>) -> Option<i32> {
        *self.liar.lie.lock() = Some(lie);
        let told = act(&self.mount).err().and_then(|e| e.raw_os_error());
        *self.liar.lie.lock() = None;
        told
    }
}

fn say(answer: &Reply, reply: &mut Vec<u8>) {
    reply.clear();
    encode_reply(answer, reply);
}

#[test]
fn an_invalid_reply_is_eproto() {
    let eproto = Some(i32::from(Errno::EPROTO.0));
    for over in [Over::Shm, Over::Tcp] {
        let lying = mount(over, None);
        fs::write(lying.mount.path("file"), b"bytes").expect("written");
        let stat = |mount: &Mount| fs::metadata(mount.path("file"));
        let no_message: Lie = |request, reply| {
            if matches!(request, Request::Lookup { .. }) {
                reply.clear();
                reply.extend([0xff; 9]);
            }
        };
        assert_eq!(lying.told(no_message, stat), eproto, "what is no message");
        let too_long: Lie = |request, reply| {
            if matches!(request, Request::Lookup { .. }) {
                reply.push(0);
            }
        };
        assert_eq!(lying.told(too_long, stat), eproto, "a message with something behind it");
        let of_another_kind: Lie = |request, reply| {
            if matches!(request, Request::Lookup { .. } | Request::Mkdir { .. }) {
                say(&Reply::StatFs(StatFs::default()), reply);
            }
        };
        assert_eq!(lying.told(of_another_kind, stat), eproto, "an answer of the wrong kind");
        let outside: Lie = |request, reply| {
            if let (Request::Open { .. }, Ok(Reply::Opened(mut opened))) = (request, decode_reply(reply)) {
                opened.layout.extents = vec![Extent { file: 0, arena: MIB, len: BLOCK }];
                say(&Reply::Opened(opened), reply);
            }
        };
        let open = |mount: &Mount| File::open(mount.path("file"));
        assert_eq!(lying.told(outside, open), eproto, "a place outside of what is lent");
        // The mount has stored none of the false replies, and still works.
        assert_eq!(fs::read(lying.mount.path("file")).expect("read"), b"bytes");
        lying.mount.unmount();
    }
}

#[test]
fn a_refused_one_sided_operation_is_eio() {
    let eio = Some(rustix::io::Errno::IO.raw_os_error());
    // The server does not know the key of the data's memory region.
    let wrong_key: Lie = |request, reply| {
        if let (Request::Attach { .. }, Ok(Reply::Attached(mut attached))) = (request, decode_reply(reply)) {
            attached.arena.rkey ^= 0x5555;
            say(&Reply::Attached(attached), reply);
        }
    };
    let lying = mount(Over::Tcp, Some(wrong_key));
    let file = File::create_new(lying.mount.path("file")).expect("made");
    for _ in 0..3 {
        let error = file.write_all_at(b"bytes", 0).expect_err("refused");
        assert_eq!(error.raw_os_error(), eio);
        // The next operation uses another queue pair.
        assert_eq!(file.metadata().expect("attributes").len(), 0);
    }
    file.set_len(5).expect("the server does that");
    let error = fs::read(lying.mount.path("file")).expect_err("refused");
    assert_eq!(error.raw_os_error(), eio);
    drop(file);
    lying.mount.unmount();
}
