//! Requests about names: their replies, and the times and records that they leave.

use rfs_proto::{FileKind, InUse, MAX_SYMLINK, SetTime};

use super::*;

#[test]
fn the_root() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let root = client.stat(ROOT_INO);
    assert_eq!((root.ino, root.kind, root.perm, root.nlink), (1, FileKind::Directory, 0o755, 2));
    assert_eq!((root.uid, root.gid, root.mtime, root.size), (1, 2, 1000, 4096));
    assert_eq!(client.page(ROOT_INO, 0, 10), DirPage { entries: vec![], parent: ROOT_INO, end: true });
}

#[test]
fn sessions_attach_first() {
    let fixture = fixture(16, 8);
    let stranger = Client { fixture: &fixture, id: 9 };
    let attach = Request::Attach {
        version: VERSION,
        client: "x",
        export: "",
        keeps: false,
        alone: false,
        mount: None,
    };
    assert_eq!(stranger.error(attach), Errno::EPROTO);
    fixture.dispatcher.attachments().began(9, regions());
    assert_eq!(stranger.error(Request::StatFs), Errno::EPROTO);
    assert_eq!(stranger.error(Request::GetAttr { ino: ROOT_INO }), Errno::EPROTO);
    assert_eq!(
        stranger.error(Request::Attach {
            version: VERSION + 1,
            client: "x",
            export: "",
            keeps: false,
            alone: false,
            mount: None
        }),
        Errno::EPROTONOSUPPORT
    );
    assert!(matches!(stranger.ask(attach), Reply::Attached(_)));
    assert_eq!(stranger.error(attach), Errno::EPROTO);
    assert!(matches!(stranger.ask(Request::StatFs), Reply::StatFs(_)));
    assert_eq!(fixture.dispatcher.stats().sessions, 1);
    fixture.dispatcher.attachments().ended(9);
    assert_eq!(stranger.error(Request::StatFs), Errno::EPROTO);
    assert_eq!(fixture.dispatcher.stats().sessions, 0);
}

#[test]
fn an_exclusive_mount_is_the_only_one() {
    let fixture = fixture(16, 8);
    let [one, two] = [1, 2].map(|id| Client { fixture: &fixture, id });
    let begin = || [1, 2].into_iter().for_each(|id| fixture.dispatcher.attachments().began(id, regions()));
    let in_use = |alone| Reply::InUse(InUse { sessions: 1, alone });
    begin();
    assert!(matches!(one.attach(true, false), Reply::Attached(_)));
    assert_eq!(two.attach(true, true), in_use(false));
    // A refused session is not attached and can send no request.
    assert_eq!(two.error(Request::StatFs), Errno::EPROTO);
    assert!(matches!(two.attach(false, false), Reply::Attached(_)));
    [1, 2].into_iter().for_each(|id| fixture.dispatcher.attachments().ended(id));

    begin();
    assert!(matches!(one.attach(true, true), Reply::Attached(_)));
    assert_eq!([two.attach(true, true), two.attach(false, false)], [in_use(true), in_use(true)]);
    fixture.dispatcher.attachments().ended(1);
    assert!(matches!(two.attach(true, true), Reply::Attached(_)));
}

