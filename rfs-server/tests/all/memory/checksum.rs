//! A server with checksums: the regions that sessions get, their rights, and memory that outlives
//! the server.

use std::{process::Command, thread, time::Duration};

use rdmabox::{Address, ProviderKind, RemoteAddr, Session};
use rfs_proto::{Errno, Extent, Growth, Reply, Request, Verified, checksum};
use rfs_server::{Config, Server, config::Persist};

use crate::common::{
    self, Client, attach, connect,
    program::{self, Running},
    start_with,
};

const PROVIDERS: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];
const B: usize = 4096;

fn write(client: &Client, ino: u64, offset: u64, data: &[u8]) -> Reply {
    let check = checksum::check_data(data);
    client.ask(Request::Write { ino, offset, check, growth: Growth::Reach, data })
}

fn extent(client: &Client, ino: u64) -> Extent {
    match client.ask(Request::Layout { ino, offset: 0 }) {
        Reply::Layout(layout) => layout.extents[0],
        other => panic!("{other:?}"),
    }
}

fn verified(client: &Client) -> Verified {
    match client.ask(Request::Verify { ino: 0, offset: 0 }) {
        Reply::Verified(verified) => verified,
        other => panic!("{other:?}"),
    }
}

fn checked(directory: &tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Server {
    start_with(directory, |config| {
        config.checksum = true;
        change(config);
    })
}

#[test]
fn clients_read_blocks_and_words_and_write_neither() {
    let directory = tempfile::tempdir().unwrap();
    let server = checked(&directory, |_| {});
    for provider in PROVIDERS {
        let client = connect(&server, provider, false);
        let (arena, sums) = (client.attached.arena, client.attached.sums.unwrap());
        assert_eq!(sums.len, arena.len / 512);
        let ino = client.create(&common::name(provider)).attr.ino;
        let data = [7; B + 100];
        assert_eq!(write(&client, ino, 0, &data), Reply::Done);
        let place = extent(&client, ino).arena;
        let at = |region: rfs_proto::RegionRef, offset| RemoteAddr {
            addr: region.addr + offset,
            rkey: region.rkey,
        };
        let (mut blocks, mut words) = ([0; 2 * B], [0; 16]);
        client.session.read(at(arena, place), &mut blocks).unwrap();
        client.session.read(at(sums, checksum::place(place)), &mut words).unwrap();
        assert!(blocks[..data.len()] == data && blocks[data.len()..].iter().all(|&byte| byte == 0));
        for (word, block) in words.chunks_exact(8).zip(blocks.chunks_exact(B)) {
            let word = checksum::Word(u64::from_le_bytes(word.try_into().unwrap()));
            assert!(word.fits(block) && word.version() >= 2);
        }
        // Each refused operation ends its queue pair, so each gets its own session.
        for (region, offset) in [(arena, place), (sums, checksum::place(place))] {
            let session = connect(&server, provider, false).session;
            assert!(session.write(at(region, offset), b"12345678").is_err(), "{provider}");
        }
        client.session.read(at(arena, place), &mut blocks).unwrap();
        assert!(blocks[..data.len()] == data);
        assert_eq!(verified(&client).bad, []);
        assert!(matches!(client.ask(Request::Stats), Reply::Stats(_)));
    }
}

#[test]
fn memory_keeps_its_checksums_and_requires_the_same_option() {
    let directory = tempfile::tempdir().unwrap();
    let memory = directory.path().join("memory");
    let ino = {
        let server = checked(&directory, |config| config.memory_dir = Some(memory.clone()));
        let client = connect(&server, ProviderKind::Shm, false);
        let ino = client.create(b"a").attr.ino;
        assert_eq!(write(&client, ino, 0, &[7; 3 * B]), Reply::Done);
        drop(client);
        server.shutdown().unwrap();
        ino
    };
    let place = {
        let server = checked(&directory, |config| config.memory_dir = Some(memory.clone()));
        let client = connect(&server, ProviderKind::Shm, false);
        assert_eq!((verified(&client).blocks, verified(&client).bad), (3, vec![]));
        assert!(matches!(client.ask(Request::Open { ino, write: true }), Reply::Opened(_)));
        let place = extent(&client, ino).arena;
        drop(client);
        server.shutdown().unwrap();
        place
    };
    // A bit flips while no server runs. A killed server has left another block half written.
    let arena = memory.join("rfs/arena");
    let mut bytes = std::fs::read(&arena).unwrap();
    bytes[place as usize + 5] ^= 4;
    bytes[place as usize + 2 * B] ^= 4;
    std::fs::write(&arena, &bytes).unwrap();
    let sums = memory.join("rfs/sums");
    let mut words = std::fs::read(&sums).unwrap();
    let open = checksum::place(place + 2 * B as u64) as usize + 4;
    words[open] |= 1;
    std::fs::write(&sums, &words).unwrap();
    let state = memory.join("rfs/state");
    unclean(&state);
    let server = checked(&directory, |config| config.memory_dir = Some(memory.clone()));
    let client = connect(&server, ProviderKind::Shm, false);
    let bad = verified(&client).bad;
    let found: Vec<(u64, u64, &[u8])> = bad.iter().map(|bad| (bad.ino, bad.offset, &bad.path[..])).collect();
    assert_eq!(found, [(ino, 0, &b"/a"[..])], "the open one is settled");
    assert!(matches!(client.ask(Request::Open { ino, write: true }), Reply::Opened(_)));
    assert_eq!(write(&client, ino, 1, b"x"), Reply::Error(Errno::EIO));
    assert_eq!(write(&client, ino, 0, &[8; B]), Reply::Done);
    assert_eq!(verified(&client).bad, []);
    drop(client);
    server.shutdown().unwrap();
    let plain = Config { memory_dir: Some(memory), listen: vec![], ..Config::new(16 << 20) };
    let listen = vec![rdmabox::Address::Unix(directory.path().join("other.sock"))];
    let refused = Server::start(Config { listen, ..plain }).map(drop).unwrap_err().to_string();
    assert!(refused.contains("--checksum as before"), "{refused}");
}

/// Makes the header say that the last server did not end in order.
fn unclean(state: &std::path::Path) {
    let mut bytes = std::fs::read(state).unwrap();
    // Erases the newer header. The older header was written at the start of that server.
    let turn = |at: usize| u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap());
    let newer = if turn(0) > turn(2048) { 0 } else { 2048 };
    bytes[newer..newer + 128].fill(0);
    std::fs::write(state, &bytes).unwrap();
}

