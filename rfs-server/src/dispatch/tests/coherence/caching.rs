//! Cache rights of sessions, recalls that a change causes, and recalls that a reply waits for.

use rfs_proto::{FallocateFlags, FileKind, Recall, Recalls, SetTime, XattrSet};

use super::*;

const A: u64 = 2;
const OTHER: u64 = 3;
const A_FILE: u64 = 4;
const A_OTHER: u64 = 5;
const A_DIR: u64 = 6;
const B_FILE: u64 = 7;

/// Makes directories "a" with "file", "other" and "dir", and "b" with "file". Session 1 caches
/// all of them. Session 2 has the files of "a" open to read.
fn tree(fixture: &Fixture) -> [Client<'_>; 2] {
    let (holder, other) = (fixture.attached(1, true), fixture.attached(2, true));
    let ino = |made: Attr, expected| assert_eq!(made.ino, expected);
    ino(other.mkdir(ROOT_INO, "a"), A);
    ino(other.mkdir(ROOT_INO, "b"), OTHER);
    for (parent, name, expected) in
        [(A, "file", A_FILE), (A, "other", A_OTHER), (A, "dir", A_DIR), (OTHER, "file", B_FILE)]
    {
        match name {
            "dir" => ino(other.mkdir(parent, name), expected),
            _ => {
                ino(other.opened(create(parent, name, true)).attr, expected);
                other.close(expected);
            }
        }
    }
    for ino in [A_FILE, A_OTHER] {
        other.opened(Request::Open { ino, write: false });
    }
    for directory in [ROOT_INO, A, OTHER, A_DIR] {
        assert!(holder.keep(Request::GetAttr { ino: directory }));
        let page = holder.page(directory, 0, 100);
        assert!(page.entries.iter().all(|entry| entry.attr.marks.contains(Marks::KEEP)));
    }
    [holder, other]
}

fn mkdir(parent: u64, name: &'static [u8]) -> Request<'static> {
    Request::Mkdir { parent, name, perm: 0o700, umask: 0, uid: 0, gid: 0 }
}

fn move_(from: (u64, &'static str), to: (u64, &'static str)) -> Request<'static> {
    rename(from, to, RenameFlags::empty())
}