#[test]
fn one_of_two_concurrent_exclusive_mounts_attaches() {
    let fixture = fixture(16, 8);
    for round in 0..200 {
        let ids = [2 * round + 1, 2 * round + 2];
        ids.into_iter().for_each(|id| fixture.dispatcher.attachments().began(id, regions()));
        let barrier = std::sync::Barrier::new(2);
        let attached = std::thread::scope(|scope| {
            let threads = ids.map(|id| {
                let client = Client { fixture: &fixture, id };
                let barrier = &barrier;
                // The other session wants to be exclusive, too, or just attaches.
                let alone = id % 2 == 1 || round % 2 == 0;
                scope.spawn(move || {
                    barrier.wait();
                    matches!(client.attach(true, alone), Reply::Attached(_))
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(attached.iter().filter(|attached| **attached).count(), 1, "round {round}");
        ids.into_iter().for_each(|id| fixture.dispatcher.attachments().ended(id));
    }
}

#[test]
fn kinds() {
    let fixture = fixture(16, 16);
    let client = fixture.client(1);
    let mknod = |name: &'static str, mode| Request::Mknod {
        parent: ROOT_INO,
        name: name.as_bytes(),
        mode,
        umask: 0,
        rdev: 77,
        uid: 5,
        gid: 6,
    };
    for (name, mode, kind, rdev) in [
        ("r", 0o100644, FileKind::Regular, 0),
        ("p", 0o010600, FileKind::Fifo, 0),
        ("s", 0o140755, FileKind::Socket, 0),
        ("c", 0o020666, FileKind::CharDevice, 77),
        ("b", 0o060660, FileKind::BlockDevice, 77),
    ] {
        let attr = client.attr(mknod(name, mode));
        assert_eq!((attr.kind, attr.perm, attr.rdev), (kind, mode & 0o777, rdev), "{name}");
        assert_eq!((attr.uid, attr.gid, attr.nlink, attr.size), (5, 6, 1, 0));
        assert_eq!(client.attr(lookup(ROOT_INO, name)), attr);
        assert_eq!(client.error(mknod(name, mode)), Errno::EEXIST);
        let opened = client.ask(Request::Open { ino: attr.ino, write: true });
        assert_eq!(matches!(opened, Reply::Opened(_)), kind == FileKind::Regular);
    }
    for mode in [0o644, 0o040755, 0o120777, 0o170000] {
        assert_eq!(client.error(mknod("x", mode)), Errno::EINVAL);
    }
    assert_eq!(client.error(Request::Open { ino: ROOT_INO, write: true }), Errno::EISDIR);
    assert_eq!(client.error(Request::Open { ino: 999, write: true }), Errno::ESTALE);
    assert_eq!(client.error(create(ROOT_INO, "p", false)), Errno::EEXIST);
}

#[test]
fn creating_opens() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let first = client.create("f");
    assert_eq!((first.attr.kind, first.attr.perm, first.attr.size), (FileKind::Regular, 0o644, 0));
    assert_eq!(first.layout, Layout { generation: 0, extents: vec![], complete: true });
    assert_eq!(client.error(create(ROOT_INO, "f", true)), Errno::EEXIST);
    assert_eq!(client.opened(create(ROOT_INO, "f", false)), first);
    client.close(first.attr.ino);
    client.close(first.attr.ino);
    assert_eq!(client.error(Request::Close { ino: first.attr.ino }), Errno::EBADF);
    client.mkdir(ROOT_INO, "d");
    assert_eq!(client.error(create(ROOT_INO, "d", false)), Errno::EISDIR);
    assert_eq!(client.error(create(ROOT_INO, "d", true)), Errno::EEXIST);
}

fn tmpfile(parent: u64) -> Request<'static> {
    Request::Tmpfile { parent, perm: 0o666, umask: 0o22, uid: 5, gid: 6 }
}

/// Detects a file that shows before it has a name, or stays unlinked although it has a name. Also
/// detects a file that gets a name after it has lost its last name.
#[test]
fn a_file_without_a_name_gets_its_first_name() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let root = client.stat(ROOT_INO);
    let Attr { ino, nlink, perm, uid, .. } = client.opened(tmpfile(ROOT_INO)).attr;
    assert_eq!((nlink, perm, uid), (0, 0o644, 5));
    assert_eq!((client.stat(ROOT_INO), client.page(ROOT_INO, 0, 10).entries), (root, vec![]));
    let link = |name| Request::Link { ino, parent: ROOT_INO, name };
    assert_eq!(client.attr(link(b"a")).nlink, 1);
    client.close(ino);
    assert_eq!(client.attr(lookup(ROOT_INO, "a")).nlink, 1, "it outlives the close");
    client.opened(Request::Open { ino, write: false });
    client.unlink("a");
    assert_eq!(client.error(link(b"b")), Errno::ENOENT);
    client.close(ino);
    assert_eq!((fixture.free_blocks(), fixture.free_inodes()), (16, 7));
    let directory = client.mkdir(ROOT_INO, "d").ino;
    client.done(Request::Rmdir { parent: ROOT_INO, name: b"d" });
    assert_eq!(client.error(tmpfile(directory)), Errno::ESTALE);
    assert_eq!(client.error(tmpfile(ino)), Errno::ESTALE);
}

/// Detects a file whose space stays when its session closes it, forgets it or ends. Detects a
/// session that does not hear that a file which it has named is unlinked.
#[test]
fn a_file_without_a_name_stays_for_its_session() {
    let fixture = fixture(16, 8);
    let (client, other) = (fixture.client(1), fixture.client(2));
    let forget = |ino: u64| client.done(Request::Forget { inos: &ino.to_le_bytes() });
    // From now on the session takes part in forgetting.
    client.done(Request::Forget { inos: b"" });
    let free = || (fixture.free_blocks(), fixture.free_inodes());
    let make = || {
        let ino = client.opened(tmpfile(ROOT_INO)).attr.ino;
        client.allocate(ino, 0, B);
        ino
    };
    let ino = make();
    assert_eq!(free().1, 6);
    client.close(ino);
    assert_eq!((free().1, fixture.dispatcher.idle_inodes()), (7, 1), "it counts as free");
    assert_eq!(client.stat(ino).nlink, 0, "the session may still use it");
    forget(ino);
    assert_eq!((free(), fixture.dispatcher.idle_inodes()), ((16, 7), 0));
    assert_eq!(client.error(Request::GetAttr { ino }), Errno::ESTALE);
    // An idle file gets its name, too.
    let ino = make();
    client.close(ino);
    assert_eq!(client.attr(Request::Link { ino, parent: ROOT_INO, name: b"a" }).nlink, 1);
    assert_eq!((free().1, fixture.dispatcher.idle_inodes()), (6, 0));
    assert_eq!(other.ask(Request::Unlink { parent: ROOT_INO, name: b"a" }), Reply::Done);
    assert_eq!(client.stat(ino).nlink, 0, "it stays until the session has forgotten it");
    forget(ino);
    assert_eq!(free(), (16, 7));
    make();
    fixture.dispatcher.attachments().ended(1);
    assert_eq!(free(), (16, 7), "the session has ended");
}

#[test]
fn symbolic_links() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let symlink = |target| Request::Symlink { parent: ROOT_INO, name: b"l", target, uid: 5, gid: 6 };
    assert_eq!(client.error(symlink(b"")), Errno::ENOENT);
    assert_eq!(client.error(symlink(&[b'x'; MAX_SYMLINK + 1])), Errno::ENAMETOOLONG);
    assert_eq!(client.error(symlink(b"a\0b")), Errno::EINVAL);
    let target = [b'x'; MAX_SYMLINK];
    let link = client.attr(symlink(&target));
    assert_eq!((link.kind, link.perm, link.size), (FileKind::Symlink, 0o777, MAX_SYMLINK as u64));
    assert_eq!(client.ask(Request::Readlink { ino: link.ino }), Reply::Target(target.to_vec()));
    assert_eq!(client.error(Request::Readlink { ino: ROOT_INO }), Errno::EINVAL);
    let changes = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(client.error(Request::SetAttr { ino: link.ino, changes }), Errno::EINVAL);
    client.unlink("l");
    assert_eq!(client.error(Request::GetAttr { ino: link.ino }), Errno::ESTALE);
    assert_eq!(client.record(&link), None);
}

#[test]
fn changes_of_names_change_times() {
    let fixture = fixture(16, 16);
    let client = fixture.client(1);
    let a = client.mkdir(ROOT_INO, "a").ino;
    let file = client.opened(create(a, "f", true)).attr;
    client.close(file.ino);

    fixture.clock.set(5000);
    client.attr(Request::Link { ino: file.ino, parent: ROOT_INO, name: b"g" });
    let (attr, root) = (client.stat(file.ino), client.stat(ROOT_INO));
    assert_eq!((attr.nlink, attr.ctime, attr.mtime), (2, 5000, file.mtime));
    assert_eq!((root.mtime, root.ctime), (5000, 5000));
    fixture.clock.set(6000);
    client.done(rename((ROOT_INO, "g"), (a, "h"), RenameFlags::empty()));
    assert_eq!(client.stat(file.ino).ctime, 6000);
    assert_eq!((client.stat(ROOT_INO).mtime, client.stat(a).mtime), (6000, 6000));
    fixture.clock.set(7000);
    client.done(Request::Unlink { parent: a, name: b"h" });
    assert_eq!((client.stat(file.ino).ctime, client.stat(a).ctime), (7000, 7000));
    assert_eq!(client.stat(ROOT_INO).ctime, 6000);
    // An operation that fails changes nothing.
    fixture.clock.set(8000);
    assert_eq!(client.error(Request::Rmdir { parent: ROOT_INO, name: b"a" }), Errno::ENOTEMPTY);
    assert_eq!((client.stat(ROOT_INO).ctime, client.stat(a).ctime), (6000, 7000));
    client.done(Request::Unlink { parent: a, name: b"f" });
    client.done(Request::Rmdir { parent: ROOT_INO, name: b"a" });
    assert_eq!(client.error(lookup(a, "x")), Errno::ESTALE);
    assert_eq!(fixture.free_inodes(), 15);
}

#[test]
fn a_whiteout_is_left_in_the_old_place() {
    let fixture = fixture(16, 16);
    let client = fixture.client(1);
    let a = client.mkdir(ROOT_INO, "a").ino;
    let file = client.opened(create(a, "f", true)).attr;
    client.close(file.ino);
    fixture.clock.set(5000);
    let free = fixture.free_inodes();
    client.done(rename_as((a, "f"), (ROOT_INO, "g"), WHITEOUT));
    let whiteout = client.attr(lookup(a, "f"));
    let Attr { ino, kind, perm, nlink, uid, gid, rdev, size, mtime, ctime, .. } = whiteout;
    assert!(ino > file.ino);
    assert_eq!((kind, perm, nlink, uid, gid, rdev, size), (FileKind::CharDevice, 0, 1, 7, 8, 0, 0));
    assert_eq!((mtime, ctime, client.stat(a).mtime, client.stat(ROOT_INO).mtime), (5000, 5000, 5000, 5000));
    assert_eq!(
        (client.record(&whiteout), client.attr(lookup(ROOT_INO, "g")).ino),
        (Some(whiteout), file.ino)
    );
    assert_eq!(fixture.free_inodes(), free - 1);
    // A whiteout that is replaced by another whiteout is freed.
    client.done(rename_as((ROOT_INO, "g"), (a, "f"), WHITEOUT));
    assert_eq!(client.error(Request::GetAttr { ino }), Errno::ESTALE);
    assert_eq!((client.record(&whiteout), fixture.free_inodes()), (None, free - 1));
    assert_eq!(client.error(rename_as((a, "f"), (ROOT_INO, "g"), WHITEOUT | 2)), Errno::EINVAL);
    assert_eq!(fixture.free_inodes(), free - 1);
}

/// The server counts the memory of the directory's default ACL, which the whiteout inherits.
#[test]
fn extended_attributes_that_a_whiteout_inherits_are_counted() {
    let fixture = fixture(16, 16);
    let client = fixture.client(1);
    client.create("f");
    let name = b"system.posix_acl_default";
    let mut value = vec![2, 0, 0, 0];
    for (tag, id) in [(1u16, u32::MAX), (2, 5), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)] {
        value.extend([tag.to_le_bytes(), [7, 0]].concat());
        value.extend(id.to_le_bytes());
    }
    let (how, value) = (XattrSet::Any, &value[..]);
    let (continued, drop_sgid) = (false, false);
    client.done(Request::SetXattr { ino: ROOT_INO, name, value, how, continued, drop_sgid, only_if: None });
    let before = fixture.dispatcher.store.xattrs.used();
    client.done(rename_as((ROOT_INO, "f"), (ROOT_INO, "g"), WHITEOUT));
    let whiteout = client.attr(lookup(ROOT_INO, "f"));
    assert_eq!((whiteout.perm, whiteout.marks), (0, Marks::XATTRS));
    assert!(fixture.dispatcher.store.xattrs.used() > before);
    client.unlink("f");
    assert_eq!(fixture.dispatcher.store.xattrs.used(), before);
}

