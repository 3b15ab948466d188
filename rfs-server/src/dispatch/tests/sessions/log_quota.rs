//! Sessions that take all the log room that they can get. Their state in the log is bounded, the
//! log can always be rewritten, and other sessions go on.

use rfs_proto::{LockClass, LockKind, LockRange};

use super::*;
use super::{
    reconnect::{attach, back, once},
    recovery::{Object, World},
};
use crate::session::log_quota::{LogQuota, OPEN_BYTES, SESSION_BYTES, SLOT_BYTES};

/// A log with little room for sessions.
const SEGMENT: usize = 1 << 17;
const ROOM: u64 = SEGMENT as u64 / 8;

fn files(f: &Fixture, count: usize) -> Vec<u64> {
    let maker = f.client(99);
    let make = |at: usize| maker.create(&format!("{at}")).attr.ino;
    let inos: Vec<u64> = (0..count).map(make).collect();
    inos.iter().for_each(|&ino| maker.close(ino));
    f.dispatcher.attachments().ended(99);
    inos
}

/// Returns how often a request succeeds before it fails with `refused`.
fn until(refused: Errno, mut ask: impl FnMut(u64) -> Reply) -> u64 {
    for at in 0.. {
        match ask(at) {
            Reply::Error(errno) => {
                assert_eq!(errno, refused);
                return at;
            }
            _ => assert!(at < 100_000, "no end"),
        }
    }
    unreachable!()
}

fn lock(ino: u64, at: u64) -> Request<'static> {
    let (class, kind, range) =
        (LockClass::Record, LockKind::Exclusive, LockRange { first: 2 * at, last: 2 * at });
    Request::Lock { ino, owner: 1, class, kind, range, pid: 1, ticket: None }
}

/// Rewrites the log repeatedly: all state has to fit beside the changes that come meanwhile.
fn fits(f: &Fixture) {
    for _ in 0..4 {
        f.dispatcher.log_upkeep().write_log_anew().unwrap();
    }
}

#[test]
fn a_session_that_opens_all_files_is_refused_first() {
    let object = Object::with_segment(SEGMENT);
    let f = object.start(1, true).unwrap();
    let inos = files(&f, 190);
    let (greedy, other) = (attach(&f, 1, false), attach(&f, 2, false));
    let open = |ino| Request::Open { ino, write: false };
    let opened = until(Errno::ENFILE, |at| greedy.ask(open(inos[at as usize])));
    assert!((80..190).contains(&opened), "{opened}");
    // The session can open an open file again, and a refused create makes no file.
    greedy.opened(open(inos[0]));
    assert_eq!(greedy.error(create(ROOT_INO, "more", true)), Errno::ENFILE);
    assert_eq!(greedy.error(lookup(ROOT_INO, "more")), Errno::ENOENT);
    for &ino in &inos[..opened as usize / 2 - 4] {
        other.opened(open(ino));
    }
    other.close(other.create("its own").attr.ino);
    fits(&f);
    // Other sessions have taken room since, so the limit is lower.
    greedy.close(inos[0]);
    greedy.close(inos[0]);
    assert_eq!(greedy.error(open(inos[0])), Errno::ENFILE);
    let journal = |f: &Fixture| f.dispatcher.store.journal.as_ref().unwrap().quota.taken();
    let taken = 2 * SESSION_BYTES + (opened - 1 + opened / 2 - 4) * OPEN_BYTES;
    assert_eq!(journal(&f), taken);
    // The next server counts the same.
    let f = object.copy().start(2, false).unwrap();
    assert_eq!(journal(&f), taken);
    let (greedy, other) = (back(&f, 1), back(&f, 2));
    assert_eq!(greedy.error(open(inos[0])), Errno::ENFILE);
    inos[1..opened as usize * 3 / 4].iter().for_each(|&ino| greedy.close(ino));
    greedy.opened(open(inos[0]));
    f.dispatcher.attachments().ended(1);
    other.opened(open(inos[189]));
    f.dispatcher.attachments().ended(2);
    assert_eq!(journal(&f), 0);
}