/// Checks the recalls that each request causes at a session that caches the whole tree.
fn assert_recalls(changes: &[(Request<'_>, &[Recall])]) {
    for &(request, expected) in changes {
        let fixture = fixture(64, 32);
        let [holder, other] = tree(&fixture);
        let asked = holder.recalls(0);
        let changed = other.start(request);
        if expected.is_empty() {
            changed.try_recv().unwrap_or_else(|_| panic!("{request:?} waits"));
            assert!(asked.try_recv().is_err(), "{request:?}");
            continue;
        }
        assert!(changed.try_recv().is_err(), "{request:?} does not wait");
        let mut recalls = told(&asked).recalls;
        let sorted = |recalls: &mut Vec<Recall>| recalls.sort_by_key(|recall| format!("{recall:?}"));
        assert_eq!(
            recalls.iter().position(|recall| matches!(recall, Recall::Name { .. })).unwrap_or(0),
            0,
            "names first"
        );
        let mut expected = expected.to_vec();
        sorted(&mut recalls);
        sorted(&mut expected);
        assert_eq!(recalls, expected, "{request:?}");
        let asked = holder.recalls(1);
        let reply = changed.try_recv().unwrap();
        assert!(!matches!(reply, Reply::Error(_)), "{request:?}: {reply:?}");
        assert!(asked.try_recv().is_err());
    }
}

#[test]
fn each_change_of_names_causes_its_recalls() {
    let exchange = |from, to| rename(from, to, RenameFlags::EXCHANGE);
    let mknod =
        Request::Mknod { parent: A, name: b"new", mode: 0o010_600, umask: 0, rdev: 0, uid: 0, gid: 0 };
    let symlink = Request::Symlink { parent: A, name: b"new", target: b"x", uid: 0, gid: 0 };
    assert_recalls(&[
        // Changes of names: the directory's attributes go with its name.
        (create(A, "new", false), &[name(A, "new")]),
        (mkdir(A, b"new"), &[name(A, "new")]),
        (mknod, &[name(A, "new")]),
        (symlink, &[name(A, "new")]),
        (Request::Link { ino: B_FILE, parent: A, name: b"new" }, &[name(A, "new"), attr(B_FILE)]),
        (Request::Unlink { parent: OTHER, name: b"file" }, &[name(OTHER, "file"), attr(B_FILE)]),
        (Request::Unlink { parent: A, name: b"file" }, &[name(A, "file"), attr(A_FILE)]),
        (Request::Rmdir { parent: A, name: b"dir" }, &[name(A, "dir"), attr(A_DIR), names(A_DIR)]),
        (move_((A, "file"), (A, "new")), &[name(A, "file"), name(A, "new"), attr(A_FILE)]),
        (move_((A, "file"), (OTHER, "new")), &[name(A, "file"), name(OTHER, "new"), attr(A_FILE)]),
        (
            move_((A, "file"), (OTHER, "file")),
            &[name(A, "file"), name(OTHER, "file"), attr(A_FILE), attr(B_FILE)],
        ),
        (
            exchange((A, "file"), (OTHER, "file")),
            &[name(A, "file"), name(OTHER, "file"), attr(A_FILE), attr(B_FILE)],
        ),
        (move_((A, "dir"), (A, "new")), &[name(A, "dir"), name(A, "new"), attr(A_DIR)]),
        (move_((A, "dir"), (OTHER, "new")), &[name(A, "dir"), name(OTHER, "new"), name(A_DIR, "..")]),
        (
            exchange((A, "dir"), (OTHER, "file")),
            &[name(A, "dir"), name(OTHER, "file"), name(A_DIR, ".."), attr(B_FILE)],
        ),
        // A whiteout at the old name is recalled as a change of that name.
        (
            rename_as((A, "file"), (OTHER, "file"), WHITEOUT),
            &[name(A, "file"), name(OTHER, "file"), attr(A_FILE), attr(B_FILE)],
        ),
        (rename_as((A, "dir"), (A, "new"), WHITEOUT), &[name(A, "dir"), name(A, "new"), attr(A_DIR)]),
        (move_((A, "file"), (A, "file")), &[]),
        (rename_as((A, "file"), (A, "file"), WHITEOUT), &[]),
    ]);
}

#[test]
fn each_change_of_attributes_causes_its_recalls() {
    let (how, value) = (XattrSet::Any, &b"v"[..]);
    let set_xattr = Request::SetXattr {
        ino: A,
        name: b"user.x",
        value,
        how,
        continued: false,
        drop_sgid: false,
        only_if: None,
    };
    assert_recalls(&[
        (set(A_FILE, SetAttr { perm: Some(0o600), ..SetAttr::default() }), &[attr(A_FILE)]),
        (set(A_FILE, SetAttr { uid: Some(7), ..SetAttr::default() }), &[owner(A_FILE)]),
        (set(A_FILE, SetAttr { gid: Some(7), ..SetAttr::default() }), &[owner(A_FILE)]),
        (
            set(A_FILE, SetAttr { gid: Some(7), size: Some(0), ..SetAttr::default() }),
            &[pages(A_FILE), owner(A_FILE)],
        ),
        (set(A_FILE, SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() }), &[attr(A_FILE)]),
        (set(A_FILE, SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() }), &[attr(A_FILE)]),
        (set(A, SetAttr::default()), &[attr(A)]),
        (set_xattr, &[attr(A)]),
    ]);
}

#[test]
fn each_change_of_bytes_causes_its_recalls() {
    let fallocate = Request::Fallocate { ino: A_FILE, offset: 0, len: 5, flags: FallocateFlags::empty() };
    assert_recalls(&[
        (set(A_FILE, SetAttr { size: Some(5), ..SetAttr::default() }), &[pages(A_FILE)]),
        (set(A_FILE, SetAttr { size: Some(0), ..SetAttr::default() }), &[pages(A_FILE)]),
        (fallocate, &[pages(A_FILE)]),
        (Request::Allocate { ino: A_FILE, offset: 0, len: 1 }, &[pages(A_FILE)]),
        (Request::Open { ino: A_FILE, write: true }, &[pages(A_FILE)]),
        (create(A, "file", false), &[pages(A_FILE)]),
    ]);
}

