//! Several exports of one server: each has its own state.

use std::{
    thread,
    time::{Duration, Instant},
};

use rdmabox::{ProviderKind, RemoteAddr, RequestError};
use rfs_proto::{
    BLOCK, Errno, InUse, OLDEST_VERSION, ROOT_INO, RegionRef, Reply, Request, StatFs, VERSION,
    refused_by_version,
};
use rfs_server::{Config, ExportConfig, Server};

use crate::common::{self, Client, attach, attach_alone, connect_to, session, start_with};

const PROVIDERS: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];

/// Starts a server with "small", of 256 blocks and 5 inodes, and "large", of 512 blocks and 100
/// inodes.
fn start(directory: &tempfile::TempDir) -> Server {
    start_with(directory, |config: &mut Config| {
        let export = |name: &str, blocks, inodes| ExportConfig {
            name: name.into(),
            memory: blocks * BLOCK,
            max: None,
            inodes: Some(inodes),
            root: config.root,
            eviction: Default::default(),
        };
        config.exports = vec![export("small", 256, 5), export("large", 512, 100)];
    })
}

fn totals(client: &Client) -> StatFs {
    match client.ask(Request::StatFs) {
        Reply::StatFs(totals) => totals,
        other => panic!("{other:?}"),
    }
}

fn look(client: &Client, name: &[u8]) -> Reply {
    client.ask(Request::Lookup { parent: ROOT_INO, name })
}

#[test]
fn names_space_and_inodes_are_an_exports_own() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    for provider in PROVIDERS {
        let [small, large] = ["small", "large"].map(|name| connect_to(&server, provider, name, false));
        let fresh = totals(&large);
        assert_eq!((fresh.blocks, fresh.blocks_free, fresh.inodes, fresh.inodes_free), (512, 512, 100, 99));
        let ino = small.create(b"f").attr.ino;
        assert_eq!(look(&large, b"f"), Reply::Error(Errno::ENOENT));
        assert!(matches!(look(&connect_to(&server, provider, "", false), b"f"), Reply::Attr(_)), "the first");

        // Space.
        let all = Request::Allocate { ino, offset: 0, len: 256 * BLOCK };
        assert!(matches!(small.ask(all), Reply::Layout(_)));
        let more = Request::Allocate { ino, offset: 256 * BLOCK, len: 1 };
        assert_eq!(small.ask(more), Reply::Error(Errno::ENOSPC));
        assert_eq!((totals(&small).blocks_free, totals(&large)), (0, fresh));
        // Inodes.
        for name in [b"b", b"c", b"d"] {
            small.create(name);
        }
        let perm = 0o700;
        let full = Request::Mkdir { parent: ROOT_INO, name: b"e", perm, umask: 0, uid: 0, gid: 0 };
        assert_eq!(small.ask(full), Reply::Error(Errno::ENOSPC));
        assert_eq!((totals(&small).inodes_free, totals(&large)), (0, fresh));
        assert_eq!(server.exports().map(|(name, _)| name).collect::<Vec<_>>(), ["small", "large"]);
        assert!(server.exports().map(|(_, totals)| totals).eq([totals(&small), totals(&large)]));

        // Another file of the same name.
        large.create(b"f");
        for name in [b"f", b"b", b"c", b"d"] {
            assert_eq!(small.ask(Request::Unlink { parent: ROOT_INO, name }), Reply::Done);
        }
        assert!(matches!(look(&large, b"f"), Reply::Attr(_)));
        // The end of a session closes its files in its export.
        assert_eq!(totals(&small).inodes_free, 0);
        drop(small);
        let again = connect_to(&server, provider, "small", false);
        while totals(&again).inodes_free < 4 {
            std::thread::yield_now();
        }
        assert_eq!(totals(&again).blocks_free, 256);
        assert_eq!(large.ask(Request::Unlink { parent: ROOT_INO, name: b"f" }), Reply::Done);
        drop((again, large));
        while server.stats().sessions > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_unknown_export_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    for provider in PROVIDERS {
        let session = session(&server, provider);
        assert_eq!(attach(&session, "medium", false), Reply::Error(Errno::ENOENT));
        assert_eq!(common::ask(&session, Request::StatFs), Reply::Error(Errno::EPROTO));
        assert!(matches!(attach(&session, "large", false), Reply::Attached(_)));
        // A session attaches only once.
        assert_eq!(attach(&session, "small", false), Reply::Error(Errno::EPROTO));
        let client = common::ask(&session, Request::StatFs);
        assert!(matches!(client, Reply::StatFs(StatFs { blocks: 512, .. })), "{client:?}");
    }
}

