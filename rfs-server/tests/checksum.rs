//! A server with checksums: what sessions are told, what they may do, and memory that outlives it.

mod common;

use common::{Client, connect, start_with};
use rdmabox::{ProviderKind, RemoteAddr};
use rfs_proto::{Errno, Extent, Growth, Reply, Request, Verified, checksum};
use rfs_server::{Config, Server};

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
        // Each refusal ends the queue pair that it came over.
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
fn memory_keeps_its_checksums_and_says_whether_it_has_any() {
    let directory = tempfile::tempdir().unwrap();
    let memory = directory.path().join("memory");
    let ino = {
        let server = checked(&directory, |config| config.memory_dir = Some(memory.clone()));
        let client = connect(&server, ProviderKind::Shm, false);
        let ino = client.create(b"a").attr.ino;
        assert_eq!(write(&client, ino, 0, &[7; 3 * B]), Reply::Done);
        drop(client);
        server.shutdown();
        ino
    };
    let place = {
        let server = checked(&directory, |config| config.memory_dir = Some(memory.clone()));
        let client = connect(&server, ProviderKind::Shm, false);
        assert_eq!((verified(&client).blocks, verified(&client).bad), (3, vec![]));
        assert!(matches!(client.ask(Request::Open { ino, write: true }), Reply::Opened(_)));
        let place = extent(&client, ino).arena;
        drop(client);
        server.shutdown();
        place
    };
    // A bit flips while nobody is there; and a server that was killed left a block half written.
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
    server.shutdown();
    let plain = Config { memory_dir: Some(memory), listen: vec![], ..Config::new(16 << 20) };
    let listen = vec![rdmabox::Address::Unix(directory.path().join("other.sock"))];
    let refused = Server::start(Config { listen, ..plain }).map(drop).unwrap_err().to_string();
    assert!(refused.contains("with checksums (--checksum), asked for are"), "{refused}");
}

/// Has the header say that the last server did not end in order: it was copied from while one ran.
fn unclean(state: &std::path::Path) {
    let mut bytes = std::fs::read(state).unwrap();
    // The newer of the two places goes; the one before it was written when that server began.
    let turn = |at: usize| u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap());
    let newer = if turn(0) > turn(2048) { 0 } else { 2048 };
    bytes[newer..newer + 128].fill(0);
    std::fs::write(state, &bytes).unwrap();
}