#[test]
fn a_request_that_changes_nothing_causes_no_recall() {
    let copy = Request::Copy { from: A_OTHER, from_offset: 0, to: A_FILE, to_offset: 0, len: 1 };
    assert_recalls(&[
        (Request::Open { ino: A_FILE, write: false }, &[]),
        (Request::Close { ino: A_FILE }, &[]),
        (copy, &[]),
        (lookup(A, "new"), &[]),
        // Requests that fail.
        (create(A, "file", true), &[]),
        (mkdir(A, b"dir"), &[]),
        (Request::Unlink { parent: A, name: b"new" }, &[]),
        (Request::Rmdir { parent: ROOT_INO, name: b"a" }, &[]),
        (move_((A, "new"), (A, "file")), &[]),
        (rename((A, "file"), (OTHER, "file"), RenameFlags::NOREPLACE), &[]),
        (set(A, SetAttr { size: Some(5), ..SetAttr::default() }), &[]),
        (Request::RemoveXattr { ino: A, name: b"user.x", only_if: None }, &[]),
    ]);
}

#[test]
fn a_change_of_a_single_cache_holder_causes_no_recall_and_no_wait() {
    let fixture = fixture(64, 32);
    let [holder, other] = tree(&fixture);
    let asked = other.recalls(0);
    // Session 2 made all of these names, and caches them.
    let changed = holder.start(create(A_DIR, "new", true));
    assert_eq!(told(&asked), Recalls { number: 1, recalls: vec![attr(A_DIR)] }, "it looked at no name there");
    let asked = other.recalls(1);
    assert!(matches!(changed.try_recv(), Ok(Reply::Opened(_))));
    holder.close(8);
    assert!(holder.start(Request::Unlink { parent: A_DIR, name: b"new" }).try_recv().is_ok());
    assert!(asked.try_recv().is_err());
    let changed = holder.start(create(A, "new", true));
    assert_eq!(told(&asked), Recalls { number: 2, recalls: vec![name(A, "new")] });
    assert!(changed.try_recv().is_err());
    other.recalls(2);
    assert!(changed.try_recv().is_ok());
}

#[test]
fn names_that_were_returned_are_recalled_once_and_then_no_more() {
    let fixture = fixture(64, 32);
    let [holder, other] = tree(&fixture);
    let asked = holder.recalls(0);
    assert_eq!(holder.ask(Request::ReturnNames { ino: A }), Reply::Done);
    assert_eq!(told(&asked), Recalls { number: 1, recalls: vec![names(A)] });
    // A change waits until the session has dropped the names.
    let changed = other.start(create(A, "new", true));
    assert!(changed.try_recv().is_err());
    let asked = holder.recalls(1);
    assert_eq!(told(&asked), Recalls { number: 2, recalls: vec![attr(A)] }, "the directory's own are kept");
    holder.recalls(2);
    assert!(matches!(changed.try_recv(), Ok(Reply::Opened(_))));
    assert!(other.start(Request::Unlink { parent: A, name: b"new" }).try_recv().is_ok());
    // A session that caches no names has none to return.
    assert_eq!(holder.ask(Request::ReturnNames { ino: A }), Reply::Done);
    assert_eq!(holder.ask(Request::ReturnNames { ino: 1 << 40 }), Reply::Done);
}

/// The attributes with the reply do not make the session a cache holder.
#[test]
fn a_session_that_changes_a_name_gets_the_cached_directory_with_the_reply() {
    let fixture = fixture(64, 32);
    let (holder, other, plain) = (fixture.attached(1, true), fixture.attached(2, true), fixture.client(3));
    let mkdir = |parent, name| Request::Mkdir { parent, name, perm: 0o755, umask: 0, uid: 0, gid: 0 };
    let dir = plain.attr(mkdir(ROOT_INO, b"d")).ino;
    let after = |client: &Client<'_>, request: &Request<'_>| {
        client.start(*request).try_recv().expect("the reply is not deferred");
        fixture.dispatcher.directory_after(client.id, request)
    };
    let unlink = Request::Unlink { parent: dir, name: b"f" };
    assert_eq!(after(&holder, &create(dir, "g", true)), None, "it has never asked");
    assert!(holder.keep(Request::GetAttr { ino: dir }));
    let made = after(&holder, &create(dir, "f", true)).expect("it is cached");
    assert_eq!((made.ino, made.marks), (dir, Marks::KEEP));
    let unlinked = after(&holder, &unlink).expect("it is cached");
    assert_eq!(holder.ask(Request::GetAttr { ino: dir }), Reply::Attr(unlinked));
    assert!(made.ctime < unlinked.ctime, "each is of its moment");
    assert_eq!(after(&holder, &mkdir(dir, b"sub")).map(|attr| attr.nlink), Some(3));
    assert_eq!(after(&holder, &Request::GetAttr { ino: dir }), None, "that changes nothing");
    let rename = rename((dir, "g"), (dir, "h"), RenameFlags::empty());
    assert_eq!(after(&holder, &rename), None, "two directories");
    // Another session changes the directory, so the attributes are recalled.
    let asked = holder.recalls(0);
    other.start(create(dir, "other", true));
    assert_eq!(told(&asked).recalls.len(), 1);
    holder.recalls(1);
    assert_eq!(fixture.dispatcher.directory_after(holder.id, &unlink), None, "recalled");
    plain.ask(Request::GetAttr { ino: dir });
    assert_eq!(fixture.dispatcher.directory_after(plain.id, &unlink), None, "it does not cache");
    assert_eq!(fixture.dispatcher.directory_after(9, &unlink), None, "no such session");
}

