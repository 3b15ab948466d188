//! Mounts that reconnect to the next server: they keep their state, and no request is carried out
//! twice.

use proptest::prelude::*;
use rfs_proto::{Copied, Growth, LockClass, LockKind, LockRange, Locked, Recall, Recalls, XattrSet};

use super::recovery::{Object, torn, watch};
use super::*;

pub(super) fn attach(f: &Fixture, id: u64, keeps: bool) -> Client<'_> {
    f.dispatcher.attachments().began(id, regions());
    let client = Client { fixture: f, id };
    let mount = Some(Identity([id as u8; 16]));
    let attach = Request::Attach { version: VERSION, client: "test", export: "", keeps, alone: false, mount };
    assert!(matches!(client.ask(attach), Reply::Attached(Attached { resumed: false, .. })));
    client
}

/// Reconnects a mount to another server.
pub(super) fn back(f: &Fixture, id: u64) -> Client<'_> {
    let reply = f.dispatcher.attachments().resume(id, VERSION, regions());
    assert!(
        matches!(reply, Reply::Attached(Attached { resumed: true, session, .. }) if session == id),
        "{reply:?}"
    );
    Client { fixture: f, id }
}

pub(super) fn once(client: &Client<'_>, number: (u32, u64), request: Request<'_>) -> Reply {
    match client.fixture.dispatcher.handle_once(client.id, number, request) {
        Outcome::Now(reply) => reply,
        Outcome::Deferred(_) => panic!("{request:?} is deferred"),
    }
}

fn later(client: &Client<'_>, number: (u32, u64), request: Request<'_>) -> mpsc::Receiver<Reply> {
    let (sender, receiver) = mpsc::channel();
    match client.fixture.dispatcher.handle_once(client.id, number, request) {
        Outcome::Now(reply) => sender.send(reply).unwrap(),
        Outcome::Deferred(held) => {
            let send = Sender::new(move |reply| sender.send(reply).unwrap());
            client.fixture.dispatcher.redeem(held, send);
        }
    }
    receiver
}

fn lock(ino: u64, owner: u64, kind: LockKind, ticket: Option<u64>) -> Request<'static> {
    let (class, range) = (LockClass::Flock, LockRange::ALL);
    Request::Lock { ino, owner, class, kind, range, pid: 7, ticket }
}

const MKDIR: Request<'_> =
    Request::Mkdir { parent: ROOT_INO, name: b"d", perm: 0o700, umask: 0, uid: 0, gid: 0 };

/// Kills the server and starts the next one. With `anew`, the log is rewritten before.
pub(super) fn killed(object: &Object, f: &Fixture, starts: u64, anew: bool) -> (Object, Fixture) {
    if anew {
        f.dispatcher.log_upkeep().write_log_anew().unwrap();
    }
    let object = object.copy();
    let next = object.start(starts, false).unwrap();
    (object, next)
}

#[test]
fn files_stay_open_and_go_with_the_last_close() {
    for anew in [false, true] {
        let object = Object::new();
        let f = object.start(1, true).unwrap();
        let one = attach(&f, 1, false);
        let free = (f.free_blocks(), f.free_inodes());
        let ino = one.create("f").attr.ino;
        one.ask(Request::Open { ino, write: false });
        one.allocate(ino, 0, 3 * B);
        one.unlink("f");
        let (object, f) = killed(&object, &f, 2, anew);
        let one = back(&f, 1);
        assert!(!f.dispatcher.previous_mounts().has_abandoned());
        assert_eq!(one.layout(Request::Layout { ino, offset: 0 }).extents.len(), 1);
        one.close(ino);
        let (_object, f) = killed(&object, &f, 3, anew);
        let one = back(&f, 1);
        assert_eq!((f.free_blocks(), f.free_inodes()), (free.0 - 3, free.1 - 1));
        one.close(ino);
        assert_eq!(one.error(Request::Close { ino }), Errno::EBADF);
        assert_eq!((f.free_blocks(), f.free_inodes()), free);
    }
}