#[test]
fn set_attr() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    let set = |changes| client.attr(Request::SetAttr { ino: file.ino, changes });
    let none = SetAttr::default();

    fixture.clock.set(5000);
    let attr = set(SetAttr { perm: Some(0o104711), ..none });
    assert_eq!(attr, Attr { perm: 0o4711, ctime: 5000, ..file });
    fixture.clock.set(6000);
    // chown(-1, -1) changes ctime, too.
    assert_eq!(set(none), Attr { ctime: 6000, ..attr });
    let attr = set(SetAttr { uid: Some(50), ..none });
    assert_eq!((attr.uid, attr.gid, attr.ctime), (50, 6, 6001));
    let attr = set(SetAttr { gid: Some(60), ..none });
    assert_eq!((attr.uid, attr.gid), (50, 60));

    fixture.clock.set(7000);
    let attr = set(SetAttr { atime: Some(SetTime::At(-5)), mtime: Some(SetTime::Now), ..none });
    assert_eq!((attr.atime, attr.mtime, attr.ctime), (-5, 7000, 7000));
    let attr = set(SetAttr { mtime: Some(SetTime::At(i64::MAX)), ..none });
    assert_eq!((attr.mtime, attr.ctime), (i64::MAX, 7001));
    // A client that keeps times itself sets ctime.
    let attr = set(SetAttr { mtime: Some(SetTime::At(70)), ctime: Some(-80), ..none });
    assert_eq!((attr.mtime, attr.ctime), (70, -80));
    assert_eq!(client.error(Request::SetAttr { ino: 99, changes: none }), Errno::ESTALE);
}