#[test]
fn a_client_of_another_version_gets_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    for provider in PROVIDERS {
        let session = session(&server, provider);
        let mut reply = Vec::new();
        let next = u8::try_from(VERSION + 1).unwrap();
        for rest in [&b""[..], b"\x01c", b"\xff\xff\xff\xff\xff and more"] {
            session.call(&[&[0, next], rest].concat(), &mut reply).unwrap();
            assert_eq!(refused_by_version(&reply), Some(VERSION));
        }
        assert!(matches!(attach(&session, "", false), Reply::Attached(_)));
        // A malformed message of this version ends its session.
        let session = common::session(&server, provider);
        assert!(session.call(&[0, next - 1, 0xff], &mut reply).is_err());
        assert!(session.call(&[0x12], &mut reply).is_err());
    }
}

/// Detects a server that refuses a client of the last release, or sends it a reply that it does not
/// know.
#[test]
fn a_client_one_version_back_attaches() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    for provider in PROVIDERS {
        let session = session(&server, provider);
        let (version, client, export) = (OLDEST_VERSION, "test", "");
        let attach = Request::Attach { version, client, export, keeps: false, alone: false, mount: None };
        assert!(matches!(common::ask(&session, attach), Reply::Attached(_)));
        assert_eq!(common::ask(&session, Request::Birth { ino: ROOT_INO }), Reply::Error(Errno::EPROTO));
    }
}

#[test]
fn keys_are_an_exports_own() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    let read = |client: &Client, region: RegionRef, rkey| {
        let mut bytes = [0; 8];
        client.session.read(RemoteAddr { addr: region.addr, rkey }, &mut bytes)
    };
    for provider in PROVIDERS {
        let [small, large] = ["small", "large"].map(|name| connect_to(&server, provider, name, false));
        let (its, other) = (small.attached, large.attached);
        assert_eq!(read(&small, its.arena, its.arena.rkey), Ok(()));
        // Each refused operation ends its queue pair; the session replaces it.
        for region in [other.arena, other.table] {
            for key in [its.arena.rkey, its.table.rkey] {
                let refused = read(&small, region, key);
                assert!(matches!(refused, Err(RequestError::Completion(_))), "{refused:?}");
            }
        }
        assert_eq!(read(&small, its.table, its.table.rkey), Ok(()));
    }
}

#[test]
fn nothing_is_recalled_across_exports() {
    let directory = tempfile::tempdir().unwrap();
    // No client here acknowledges a recall, and none is needed.
    let server = start(&directory);
    for provider in PROVIDERS {
        let [small, large] = ["small", "large"].map(|name| connect_to(&server, provider, name, true));
        assert_eq!(look(&small, b"x"), Reply::Error(Errno::ENOENT));
        large.create(b"x");
        assert_eq!(large.ask(Request::Unlink { parent: ROOT_INO, name: b"x" }), Reply::Done);
        assert_eq!(look(&small, b"x"), Reply::Error(Errno::ENOENT));
    }
}

#[test]
fn an_exclusive_mount_is_alone_until_its_session_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory);
    let eventually = |mut attach: Box<dyn FnMut() -> Reply + '_>| {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if matches!(attach(), Reply::Attached(_)) {
                return true;
            }
            thread::sleep(Duration::from_millis(2));
        }
        false
    };
    for provider in PROVIDERS {
        let other = connect_to(&server, provider, "small", true);
        let [one, two] = [(); 2].map(|()| session(&server, provider));
        let in_use = |alone| Reply::InUse(InUse { sessions: 1, alone });
        assert_eq!(attach_alone(&one, "small"), in_use(false));
        other.session.close(std::time::Duration::ZERO);
        assert!(eventually(Box::new(|| attach_alone(&one, "small"))), "the sessions have ended");
        assert_eq!([attach_alone(&two, "small"), attach(&two, "small", true)], [in_use(true), in_use(true)]);
        // Another export is another file system.
        let large = connect_to(&server, provider, "large", true);
        assert_eq!(totals(&large).blocks, 512);
        large.session.close(std::time::Duration::ZERO);
        one.close(std::time::Duration::ZERO);
        assert!(eventually(Box::new(|| attach(&two, "small", true))));
        two.close(std::time::Duration::ZERO);
        let last = session(&server, provider);
        assert!(eventually(Box::new(|| attach_alone(&last, "small"))));
        last.close(std::time::Duration::ZERO);
        let last = session(&server, provider);
        assert!(eventually(Box::new(|| attach(&last, "small", true))));
        last.close(std::time::Duration::ZERO);
    }
}