#[test]
fn a_session_that_is_given_up_leaves_nothing() {
    let object = Object::new();
    let f = object.start(1, true).unwrap();
    let one = attach(&f, 1, false);
    let free = (f.free_blocks(), f.free_inodes());
    let ino = one.create("f").attr.ino;
    one.allocate(ino, 0, 3 * B);
    one.ask(lock(ino, 5, LockKind::Exclusive, None));
    one.unlink("f");
    let (object, f) = killed(&object, &f, 2, false);
    let [awaited] = f.dispatcher.previous_mounts().awaited()[..] else {
        panic!("{:?}", f.dispatcher.previous_mounts().awaited())
    };
    assert_eq!((awaited.session, awaited.mount), (1, Identity([1; 16])));
    f.dispatcher.attachments().ended(1);
    assert_eq!((f.free_blocks(), f.free_inodes()), free);
    let (_object, f) = killed(&object, &f, 3, false);
    assert_eq!(f.dispatcher.previous_mounts().awaited(), []);
    assert!(!f.dispatcher.previous_mounts().has_abandoned());
    assert_eq!((f.free_blocks(), f.free_inodes()), free);
}

#[test]
fn space_stays_in_quarantine_while_sessions_that_do_not_reconnect_may_write() {
    let object = Object::new();
    let f = object.start(1, true).unwrap();
    let stranger = f.client(9);
    let ino = stranger.create("f").attr.ino;
    stranger.allocate(ino, 0, 3 * B);
    let (object, f) = killed(&object, &f, 2, true);
    assert!(f.dispatcher.previous_mounts().has_abandoned());
    let free = f.free_blocks();
    attach(&f, 1, false).unlink("f");
    assert_eq!(f.free_blocks(), free, "a client may be writing there");
    // The next server waits for that client, too.
    let (object, f) = killed(&object, &f, 3, true);
    assert!(f.dispatcher.previous_mounts().has_abandoned());
    f.dispatcher.log_upkeep().before_is_over();
    assert_eq!(f.free_blocks(), free + 3);
    let (_object, f) = killed(&object, &f, 4, false);
    assert!(!f.dispatcher.previous_mounts().has_abandoned());
    assert_eq!(f.free_blocks(), free + 3);
}

#[test]
fn space_waits_for_the_sessions_that_can_reach_it() {
    for anew in [false, true] {
        let object = Object::new();
        let f = object.start(1, true).unwrap();
        let (one, two) = (attach(&f, 1, false), attach(&f, 2, false));
        let free = f.free_blocks();
        let ino = one.create("f").attr.ino;
        two.ask(Request::Open { ino, write: true });
        one.allocate(ino, 0, 3 * B);
        one.truncate(ino, 3 * B);
        one.truncate(ino, 1);
        assert_eq!(f.free_blocks(), free - 3, "the other session can reach it");
        let (object, f) = killed(&object, &f, 2, anew);
        let two = back(&f, 2);
        assert_eq!(f.free_blocks(), free - 3);
        two.close(ino);
        assert_eq!(f.free_blocks(), free - 1);
        let (_object, f) = killed(&object, &f, 3, anew);
        assert_eq!(f.free_blocks(), free - 1);
    }
}

#[test]
fn a_session_that_reconnects_returns_its_old_layouts() {
    for keeps in [false, true] {
        let object = Object::new();
        let f = object.start(1, true).unwrap();
        let (one, two) = (attach(&f, 1, keeps), attach(&f, 2, false));
        let free = f.free_blocks();
        let ino = two.create("f").attr.ino;
        two.allocate(ino, 0, 3 * B);
        two.truncate(ino, 3 * B);
        one.opened(Request::Open { ino, write: false });
        let truncated =
            two.start(Request::SetAttr { ino, changes: SetAttr { size: Some(0), ..SetAttr::default() } });
        // A session without recalls gets none, and keeps the space from others until it closes.
        assert_eq!((truncated.try_recv().is_ok(), f.free_blocks()), (!keeps, free - 3));
        let (_object, f) = killed(&object, &f, 2, false);
        let one = back(&f, 1);
        assert_eq!(f.free_blocks(), free - 3);
        let Reply::Recalls(Recalls { number, recalls }) = one.ask(Request::Recalls { done: 0 }) else {
            panic!()
        };
        assert_eq!(recalls, [Recall::All]);
        drop(one.start(Request::Recalls { done: number }));
        assert_eq!(f.free_blocks(), free);
    }
}