#[test]
fn a_session_without_a_cache_gets_no_recalls_and_no_marks() {
    let fixture = fixture(64, 32);
    let (plain, holder) = (fixture.client(1), fixture.attached(2, true));
    assert!(!plain.keep(create(ROOT_INO, "f", true)));
    // Its first reply is empty: the session receives layout recalls from now on.
    assert_eq!(
        plain.ask(Request::Recalls { done: 0 }),
        Reply::Recalls(Recalls { number: 0, recalls: vec![] })
    );
    let told_nothing = plain.recalls(0);
    plain.page(ROOT_INO, 0, 10);
    holder.done(rename((ROOT_INO, "f"), (ROOT_INO, "g"), RenameFlags::empty()));
    // Its changes are recalled from other sessions.
    let asked = holder.recalls(0);
    let changed = plain.start(Request::Unlink { parent: ROOT_INO, name: b"g" });
    assert_eq!(told(&asked).recalls, [name(ROOT_INO, "g")]);
    assert!(changed.try_recv().is_err());
    assert!(told_nothing.try_recv().is_err());
    // A session that is not attached receives nothing.
    fixture.dispatcher.attachments().began(3, regions());
    assert_eq!(Client { fixture: &fixture, id: 3 }.error(Request::Recalls { done: 0 }), Errno::EPROTO);
}

/// Independent of other cached state.
#[test]
fn space_that_a_file_gives_up_is_free_when_its_openers_have_returned_their_layouts() {
    for keeps in [false, true] {
        let fixture = fixture(16, 8);
        let (one, two) = (fixture.attached(1, keeps), fixture.client(2));
        let ino = one.create("f").attr.ino;
        one.allocate(ino, 0, 8 * B);
        one.truncate(ino, 8 * B);
        let mut asked = one.recalls(0);
        if !keeps {
            assert_eq!(told(&asked).recalls, []);
            asked = one.recalls(0);
        }
        let opened = two.start(Request::Open { ino, write: true });
        if keeps {
            assert_eq!(told(&asked).recalls, [pages(ino)]);
            asked = one.recalls(1);
        }
        assert!(matches!(opened.try_recv(), Ok(Reply::Opened(_))));
        let free = fixture.free_blocks();
        let truncate = |size| {
            let changes = SetAttr { size: Some(size), ..SetAttr::default() };
            two.start(Request::SetAttr { ino, changes })
        };
        let generation = || one.stat(ino).layout_generation;
        // Two truncations: the session may acknowledge the first before it receives the second.
        let first = truncate(4 * B);
        let before = generation();
        let second = truncate(0);
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        let recalls = told(&asked);
        assert_eq!(recalls.recalls, [Recall::Layout { ino, generation: before }]);
        assert_eq!(fixture.free_blocks(), free);
        let asked = one.recalls(recalls.number);
        assert!(matches!(first.try_recv(), Ok(Reply::Attr(_))) && second.try_recv().is_err());
        assert_eq!(fixture.free_blocks(), free + 4);
        let recalls = told(&asked);
        assert_eq!(recalls.recalls, [Recall::Layout { ino, generation: generation() }]);
        one.recalls(recalls.number);
        assert!(matches!(second.try_recv(), Ok(Reply::Attr(_))));
        assert_eq!(fixture.free_blocks(), 16);
        // Session 1 still has the file open, and no other file gets its space.
        one.allocate(ino, 0, B);
        one.close(ino);
    }
}