#[test]
fn times_of_client_writes() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    let layout = client.allocate(file.ino, 0, 10);
    client.write(&file, &layout, 0, b"0123456789", 5000);
    let attr = client.stat(file.ino);
    assert_eq!((attr.size, attr.mtime, attr.ctime, attr.blocks), (10, 5000, 5000, 8));
    // A later chmod keeps mtime. A set mtime replaces it until the next write.
    fixture.clock.set(6000);
    let ino = file.ino;
    let changes = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let attr = client.attr(Request::SetAttr { ino, changes });
    assert_eq!((attr.mtime, attr.ctime), (5000, 6000));
    let changes = SetAttr { mtime: Some(SetTime::At(77)), ..SetAttr::default() };
    let attr = client.attr(Request::SetAttr { ino, changes });
    assert_eq!((attr.mtime, attr.ctime, attr.size), (77, 6001, 10));
    client.write(&file, &layout, 10, b"x", 7000);
    let attr = client.stat(ino);
    assert_eq!((attr.mtime, attr.ctime, attr.size), (7000, 7000, 11));
    // Other changes of the record in between do not lose the values that clients wrote there.
    client.attr(Request::Link { ino, parent: ROOT_INO, name: b"g" });
    assert_eq!((client.stat(ino).mtime, client.stat(ino).size), (7000, 11));
}