#[test]
fn locks_are_kept_and_blocked_requests_are_repeated() {
    for anew in [false, true] {
        let object = Object::new();
        let f = object.start(1, true).unwrap();
        let (one, two) = (attach(&f, 1, false), attach(&f, 2, false));
        let ino = one.create("f").attr.ino;
        two.ask(Request::Open { ino, write: true });
        assert!(matches!(once(&one, (0, 1), lock(ino, 5, LockKind::Exclusive, None)), Reply::Locked(_)));
        assert_eq!(once(&two, (0, 1), lock(ino, 6, LockKind::Shared, Some(3))), Reply::Waits);
        let (object, f) = killed(&object, &f, 2, anew);
        let (one, two) = (back(&f, 1), back(&f, 2));
        assert_eq!(two.ask(Request::Grants), Reply::AskAgain);
        let told = two.start(Request::Grants);
        for _ in 0..2 {
            // A repeated request has the same effect.
            assert_eq!(two.ask(lock(ino, 6, LockKind::Shared, Some(3))), Reply::Waits);
        }
        assert_eq!(two.error(lock(ino, 6, LockKind::Exclusive, Some(3))), Errno::EINVAL);
        assert!(told.try_recv().is_err());
        assert_eq!(once(&one, (0, 2), lock(ino, 5, LockKind::Unlock, None)), Reply::Done);
        assert!(matches!(told.try_recv(), Ok(Reply::Grants(granted)) if granted[0].ticket == 3));
        // The session holds the lock, even if it has not received the grant.
        let (_object, f) = killed(&object, &f, 3, anew);
        let (one, two) = (back(&f, 1), back(&f, 2));
        assert_eq!(one.error(lock(ino, 5, LockKind::Exclusive, None)), Errno::EAGAIN);
        assert!(matches!(two.ask(lock(ino, 6, LockKind::Shared, Some(3))), Reply::Locked(_)));
        two.close(ino);
        assert!(matches!(one.ask(lock(ino, 5, LockKind::Exclusive, None)), Reply::Locked(_)));
    }
}

#[test]
fn changes_wait_until_sessions_with_unknown_caches_have_dropped_everything() {
    let object = Object::new();
    let f = object.start(1, true).unwrap();
    let (one, two) = (attach(&f, 1, true), attach(&f, 2, true));
    let open = one.create("f").attr.ino;
    assert_eq!(once(&one, (2, 1), Request::Close { ino: open }), Reply::Done);
    assert_eq!(two.error(lookup(ROOT_INO, "d")), Errno::ENOENT);
    let made = later(&one, (0, 1), MKDIR);
    let Reply::Recalls(recalls) = two.ask(Request::Recalls { done: 0 }) else { panic!() };
    assert_eq!(recalls.number, 1);
    assert!(made.try_recv().is_err());
    let (_object, f) = killed(&object, &f, 2, false);
    let one = back(&f, 1);
    // The reply to a repeated request is deferred, too.
    let made = later(&one, (0, 1), MKDIR);
    let other = later(&one, (1, 1), Request::Rmdir { parent: ROOT_INO, name: b"d" });
    assert!(made.try_recv().is_err() && other.try_recv().is_err());
    // A close is not deferred, not even a repeated one.
    assert_eq!(once(&one, (2, 1), Request::Close { ino: open }), Reply::Done);
    let two = back(&f, 2);
    // The session has received the previous reply, and continues its numbers.
    let Reply::Recalls(Recalls { number, recalls }) = two.ask(Request::Recalls { done: 1 }) else { panic!() };
    // The server does not know which inodes this session knows. So the session receives the
    // unlinked inode.
    let d = Recall::Unlinked { ino: 3 };
    assert_eq!((number, recalls), (2, vec![Recall::All, d.clone()]));
    assert!(made.try_recv().is_err() && other.try_recv().is_err());
    drop(two.start(Request::Recalls { done: number }));
    assert!(matches!(made.try_recv(), Ok(Reply::Attr(_))));
    assert_eq!(other.try_recv(), Ok(Reply::Unlinked(3)));
    // The session's own cache is recalled, too: it may have missed a change.
    let Reply::Recalls(recalls) = one.ask(Request::Recalls { done: 0 }) else { panic!() };
    assert_eq!(recalls.recalls, [Recall::All, d]);
}

#[test]
fn a_value_in_parts_is_whole() {
    for anew in [false, true] {
        let object = Object::new();
        let f = object.start(1, true).unwrap();
        let one = attach(&f, 1, false);
        one.done(Request::XattrPart { value: b"abc" });
        let (_object, f) = killed(&object, &f, 2, anew);
        let one = back(&f, 1);
        let (ino, name) = (ROOT_INO, &b"user.a"[..]);
        one.done(rest(ino, name, b"def"));
        let Reply::Value(value) = one.ask(Request::GetXattr { ino, name, offset: 0 }) else { panic!() };
        assert_eq!(value.bytes, b"abcdef");
    }
}