#[test]
fn attributes_are_cached_while_no_other_session_writes() {
    let fixture = fixture(64, 32);
    let (one, two) = (fixture.attached(1, true), fixture.attached(2, true));
    let opened = one.opened(create(ROOT_INO, "f", true));
    assert!(opened.attr.marks.contains(Marks::KEEP));
    let ino = opened.attr.ino;
    let stat = Request::GetAttr { ino };
    assert!(one.keep(stat) && !two.keep(stat) && !two.keep(lookup(ROOT_INO, "f")));
    assert!(!two.page(ROOT_INO, 0, 9).entries[0].attr.marks.contains(Marks::KEEP));
    // An open to read makes no writer. The writer's last close ends the writing.
    one.opened(Request::Open { ino, write: false });
    one.close(ino);
    assert!(!two.keep(stat));
    one.close(ino);
    assert!(two.keep(stat) && one.keep(stat));
    two.opened(Request::Open { ino, write: false });
    assert!(one.keep(stat));
    let (one_asked, two_asked) = (one.recalls(0), two.recalls(0));
    let changed = one.start(Request::Open { ino, write: true });
    assert_eq!(told(&two_asked).recalls, [pages(ino)]);
    two.recalls(1);
    let Ok(Reply::Opened(opened)) = changed.try_recv() else { panic!("not opened") };
    assert!(opened.attr.marks.contains(Marks::KEEP));
    // A file with a single writer needs no recall, not even for a truncation.
    one.opened(Request::Open { ino, write: true });
    one.truncate(ino, 5);
    assert!(!two.keep(stat) && one_asked.try_recv().is_err());
    // With two writers, neither caches attributes.
    let changed = two.start(Request::Open { ino, write: true });
    assert_eq!(told(&one_asked).recalls, [pages(ino)]);
    one.recalls(1);
    changed.try_recv().unwrap();
    assert!(!one.keep(stat) && !two.keep(stat));
    fixture.dispatcher.attachments().ended(1);
    assert!(two.keep(stat));
}