#[test]
fn slots_parts_of_values_and_locks_are_bounded() {
    let object = Object::with_segment(SEGMENT);
    let f = object.start(1, true).unwrap();
    let ino = files(&f, 1)[0];
    let (greedy, other) = (attach(&f, 1, false), attach(&f, 2, false));
    for client in [&greedy, &other] {
        client.opened(Request::Open { ino, write: true });
    }
    let locks = until(Errno::ENOLCK, |at| greedy.ask(lock(ino, at)));
    assert_eq!(locks, LogQuota::locks(ROOM) as u64 / 2);
    assert_eq!(greedy.error(lock(ino, 5000)), Errno::ENOLCK);
    until(Errno::ENOLCK, |at| other.ask(lock(ino, 1000 + at)));
    let chmod = |perm| {
        let changes = SetAttr { perm: Some(perm), ..SetAttr::default() };
        Request::SetAttr { ino, changes }
    };
    // A slot that cannot exist is always refused, and takes no room.
    for _ in 0..2 * ROOM / SLOT_BYTES {
        assert_eq!(once(&greedy, (rfs_proto::SLOTS, 1), chmod(0o600)), Reply::Error(Errno::EPROTO));
    }
    let slots = until(Errno::ENOSPC, |at| once(&greedy, (at as u32, 1), chmod(0o600)));
    assert!(slots > 5 && slots < ROOM / SLOT_BYTES, "{slots}");
    // A request without room for its reply is not carried out. An existing slot can be used again.
    assert_eq!(once(&greedy, (slots as u32, 1), chmod(0o777)), Reply::Error(Errno::ENOSPC));
    assert_eq!(greedy.stat(ino).perm, 0o600);
    assert_eq!(once(&greedy, (255, 1), chmod(0o777)), Reply::Error(Errno::ENOSPC));
    assert!(matches!(once(&greedy, (0, 2), chmod(0o601)), Reply::Attr(_)));
    assert_eq!(greedy.error(Request::XattrPart { value: &[1; 20_000] }), Errno::ENOSPC);
    fits(&f);
    f.dispatcher.attachments().ended(1);
    assert!(matches!(once(&other, (3, 1), chmod(0o602)), Reply::Attr(_)));
    assert!(matches!(other.ask(lock(ino, 1)), Reply::Locked(_)));
    other.done(Request::XattrPart { value: b"abc" });
    other.done(rest(ino, b"user.a", b"def"));
}

#[test]
fn no_more_sessions_attach_than_the_log_has_room_for() {
    let object = Object::with_segment(SEGMENT);
    let f = object.start(1, true).unwrap();
    let attach = |id: u64| {
        f.dispatcher.attachments().began(id, regions());
        let mount = Some(Identity(u128::from(id).to_le_bytes()));
        let (version, client, export) = (VERSION, "", "");
        let attach = Request::Attach { version, client, export, keeps: false, alone: false, mount };
        Client { fixture: &f, id }.ask(attach)
    };
    let count = until(Errno::ENOSPC, |at| attach(1 + at));
    assert!((ROOM / SESSION_BYTES / 2..=ROOM / SESSION_BYTES).contains(&count), "{count}");
    fits(&f);
    let first = Client { fixture: &f, id: 1 };
    first.mkdir(ROOT_INO, "d");
    // A refused session takes no room, and an ended session returns its room.
    f.dispatcher.attachments().ended(count + 1);
    assert_eq!(attach(count + 2), Reply::Error(Errno::ENOSPC));
    f.dispatcher.attachments().ended(2);
    assert!(matches!(attach(count + 3), Reply::Attached(_)));
}

/// A change that came during a rewrite and did not fit is missing in the new log. No further
/// change may build on it.
#[test]
fn a_log_that_falls_behind_during_a_rewrite_stays_behind() {
    let object = Object::with_segment(1 << 14);
    let f = object.start(1, true).unwrap();
    let client = f.client(1);
    client.mkdir(ROOT_INO, "d");
    let journal = f.dispatcher.store.journal.as_ref().unwrap();
    let changes = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let then = journal.times_behind();
    journal.log().exchange();
    until(Errno::EIO, |_| client.ask(Request::SetAttr { ino: ROOT_INO, changes }));
    journal.caught_up(then);
    assert!(journal.is_behind());
    // The next rewrite describes the change.
    f.dispatcher.log_upkeep().write_log_anew().unwrap();
    assert!(!journal.is_behind());
    // The log now contains much of the state twice.
    assert!(f.dispatcher.log_upkeep().has_long_log());
    f.dispatcher.log_upkeep().write_log_anew().unwrap();
    client.mkdir(ROOT_INO, "e");
    let world = World::new(object.copy().start(2, false).unwrap());
    assert_eq!(world.view().len(), 3);
}