#[test]
fn an_interrupted_copy_has_copied_the_bytes_that_its_reply_reports() {
    const MORE: u64 = 300 << 10;
    let object = Arc::new(Object::new());
    let f = object.start(1, true).unwrap();
    let one = attach(&f, 1, false);
    let ino = one.create("f").attr.ino;
    // The source overlaps the destination's end: bytes that were copied first must not be copied
    // again.
    one.truncate(ino, MORE);
    let copies = watch(&object, &f);
    let copy = Request::Copy { from: ino, from_offset: 0, to: ino, to_offset: MORE, len: MORE };
    let Reply::Copied(Copied { bytes: MORE, .. }) = once(&one, (0, 1), copy) else { panic!() };
    for copy_of in &*copies.lock() {
        let f = copy_of.copy().start(2, false).unwrap();
        let one = back(&f, 1);
        let size = one.stat(ino).size;
        let Reply::Copied(Copied { bytes, .. }) = once(&one, (0, 1), copy) else { panic!() };
        let done = one.stat(ino).size;
        // The size may be ahead, as with a write.
        assert!(done == MORE + bytes || done == 2 * MORE, "{size} {bytes} {done}");
        assert!(bytes == MORE || (bytes, size) >= (256 << 10, MORE + bytes), "{size} {bytes}");
    }
}

#[derive(Clone, Debug)]
enum Ask {
    Create(u8, bool),
    Mkdir(u8),
    Link(u64, u8),
    Unlink(u8),
    Rmdir(u8),
    Rename(u8, u8, u32),
    Open(u64, bool),
    Close(u64),
    Lock(u64, u64, LockKind, u64),
    Chmod(u64, u32),
    Truncate(u64, u64),
    SetXattr(u64, bool),
    RemoveXattr(u64),
}

fn ask() -> impl Strategy<Value = Ask> {
    let name = || 0..3u8;
    let ino = || 2..7u64;
    let kind = prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive), Just(LockKind::Unlock)];
    prop_oneof![
        4 => (name(), any::<bool>()).prop_map(|(name, exclusive)| Ask::Create(name, exclusive)),
        1 => name().prop_map(Ask::Mkdir),
        1 => (ino(), name()).prop_map(|(ino, name)| Ask::Link(ino, name)),
        3 => name().prop_map(Ask::Unlink),
        1 => name().prop_map(Ask::Rmdir),
        3 => (name(), name(), prop_oneof![Just(0), Just(2), Just(WHITEOUT)])
            .prop_map(|(from, to, flags)| Ask::Rename(from, to, flags)),
        3 => (ino(), any::<bool>()).prop_map(|(ino, write)| Ask::Open(ino, write)),
        4 => ino().prop_map(Ask::Close),
        5 => (ino(), 0..2u64, kind, 0..4u64).prop_map(|(ino, owner, kind, at)| Ask::Lock(ino, owner, kind, at)),
        1 => (ino(), 0..0o1000u32).prop_map(|(ino, perm)| Ask::Chmod(ino, perm)),
        2 => (ino(), 0..3 * B).prop_map(|(ino, size)| Ask::Truncate(ino, size)),
        1 => (ino(), any::<bool>()).prop_map(|(ino, create)| Ask::SetXattr(ino, create)),
        1 => ino().prop_map(Ask::RemoveXattr),
    ]
}

