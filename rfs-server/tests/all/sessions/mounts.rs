//! Mounts that reconnect, over every provider: the state that they find, and the time that they
//! have.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{ProviderKind, Session};
use rfs_proto::{
    Attached, Errno, Identity, LockClass, LockKind, LockRange, Opened, ROOT_INO, Reply, Request, VERSION,
    encode_request,
};
use rfs_server::Server;

use crate::common::{self, Client, ask, session, start, start_with, tests_rdma};

const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn providers() -> Vec<ProviderKind> {
    let all = [ProviderKind::Shm, ProviderKind::Tcp, ProviderKind::Rdma];
    all.into_iter().filter(|kind| *kind != ProviderKind::Rdma || tests_rdma()).collect()
}

fn attach(session: &Session, mount: u8) -> Reply {
    let mount = Some(Identity([mount; 16]));
    let attach =
        Request::Attach { version: VERSION, client: "test", export: "", keeps: true, alone: false, mount };
    ask(session, attach)
}

/// Attaches as that mount, as soon as its previous session allows it.
fn mount(server: &Server, provider: ProviderKind, number: u8) -> Client {
    let session = session(server, provider);
    let give_up = Instant::now() + WAIT_LIMIT;
    loop {
        match attach(&session, number) {
            Reply::Attached(attached) => return Client { session, attached },
            Reply::Ending if Instant::now() < give_up => thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?}"),
        }
    }
}

fn once(session: &Arc<Session>, number: (u32, u64), request: Request<'_>) -> Reply {
    let mut bytes = Vec::new();
    encode_request(&request, &mut bytes);
    ask(session, Request::Once { slot: number.0, sequence: number.1, request: &bytes })
}

fn create(name: &[u8]) -> Request<'_> {
    Request::Create { parent: ROOT_INO, name, perm: 0o644, umask: 0, uid: 0, gid: 0, exclusive: true }
}

fn lock(ino: u64) -> Request<'static> {
    Request::Lock {
        ino,
        owner: 1,
        class: LockClass::Flock,
        kind: LockKind::Exclusive,
        range: LockRange::ALL,
        pid: 1,
        ticket: None,
    }
}

#[test]
fn a_mount_that_reconnects_finds_its_state() {
    for provider in providers() {
        let dir = tempfile::tempdir().unwrap();
        let server = start(&dir);
        let one = mount(&server, provider, 1);
        let Reply::Opened(made) = once(&one.session, (0, 1), create(b"a")) else { panic!() };
        let ino = made.attr.ino;
        assert!(matches!(ask(&one.session, lock(ino)), Reply::Locked(_)));
        assert_eq!(ask(&one.session, Request::Unlink { parent: ROOT_INO, name: b"a" }), Reply::Done);
        // In round 0 the previous session is still there and is ended for the new one. In round 1
        // it has ended.
        let mut before = one;
        for round in 0..2 {
            if round == 1 {
                before.session.close(std::time::Duration::ZERO);
            }
            let back = mount(&server, provider, 1);
            let Attached { resumed, session, memory, starts, .. } = back.attached;
            assert!(resumed, "{provider}");
            let was = before.attached;
            assert_eq!((session, memory, starts), (was.session, was.memory, was.starts));
            // The stored reply is returned, and no second file is made.
            let Reply::Opened(Opened { attr, .. }) = once(&back.session, (0, 1), create(b"a")) else {
                panic!()
            };
            assert_eq!(attr.ino, ino);
            assert!(matches!(ask(&back.session, Request::Layout { ino, offset: 0 }), Reply::Layout(_)));
            let other = common::connect(&server, provider, false);
            assert_eq!(
                other.ask(Request::Lookup { parent: ROOT_INO, name: b"a" }),
                Reply::Error(Errno::ENOENT)
            );
            before = back;
        }
        // No second session can be the same mount.
        assert_eq!(attach(&before.session, 1), Reply::Error(Errno::EPROTO), "it has attached");
        server.shutdown().unwrap();
    }
}

#[test]
fn a_mount_that_detaches_is_not_waited_for() {
    for provider in providers() {
        let dir = tempfile::tempdir().unwrap();
        let server = start(&dir);
        let one = mount(&server, provider, 1);
        let Reply::Opened(made) = once(&one.session, (0, 1), create(b"a")) else { panic!() };
        assert!(matches!(ask(&one.session, lock(made.attr.ino)), Reply::Locked(_)));
        assert_eq!(ask(&one.session, Request::Detach), Reply::Done);
        one.session.close(std::time::Duration::ZERO);
        let give_up = Instant::now() + WAIT_LIMIT;
        while server.stats().sessions > 0 {
            assert!(Instant::now() < give_up);
            thread::sleep(Duration::from_millis(1));
        }
        let back = mount(&server, provider, 1);
        assert!(!back.attached.resumed);
        assert_eq!(
            once(&back.session, (0, 1), create(b"a")),
            Reply::Error(Errno::EEXIST),
            "its replies are gone, too"
        );
    }
}

#[test]
fn a_mount_may_reconnect_during_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_with(&dir, |config| {
        config.fencing.lease = Some(Duration::from_millis(50));
        config.recall_timeout = Some(Duration::from_millis(25));
    });
    let one = mount(&server, ProviderKind::Tcp, 1);
    let Reply::Opened(made) = once(&one.session, (0, 1), create(b"a")) else { panic!() };
    assert!(matches!(ask(&one.session, lock(made.attr.ino)), Reply::Locked(_)));
    one.session.close(std::time::Duration::ZERO);
    let give_up = Instant::now() + WAIT_LIMIT;
    while server.stats().sessions > 0 {
        assert!(Instant::now() < give_up);
        thread::sleep(Duration::from_millis(1));
    }
    let back = mount(&server, ProviderKind::Tcp, 1);
    assert!(!back.attached.resumed);
    assert_eq!(
        ask(&back.session, Request::Layout { ino: made.attr.ino, offset: 0 }),
        Reply::Error(Errno::EBADF)
    );
}