#[test]
fn directories_in_pages() {
    let fixture = fixture(16, 2000);
    let client = fixture.client(1);
    let long = "n".repeat(250);
    for i in 0..1000 {
        client.attr(Request::Mknod {
            parent: ROOT_INO,
            name: format!("{long}{i:04}").as_bytes(),
            mode: 0o100644,
            umask: 0,
            rdev: 0,
            uid: 0,
            gid: 0,
        });
    }
    let mut names = Vec::new();
    let mut cookie = 0;
    let mut pages = 0;
    loop {
        let page = client.page(ROOT_INO, cookie, u32::MAX);
        pages += 1;
        assert!(page.entries.len() > 100 || page.end);
        for entry in &page.entries {
            assert!(entry.cookie > cookie);
            cookie = entry.cookie;
            assert_eq!(client.record(&entry.attr), Some(entry.attr));
            names.push(String::from_utf8(entry.name.clone()).unwrap());
        }
        // A name that is removed in the meantime does not disturb the listing.
        client.unlink(&names[pages - 1].clone());
        if page.end {
            break;
        }
    }
    let all: Vec<String> = (0..1000).map(|i| format!("{long}{i:04}")).collect();
    assert_eq!(names, all);
    assert!(pages >= 4);

    let page = client.page(ROOT_INO, 0, 2);
    assert_eq!((page.entries.len(), page.end), (2, false));
    assert_eq!(client.page(ROOT_INO, 0, 0).entries.len(), 1);
    assert_eq!(client.page(ROOT_INO, u64::MAX, 5), DirPage { entries: vec![], parent: 1, end: true });
    assert_eq!(client.error(Request::ReadDir { ino: 99_999, cookie: 0, max_entries: 1 }), Errno::ESTALE);
    let file = client.attr(lookup(ROOT_INO, &names[500])).ino;
    assert_eq!(client.error(Request::ReadDir { ino: file, cookie: 0, max_entries: 1 }), Errno::ENOTDIR);
}