impl Ask {
    fn request<'a>(&self, names: &'a [[u8; 1]; 3]) -> Request<'a> {
        let name = |at: u8| &names[usize::from(at)][..];
        let (parent, perm, umask, uid, gid) = (ROOT_INO, 0o644, 0, 0, 0);
        match *self {
            Ask::Create(at, exclusive) => {
                Request::Create { parent, name: name(at), perm, umask, uid, gid, exclusive }
            }
            Ask::Mkdir(at) => Request::Mkdir { parent, name: name(at), perm, umask, uid, gid },
            Ask::Link(ino, at) => Request::Link { ino, parent, name: name(at) },
            Ask::Unlink(at) => Request::Unlink { parent, name: name(at) },
            Ask::Rmdir(at) => Request::Rmdir { parent, name: name(at) },
            Ask::Rename(from, to, flags) => {
                let text = |at| std::str::from_utf8(name(at)).unwrap();
                rename_as((parent, text(from)), (parent, text(to)), flags)
            }
            Ask::Open(ino, write) => Request::Open { ino, write },
            Ask::Close(ino) => Request::Close { ino },
            Ask::Lock(ino, owner, kind, at) => {
                let range = LockRange { first: at, last: at + 2 };
                Request::Lock { ino, owner, class: LockClass::Record, kind, range, pid: 1, ticket: None }
            }
            Ask::Chmod(ino, perm) => {
                let changes = SetAttr { perm: Some(perm), ..SetAttr::default() };
                Request::SetAttr { ino, changes }
            }
            Ask::Truncate(ino, size) => {
                let changes = SetAttr { size: Some(size), ..SetAttr::default() };
                Request::SetAttr { ino, changes }
            }
            Ask::SetXattr(ino, create) => {
                let how = if create { XattrSet::Create } else { XattrSet::Any };
                let (name, value) = (&b"user.a"[..], &b"v"[..]);
                Request::SetXattr { ino, name, value, how, continued: false, drop_sgid: false, only_if: None }
            }
            Ask::RemoveXattr(ino) => Request::RemoveXattr { ino, name: b"user.a", only_if: None },
        }
    }
}

/// Removes the fields of a reply that differ between servers: times, generations, and the
/// record's slot.
fn comparable(mut reply: Reply) -> Reply {
    let plain = |attr: &mut Attr| {
        (attr.atime, attr.mtime, attr.ctime) = (0, 0, 0);
        (attr.layout_generation, attr.slot) = (0, 0);
    };
    match &mut reply {
        Reply::Attr(attr) => plain(attr),
        Reply::Opened(opened) => {
            plain(&mut opened.attr);
            opened.layout.generation = 0;
        }
        Reply::Locked(Locked { visits, .. }) => *visits = 0,
        _ => {}
    }
    reply
}

/// Returns the state of sessions and inodes as text.
fn held(f: &Fixture) -> String {
    let mut opens = Vec::new();
    f.dispatcher.store.each_shard(|meta| {
        let open_files = &meta.namespace.inodes_mut().only().open_files;
        opens.extend(open_files.all().map(|(session, ino)| (session, ino, open_files.of(session, ino))));
    });
    opens.sort_unstable();
    let mut locks: Vec<String> = f.dispatcher.store.locks().held().map(|lock| format!("{lock:?}")).collect();
    locks.sort_unstable();
    let client = Client { fixture: f, id: 1 };
    let page = client.page(ROOT_INO, 0, 100).entries.into_iter();
    let names: Vec<_> =
        page.map(|entry| (entry.name, entry.cookie, comparable(Reply::Attr(entry.attr)))).collect();
    format!("{opens:?} {locks:?} {names:?} {} {}", f.free_blocks(), f.free_inodes())
}

/// Makes the sessions forget all unlinked inodes. Sessions of the previous server may use all of
/// them. In the undisturbed run, the sessions never ask for recalls and may use none.
fn forget_all(f: &Fixture) {
    for id in [1, 2] {
        let mut held = Vec::new();
        f.dispatcher
            .store
            .each_shard(|meta| held.extend(meta.namespace.inodes_mut().only().orphans.held_by(id)));
        let inos: Vec<u8> = held.iter().flat_map(|ino| ino.to_le_bytes()).collect();
        Client { fixture: f, id }.done(Request::Forget { inos: &inos });
    }
}

/// Forgets the inode that a reply reports as unlinked.
fn forgotten(f: &Fixture, reply: Reply) -> Reply {
    let Reply::Unlinked(ino) = reply else { return reply };
    for id in [1, 2] {
        Client { fixture: f, id }.done(Request::Forget { inos: &ino.to_le_bytes() });
    }
    assert!(is_open(f, ino) || f.client(9).error(Request::GetAttr { ino }) == Errno::ESTALE);
    f.dispatcher.attachments().ended(9);
    Reply::Done
}

fn is_open(f: &Fixture, ino: u64) -> bool {
    let mut open = false;
    f.dispatcher.store.each_shard(|meta| open |= meta.namespace.inodes_mut().only().open_files.is_open(ino));
    open
}