#[test]
fn names_are_cached_from_the_first_lookup_even_if_absent() {
    let looks: [fn(&Client<'_>); 7] = [
        |client| assert_eq!(client.error(ahead("f")), Errno::ENOENT),
        |client| {
            let Reply::Dir(page) = client.ask(ahead("there")) else { panic!("no page") };
            assert!(page.entries[0].attr.marks.contains(Marks::KEEP));
        },
        |client| assert_eq!(client.error(lookup(ROOT_INO, "f")), Errno::ENOENT),
        |client| assert!(client.keep(lookup(ROOT_INO, "there"))),
        |client| drop(client.page(ROOT_INO, 0, 1)),
        |client| assert_eq!(client.mkdir(ROOT_INO, "d").kind, FileKind::Directory),
        |client| client.done(rename((ROOT_INO, "there"), (ROOT_INO, "x"), RenameFlags::empty())),
    ];
    for (at, look) in looks.into_iter().enumerate() {
        let fixture = fixture(64, 32);
        let (holder, other) = (fixture.attached(1, true), fixture.client(2));
        let there = other.create("there").attr.ino;
        other.close(there);
        look(&holder);
        let asked = holder.recalls(0);
        let made = other.start(create(ROOT_INO, "f", true));
        assert_eq!(told(&asked).recalls, [name(ROOT_INO, "f")], "{at}");
        assert!(made.try_recv().is_err());
    }
    // A session that has read only the attributes of a directory caches no names.
    let fixture = fixture(64, 32);
    let (holder, other) = (fixture.attached(1, true), fixture.client(2));
    assert!(holder.keep(Request::GetAttr { ino: ROOT_INO }));
    let asked = holder.recalls(0);
    drop(other.start(create(ROOT_INO, "f", true)));
    assert_eq!(told(&asked).recalls, [attr(ROOT_INO)]);
}

#[test]
fn space_that_comes_back_with_the_last_close_is_recalled() {
    let fixture = fixture(64, 32);
    let (writer, reader) = (fixture.attached(1, true), fixture.client(2));
    let ino = writer.create("f").attr.ino;
    writer.allocate(ino, 0, 5 * B);
    reader.opened(Request::Open { ino, write: false });
    writer.close(ino);
    let before = writer.stat(ino);
    let asked = writer.recalls(0);
    let closed = reader.start(Request::Close { ino });
    assert_eq!(told(&asked).recalls, [attr(ino)]);
    writer.recalls(1);
    assert_eq!(closed.try_recv(), Ok(Reply::Done));
    let after = writer.stat(ino);
    assert_eq!((before.kind, before.blocks, after.blocks), (FileKind::Regular, 40, 0));
}

/// Attributes in the reply to a change of bytes may not be cached, but the session learns the
/// owner from them.
#[test]
fn a_session_that_has_seen_the_owner_gets_a_recall_when_it_changes() {
    let fixture = fixture(64, 100);
    let (holder, other) = (fixture.attached(1, true), fixture.client(1000));
    let Reply::Opened(opened) = holder.ask(create(ROOT_INO, "file", true)) else { panic!("no file") };
    let ino = opened.attr.ino;
    let belong = |uid| {
        let changes = SetAttr { uid: Some(uid), ..SetAttr::default() };
        other.start(Request::SetAttr { ino, changes })
    };
    let fallocate = Request::Fallocate { ino, offset: 0, len: 9, flags: FallocateFlags::empty() };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punch = Request::Fallocate { ino, offset: 0, len: 9, flags: punch };
    let copy = Request::Copy { from: ino, from_offset: 0, to: ino, to_offset: 4096, len: 1 };
    let mut recalls = holder.recalls(0);
    for (done, change) in (1..).zip([None, Some(fallocate), Some(punch), Some(copy)]) {
        let changed = change.map(|change| holder.ask(change));
        assert!(!matches!(changed, Some(Reply::Error(_))), "{changed:?}");
        let waits = belong(done as u32);
        assert_eq!(told(&recalls).recalls, [owner(ino)], "{done}");
        recalls = holder.recalls(done);
        assert!(matches!(waits.try_recv(), Ok(Reply::Attr(_))));
    }
}

/// Even if no space is freed: sessions rely on the size that they have seen.
#[test]
fn a_size_that_falls_is_recalled_and_the_tail_swept() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let file = one.create("f").attr;
    let ino = file.ino;
    let layout = one.allocate(ino, 0, B);
    one.write(&file, &layout, 0, &[1; 3000], 2000);
    two.opened(Request::Open { ino, write: true });
    assert_eq!(told(&one.recalls(0)).recalls, []);
    let truncate = |size| {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        two.start(Request::SetAttr { ino, changes })
    };
    for (round, size) in [(0, 100), (1, 50)] {
        let asked = one.recalls(round);
        let truncated = truncate(size);
        let generation = one.stat(ino).layout_generation;
        assert_eq!(told(&asked).recalls, [Recall::Layout { ino, generation }]);
        assert!(truncated.try_recv().is_err());
        // A concurrent write that knows the old size, within the last block.
        fixture.arena.write((layout.extents[0].arena + 2000) as usize, b"late");
        assert!(one.recalls(round + 1).try_recv().is_err());
        assert!(matches!(truncated.try_recv(), Ok(Reply::Attr(_))));
        assert_eq!(one.read(&layout, 2000, 4), [0; 4]);
        assert!(one.stat(ino).layout_generation > generation, "a concurrent writer has to learn of it");
    }
    // The end lies in a hole.
    two.truncate(ino, 2 * B + 10);
    let asked = one.recalls(2);
    let truncated = truncate(2 * B);
    let generation = one.stat(ino).layout_generation;
    assert_eq!(told(&asked).recalls, [Recall::Layout { ino, generation }]);
    one.recalls(3);
    assert!(matches!(truncated.try_recv(), Ok(Reply::Attr(_))));
    // A size that stays or grows is not recalled.
    two.truncate(ino, 2 * B);
    two.truncate(ino, 3 * B);
}

/// The session may have ended between the bytes of a write and the size.
#[test]
fn the_tail_is_swept_when_a_session_ends() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let file = one.create("f").attr;
    let layout = one.allocate(file.ino, 0, B);
    one.write(&file, &layout, 0, &[1; 100], 2000);
    two.opened(Request::Open { ino: file.ino, write: true });
    fixture.arena.write((layout.extents[0].arena + 2000) as usize, b"left");
    fixture.dispatcher.attachments().ended(one.id);
    two.truncate(file.ino, B);
    let mut expected = vec![1; 100];
    expected.resize(B as usize, 0);
    assert!(two.read(&layout, 0, B) == expected);
}
