//! A server with real sessions, over every provider: behaviour that the tests of the dispatcher
//! do not cover.

use std::sync::Barrier;

use rdmabox::{Op, ProviderKind, RemoteAddr};
use rfs_proto::{Attr, Layout, ROOT_INO, RegionRef, Reply, Request, record};
use rfs_server::{Config, Server, StartError};

use crate::common::{self, Client, start, tests_rdma};

/// One-sided access to the server's memory.
trait OneSided {
    fn allocate(&self, ino: u64, len: u64) -> Layout;
    fn field(&self, slot: u32, field: usize) -> RemoteAddr;
    fn append(&self, attr: &Attr, layout: &Layout, data: &[u8], time: i64);
    fn record(&self, attr: &Attr) -> Option<Attr>;
}

impl OneSided for Client {
    fn allocate(&self, ino: u64, len: u64) -> Layout {
        match self.ask(Request::Allocate { ino, offset: 0, len }) {
            Reply::Layout(layout) => layout,
            other => panic!("{other:?}"),
        }
    }

    fn field(&self, slot: u32, field: usize) -> RemoteAddr {
        place(self.attached.table, u64::from(slot) * record::LEN as u64 + field as u64)
    }

    /// Writes data, size and time in one list of operations, as a client writes beyond the end of a
    /// file.
    fn append(&self, attr: &Attr, layout: &Layout, data: &[u8], time: i64) {
        let mut old = 0;
        let time = time.to_le_bytes();
        self.session
            .execute(&mut [
                Op::Write { remote: place(self.attached.arena, layout.extents[0].arena), data },
                Op::Write { remote: self.field(attr.slot, record::WRITE_TIME), data: &time },
                Op::CompareSwap {
                    remote: self.field(attr.slot, record::SIZE),
                    compare: attr.size,
                    swap: data.len() as u64,
                    old: &mut old,
                },
            ])
            .unwrap();
        assert_eq!(old, attr.size);
    }

    fn record(&self, attr: &Attr) -> Option<Attr> {
        let mut raw = [0; record::LEN];
        self.session.read(self.field(attr.slot, 0), &mut raw).unwrap();
        record::decode(&raw, attr.ino, attr.slot)
    }
}

fn connect(server: &Server, provider: ProviderKind) -> Client {
    common::connect(server, provider, false)
}

fn place(region: RegionRef, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: region.addr + offset, rkey: region.rkey }
}

fn calls(server: &Server) -> u64 {
    server.stats().calls.iter().map(|(_, count)| count).sum()
}

fn data_is_transferred_one_sidedly(provider: ProviderKind) {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    let (one, two) = (connect(&server, provider), connect(&server, provider));
    let attr = one.create(b"f").attr;
    let layout = one.allocate(attr.ino, 100_000);
    two.create(b"f");

    let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let before = calls(&server);
    one.append(&attr, &layout, &data, 77);
    let seen = two.record(&attr).unwrap();
    assert_eq!((seen.size, seen.mtime, seen.blocks), (100_000, 77, 200));
    let mut read = vec![0; data.len()];
    two.session.read(place(two.attached.arena, layout.extents[0].arena), &mut read).unwrap();
    assert_eq!(read, data);
    assert_eq!(calls(&server), before, "reading, writing or stat ran server code");
    // The server sees the size and time that the client has written.
    assert_eq!(two.ask(Request::GetAttr { ino: attr.ino }), Reply::Attr(seen));
    server.shutdown().unwrap();
}

#[test]
fn data_is_transferred_one_sidedly_in_shared_memory() {
    data_is_transferred_one_sidedly(ProviderKind::Shm);
}

#[test]
fn data_is_transferred_one_sidedly_over_tcp() {
    data_is_transferred_one_sidedly(ProviderKind::Tcp);
}

#[test]
fn the_end_of_a_file_is_released_with_its_holders_session() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let (dead, alive) = (connect(&server, provider), connect(&server, provider));
        let attr = dead.create(b"f").attr;
        alive.create(b"f");
        let take = |client: &Client| {
            let mut old = 0;
            let remote = client.field(attr.slot, record::APPENDER);
            let swap = record::appender(client.attached.session, 5);
            client
                .session
                .execute(&mut [Op::CompareSwap { remote, compare: 0, swap, old: &mut old }])
                .unwrap();
            record::appender_session(old)
        };
        assert_eq!(take(&dead), 0);
        assert_eq!(take(&alive), dead.attached.session);
        drop(dead);
        // The server detects the end of the session after a while.
        while take(&alive) != 0 {
            std::thread::yield_now();
        }
        assert_eq!(take(&alive), alive.attached.session);
    }
}

#[test]
#[ignore = "needs an RDMA device, named in RDMABOX_TEST_PROVIDERS"]
fn data_is_transferred_one_sidedly_over_rdma() {
    assert!(tests_rdma(), "set RDMABOX_TEST_PROVIDERS=rdma, so that the server listens on the device");
    data_is_transferred_one_sidedly(ProviderKind::Rdma);
}

#[test]
fn a_malformed_message_ends_its_session_only() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let (good, bad) = (connect(&server, provider), connect(&server, provider));
        let attr = good.create(b"f").attr;
        assert!(bad.session.call(b"\xff\xff\xff", &mut Vec::new()).is_err());
        assert!(bad.session.call(&[0x12], &mut Vec::new()).is_err(), "the session goes on");
        assert_eq!(good.ask(Request::GetAttr { ino: attr.ino }), Reply::Attr(attr));
    }
}

#[test]
fn of_two_that_create_the_same_name_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    let clients = [connect(&server, ProviderKind::Shm), connect(&server, ProviderKind::Tcp)];
    for round in 0..50 {
        let name = format!("f{round}");
        let barrier = Barrier::new(2);
        let winners: usize = std::thread::scope(|scope| {
            let tries = clients.each_ref().map(|client| {
                scope.spawn(|| {
                    let (name, perm, uid, gid) = (name.as_bytes(), 0o600, 0, 0);
                    let request =
                        Request::Create { parent: ROOT_INO, name, perm, umask: 0, uid, gid, exclusive: true };
                    barrier.wait();
                    usize::from(matches!(client.ask(request), Reply::Opened(_)))
                })
            });
            tries.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(winners, 1, "round {round}");
    }
}

#[test]
fn a_second_server_leaves_the_first_alone() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    let client = connect(&server, ProviderKind::Shm);
    for address in server.addresses() {
        let config = Config {
            listen: vec![address.clone()],
            allow_without_keys: true,
            allow_mixed_atomics: true,
            ..Config::new(16 << 20)
        };
        let error = Server::start(config).unwrap_err();
        assert!(matches!(error, StartError::Host(_)), "{error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    client.create(b"still works");
    connect(&server, ProviderKind::Shm);
    drop(client);
    server.shutdown().unwrap();
    assert!(!directory.path().join("rfs.sock").exists());
    // The socket's path is free again.
    start(&directory);
}