proptest! {
    /// Two mounts send requests, and the server is killed from time to time, before a reply
    /// arrives. The result is the same as without kills.
    #[test]
    fn kills_do_not_change_the_result_of_a_run(
        steps in proptest::collection::vec(
            (ask(), 1..3u64, 0..3u32, proptest::option::weighted(0.3, any::<(prop::sample::Index, prop::sample::Index, bool)>())),
            1..40,
        ),
    ) {
        let names = [*b"a", *b"b", *b"c"];
        let undisturbed = {
            let object = Object::new();
            object.start(1, true).unwrap()
        };
        let mut object = Arc::new(Object::new());
        let mut f = object.start(1, true).unwrap();
        let (mut starts, mut sequence) = (1, 0);
        for f in [&f, &undisturbed] {
            for id in [1, 2] {
                attach(f, id, false);
            }
        }
        for (ask, id, slot, kill) in steps {
            sequence += 1;
            let (number, request) = ((slot, sequence), ask.request(&names));
            let expected = comparable(once(&Client { fixture: &undisturbed, id }, number, request));
            let Some((which, cut, anew)) = kill else {
                let reply = comparable(forgotten(&f, once(&Client { fixture: &f, id }, number, request)));
                prop_assert_eq!(reply, expected, "{:?}", ask);
                continue;
            };
            if anew {
                f.dispatcher.log_upkeep().write_log_anew().unwrap();
            }
            let before = object.copy();
            let copies = watch(&object, &f);
            let unheard = once(&Client { fixture: &f, id }, number, request);
            let unheard = if let Reply::Unlinked(_) = unheard { Reply::Done } else { comparable(unheard) };
            prop_assert_eq!(&unheard, &expected, "{:?}", ask);
            let next = {
                let copies = copies.lock();
                // Before, between, during and after the transactions.
                match which.index(copies.len() + 2) {
                    0 => before,
                    at if at > copies.len() => object.copy(),
                    at if at % 2 == 1 => torn(&copies[at - 1], &copies[at], &cut).0,
                    at => copies[at - 1].copy(),
                }
            };
            object = Arc::new(next);
            starts += 1;
            f = object.start(starts, false).unwrap();
            let client = back(&f, id);
            forget_all(&f);
            let reply = comparable(forgotten(&f, once(&client, number, request)));
            prop_assert_eq!(reply, expected, "{:?}", ask);
            prop_assert_eq!(held(&f), held(&undisturbed));
        }
        prop_assert_eq!(held(&f), held(&undisturbed));
    }
}

/// A server is killed after a file has grown by an append that is not in the log. The next server
/// gets the append again. It must not append twice, and must not leave a gap where its space was
/// lost.
#[test]
fn an_interrupted_append_is_not_made_twice() {
    let append = |offset, was, data| Request::Write {
        ino: 2,
        offset,
        check: rfs_proto::checksum::check_data(data),
        growth: Growth::From(was),
        data,
    };
    for (prefix, was) in [(&b"there"[..], 5), (&[7; 3 * B as usize - 5][..], 3 * B - 5)] {
        let object = Arc::new(Object::new());
        let f = object.start(1, true).unwrap();
        let one = attach(&f, 1, false);
        let two = attach(&f, 2, false);
        let opened = one.create("f");
        assert_eq!(opened.attr.ino, 2);
        two.opened(Request::Open { ino: 2, write: true });
        one.done(append(0, 0, prefix));
        // The client takes the end of the file for its append.
        let hold = opened.attr.slot as usize * record::LEN + record::APPENDER;
        f.table.write(hold, &record::appender(1, 3).to_le_bytes());
        let copies = watch(&object, &f);
        assert_eq!(once(&one, (1, 1), append(was, was, b"one line\n")), Reply::Done);
        let copies = std::mem::take(&mut *copies.lock());
        let before = copies.first().unwrap();
        let f = before.start(2, false).unwrap();
        let one = back(&f, 1);
        let two = back(&f, 2);
        assert_eq!(one.stat(2).size, was + 9, "killed too early for this test");
        // Session 2 does not hold the end, so this is not its append.
        assert_eq!(two.error(append(was, was, b"one line\n")), Errno::EAGAIN);
        // An append of other data is another append, if the data differs.
        if was == 5 {
            assert_eq!(one.error(append(was, was, b"two line\n")), Errno::EAGAIN);
        }
        assert_eq!(once(&one, (1, 1), append(was, was, b"one line\n")), Reply::Done);
        let layout = one.layout(Request::Layout { ino: 2, offset: 0 });
        assert_eq!(one.stat(2).size, was + 9);
        assert_eq!(one.read(&layout, 0, was + 9), [prefix, b"one line\n"].concat());
        // The next append is a new one.
        assert_eq!(one.error(append(was, was, b"two")), Errno::EAGAIN);
        one.done(append(was + 9, was + 9, b"two"));
    }
}
