//! Exactly-once requests, and mounts that reconnect.

use super::*;
use crate::dispatch::state::outcome::{DeferredReply, HeldReply};

const MOUNT: Identity = Identity([7; 16]);

fn mount(f: &Fixture, id: u64) -> Client<'_> {
    f.dispatcher.attachments().began(id, regions());
    let client = Client { fixture: f, id };
    let attach = Request::Attach {
        version: VERSION,
        client: "test",
        export: "",
        keeps: true,
        alone: false,
        mount: Some(MOUNT),
    };
    assert!(matches!(client.ask(attach), Reply::Attached(Attached { resumed: false, starts: 1, .. })));
    client
}

fn once(client: &Client<'_>, number: (u32, u64), request: Request<'_>) -> Reply {
    match client.fixture.dispatcher.handle_once(client.id, number, request) {
        Outcome::Now(reply) => reply,
        Outcome::Deferred(_) => panic!("{request:?} is deferred"),
    }
}

fn create(name: &[u8]) -> Request<'_> {
    Request::Create { parent: ROOT_INO, name, perm: 0o644, umask: 0, uid: 0, gid: 0, exclusive: true }
}

#[test]
fn a_repeated_request_changes_nothing_and_gets_the_same_reply() {
    let f = fixture(64, 16);
    let client = mount(&f, 1);
    let made = once(&client, (0, 1), create(b"a"));
    assert!(matches!(made, Reply::Opened(_)));
    assert_eq!(once(&client, (0, 1), create(b"a")), made);
    let Reply::Opened(Opened { attr: Attr { ino, .. }, .. }) = made else { panic!() };
    // The file is opened only once.
    assert_eq!(once(&client, (1, 1), Request::Close { ino }), Reply::Done);
    assert_eq!(once(&client, (1, 1), Request::Close { ino }), Reply::Done);
    assert_eq!(once(&client, (1, 2), Request::Close { ino }), Reply::Error(Errno::EBADF));
    let unlink = Request::Unlink { parent: ROOT_INO, name: b"a" };
    assert_eq!(once(&client, (0, 2), unlink), Reply::Done);
    assert_eq!(once(&client, (0, 2), unlink), Reply::Done);
    assert_eq!(once(&client, (0, 3), unlink), Reply::Error(Errno::ENOENT));
    assert_eq!(once(&client, (0, 3), unlink), Reply::Error(Errno::ENOENT));
    assert_eq!(once(&client, (0, 1), unlink), Reply::Error(Errno::EPROTO));
}

#[test]
fn only_mounts_that_reconnect_send_exactly_once_requests() {
    let f = fixture(64, 16);
    let plain = f.client(1);
    assert_eq!(once(&plain, (0, 1), create(b"a")), Reply::Error(Errno::EPROTO));
    assert_eq!(f.free_inodes(), 15);
}

#[test]
fn a_repeated_request_waits_for_the_same_recalls() {
    let f = fixture(64, 16);
    let (client, holder) = (mount(&f, 1), f.attached(2, true));
    assert_eq!(holder.ask(Request::Lookup { parent: ROOT_INO, name: b"d" }), Reply::Error(Errno::ENOENT));
    let make = Request::Mkdir { parent: ROOT_INO, name: b"d", perm: 0o700, umask: 0, uid: 0, gid: 0 };
    // Repeats the request. The result receives the deferred reply.
    let again = || match f.dispatcher.handle_once(client.id, (3, 9), make) {
        Outcome::Now(reply) => panic!("{reply:?} is not deferred"),
        Outcome::Deferred(held) => {
            let (send, reply) = mpsc::channel();
            f.dispatcher.redeem(held, Sender::new(move |told| send.send(told).unwrap()));
            reply
        }
    };
    drop(f.dispatcher.handle_once(client.id, (3, 9), make));
    let reply = again();
    assert!(reply.try_recv().is_err());
    let Reply::Recalls(recalls) = holder.ask(Request::Recalls { done: 0 }) else { panic!() };
    drop(holder.start(Request::Recalls { done: recalls.number }));
    let told = reply.try_recv().unwrap();
    assert!(matches!(told, Reply::Attr(_)));
    // The recall is acknowledged, so a repetition does not wait.
    assert_eq!(again().try_recv(), Ok(told));
}

#[test]
fn a_mount_that_reconnects_has_its_files_open() {
    let f = fixture(64, 16);
    let client = mount(&f, 1);
    let Reply::Opened(Opened { attr, .. }) = once(&client, (0, 1), create(b"a")) else { panic!() };
    let asks = client.start(Request::Grants);
    let again = f.dispatcher.attachments().resume(1, VERSION, regions());
    assert!(matches!(again, Reply::Attached(Attached { session: 1, resumed: true, .. })), "{again:?}");
    assert!(matches!(asks.try_recv(), Err(mpsc::TryRecvError::Disconnected)));
    assert!(matches!(client.ask(Request::Layout { ino: attr.ino, offset: 0 }), Reply::Layout(_)));
    assert!(f.dispatcher.attachments().is_attached(1));
    f.dispatcher.attachments().ended(1);
    assert!(!f.dispatcher.attachments().is_attached(1));
    assert_eq!(f.dispatcher.attachments().resume(1, VERSION, regions()), Reply::Error(Errno::EPROTO));
}

/// Catches a repetition that is refused, or executed, while its original is in execution.
#[test]
fn a_repetition_waits_for_its_original() {
    let f = fixture(64, 16);
    let client = mount(&f, 1);
    let (repeat, repeated) = mpsc::channel();
    // As over the next connection of the mount, while the original makes room.
    let again = |number| match f.dispatcher.handle_once(client.id, number, create(b"a")) {
        Outcome::Now(reply) => repeat.send(reply).unwrap(),
        Outcome::Deferred(held) => {
            let repeat = repeat.clone();
            f.dispatcher.redeem(held, Sender::new(move |reply| repeat.send(reply).unwrap()));
        }
    };
    let original = f.dispatcher.exactly_once().handle(client.id, (0, 1), &create(b"a"), || {
        again((0, 1));
        assert!(repeated.try_recv().is_err(), "the original has no reply yet");
        // A third connection: the repetition of the second one gets no reply.
        again((0, 1));
        f.dispatcher.handle(client.id, create(b"a"))
    });
    let Outcome::Now(original) = original else { panic!("{original:?}") };
    assert!(matches!(original, Reply::Opened(_)), "{original:?}");
    assert_eq!(repeated.try_recv(), Ok(original.clone()));
    assert!(repeated.try_recv().is_err());
    again((0, 1));
    assert_eq!(repeated.try_recv(), Ok(original));
    assert_eq!(f.free_inodes(), 14, "there is one file");
    // The reply is there before the repetition waits for it.
    let held = DeferredReply::Repeated(client.id, (0, 1));
    let repeat = repeat.clone();
    f.dispatcher.redeem(HeldReply(held), Sender::new(move |reply| repeat.send(reply).unwrap()));
    assert!(matches!(repeated.try_recv(), Ok(Reply::Opened(_))));
}