/// The program is killed while blocks are written, zeroed and freed, at a different moment each
/// time.
#[test]
fn a_killed_server_leaves_no_block_with_a_wrong_checksum() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let socket = directory.path().join("sock");
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        program::piped(&mut command);
        command.args(["--memory=16M", "--inodes=100", "--checksum", "--listen"]);
        command.arg(format!("unix:{}", socket.display()));
        command.arg("--memory-dir").arg(directory.path().join("memory"));
        Running::start(&mut command)
    };
    let options = Session::builder().provider(ProviderKind::Shm).into_options();
    let connect = || {
        let session = Session::connect(&Address::Unix(socket.clone()), &options).unwrap();
        let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
        Client { session, attached }
    };
    for turn in 0..12_u8 {
        let mut server = start();
        let client = connect();
        assert_eq!(verified(&client).bad, [], "after {turn} kills");
        let ino = client.create(b"file").attr.ino;
        let writer = thread::spawn(move || {
            // Until the server is killed.
            for number in 0.. {
                let data = vec![turn ^ number as u8; 15 * B];
                let check = checksum::check_data(&data);
                let offset = number % 7 * 1000;
                let requests = [
                    Request::Write { ino, offset, check, growth: Growth::Reach, data: &data },
                    Request::Fallocate {
                        ino,
                        offset: 5000,
                        len: 20_000,
                        flags: rfs_proto::FallocateFlags::ZERO_RANGE,
                    },
                ];
                for request in requests {
                    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
                    rfs_proto::encode_request(&request, &mut bytes);
                    if client.session.call(&bytes, &mut reply).is_err() {
                        return number;
                    }
                }
            }
            0
        });
        thread::sleep(Duration::from_millis(20 + u64::from(turn)));
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        assert!(writer.join().unwrap() > 0);
    }
    let server = start();
    assert_eq!(verified(&connect()).bad, []);
    drop(server);
}

#[test]
fn a_restored_snapshot_has_checksums_if_requested() {
    let directory = tempfile::tempdir().unwrap();
    let snapshots = directory.path().join("snapshots");
    let data: Vec<u8> = (0..10 * B + 77).map(|at| at as u8 | 1).collect();
    for (turn, checksum) in [true, true, false, true].into_iter().enumerate() {
        let server = start_with(&directory, |config| {
            config.checksum = checksum;
            config.persist = Some(Persist { every: None, ..Persist::new(snapshots.clone()) });
        });
        let client = connect(&server, ProviderKind::Shm, false);
        let opened = client.create(b"a");
        if turn == 0 {
            assert_eq!(write(&client, opened.attr.ino, 0, &data), Reply::Done);
        } else {
            assert_eq!(opened.attr.size, data.len() as u64, "{turn}");
        }
        if checksum {
            let verified = verified(&client);
            assert_eq!((verified.blocks, verified.bad), (11, vec![]), "{turn}");
        }
        let place = extent(&client, opened.attr.ino).arena;
        let mut there = vec![0; data.len()];
        let arena = client.attached.arena;
        client.session.read(RemoteAddr { addr: arena.addr + place, rkey: arena.rkey }, &mut there).unwrap();
        assert!(there == data, "{turn}");
        drop(client);
        server.shutdown().unwrap();
    }
}

/// A snapshot must not give a bad block a valid checksum.
#[test]
fn a_bad_block_is_not_copied_into_a_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    let start = |memory: &std::path::Path| {
        checked(&directory, |config| {
            config.memory_dir = Some(memory.to_owned());
            config.persist =
                Some(Persist { every: None, ..Persist::new(directory.path().join("snapshots")) });
        })
    };
    let server = start(&first);
    let client = connect(&server, ProviderKind::Shm, false);
    let ino = client.create(b"a").attr.ino;
    assert_eq!(write(&client, ino, 0, &[7; 5 * B]), Reply::Done);
    let place = extent(&client, ino).arena;
    let arena = std::fs::OpenOptions::new().write(true).open(first.join("rfs/arena")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&arena, &[6], place + 2 * B as u64 + 99).unwrap();
    let bad = verified(&client).bad;
    assert_eq!(bad.iter().map(|bad| bad.offset).collect::<Vec<_>>(), [2 * B as u64]);
    drop(client);
    server.shutdown().unwrap();
    let server = start(&second);
    let client = connect(&server, ProviderKind::Shm, false);
    assert_eq!(verified(&client).bad, bad);
    drop(client);
    server.shutdown().unwrap();
}