#[test]
fn counters() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    fixture.clock.set(1000 + 7_000_000_000);
    client.stat(ROOT_INO);
    client.stat(ROOT_INO);
    assert_eq!(client.error(lookup(ROOT_INO, "x")), Errno::ENOENT);
    let Reply::Stats(stats) = client.ask(Request::Stats) else { panic!() };
    let nonzero: Vec<(&str, u64)> =
        stats.calls.iter().filter(|c| c.1 > 0).map(|c| (c.0.as_str(), c.1)).collect();
    assert_eq!(nonzero, [("attach", 1), ("lookup", 1), ("getattr", 2)], "but the one that asks");
    assert_eq!((stats.sessions, stats.uptime_secs), (1, 7));
}

#[test]
fn lookup_ahead_begins_with_the_name() {
    let fixture = fixture(16, 200);
    let client = fixture.client(1);
    let dir = client.mkdir(ROOT_INO, "dir").ino;
    for at in 0..100 {
        client.opened(create(dir, &format!("f{at}"), true));
    }
    for gone in ["f0", "f9", "f99"] {
        client.done(Request::Unlink { parent: dir, name: gone.as_bytes() });
    }
    let ask = |parent, name: &'static str, max_entries| {
        client.ask(Request::LookupAhead { parent, name: name.as_bytes(), max_entries })
    };
    let all = client.page(dir, 0, 200);
    for (at, entry) in all.entries.iter().enumerate() {
        let rest = DirPage { entries: all.entries[at..].to_vec(), ..all.clone() };
        let name = std::str::from_utf8(&entry.name).unwrap().to_owned();
        let request = Request::LookupAhead { parent: dir, name: name.as_bytes(), max_entries: 200 };
        assert_eq!(client.ask(request), Reply::Dir(rest));
    }
    let Reply::Dir(page) = ask(dir, "f8", 2) else { panic!("no page") };
    let names: Vec<&[u8]> = page.entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!((names, page.parent, page.end), (vec![&b"f8"[..], b"f10"], ROOT_INO, false));
    let Reply::Dir(page) = ask(dir, "f98", 0) else { panic!("no page") };
    assert_eq!((page.entries.len(), page.end), (1, true));
    for (parent, name, errno) in [
        (dir, "f9", Errno::ENOENT),
        (dir, "", Errno::ENOENT),
        (dir, "..", Errno::ENOENT),
        (dir, "a/b", Errno::EINVAL),
        (page.entries[0].attr.ino, "x", Errno::ENOTDIR),
        (999, "x", Errno::ESTALE),
    ] {
        assert_eq!(ask(parent, name, 9), Reply::Error(errno), "{name}");
    }
}

/// A client's kernel moves the entry that it has cached. Catches a rename of an inode that another
/// client has put in its place.
#[test]
fn a_rename_of_another_inode_than_the_client_has_cached_is_refused() {
    let fixture = fixture(16, 8);
    let a = fixture.client(1);
    let (one, two) = (a.create("one").attr.ino, a.create("two").attr.ino);
    let rename = |name: &'static str, new_name: &'static str, cached: (Option<u64>, Option<u64>)| {
        a.ask(Request::Rename {
            parent: ROOT_INO,
            name: name.as_bytes(),
            new_parent: ROOT_INO,
            new_name: new_name.as_bytes(),
            flags: RenameFlags::empty(),
            whiteout: None,
            moved: cached.0,
            replaced: cached.1,
        })
    };
    let stale = Reply::Error(Errno::ESTALE);
    assert_eq!(rename("one", "two", (Some(two), None)), stale);
    assert_eq!(rename("one", "two", (Some(one), Some(one))), stale);
    assert_eq!(rename("three", "one", (Some(one), None)), Reply::Error(Errno::ENOENT));
    let ino_of = |name| match a.ask(lookup(ROOT_INO, name)) {
        Reply::Attr(attr) => Some(attr.ino),
        _ => None,
    };
    assert_eq!((ino_of("one"), ino_of("two")), (Some(one), Some(two)), "no effect");
    // A new name that the client does not know may exist.
    a.close(two);
    assert_eq!(rename("one", "two", (Some(one), None)), Reply::Done);
    assert_eq!((ino_of("one"), ino_of("two")), (None, Some(one)));
    // The new name has gone: the kernel replaces nothing.
    assert_eq!(rename("two", "three", (Some(one), Some(two))), Reply::Done);
}
