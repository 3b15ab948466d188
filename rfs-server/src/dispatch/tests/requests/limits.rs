//! Full servers: they report it, and no change is lost or half done.

use std::thread;

use super::*;

#[test]
fn out_of_inodes() {
    let fixture = fixture(16, 3);
    let client = fixture.client(1);
    client.create("a");
    client.mkdir(ROOT_INO, "b");
    let before = client.stat(ROOT_INO);
    assert_eq!(client.error(create(ROOT_INO, "c", false)), Errno::ENOSPC);
    let name = &b"c"[..];
    let (parent, perm, uid, gid) = (ROOT_INO, 0o700, 0, 0);
    assert_eq!(client.error(Request::Mkdir { parent, name, perm, umask: 0, uid, gid }), Errno::ENOSPC);
    assert_eq!(client.error(Request::Symlink { parent, name, target: b"x", uid, gid }), Errno::ENOSPC);
    let whiteout = |from, to, flags| rename_as((ROOT_INO, from), (ROOT_INO, to), WHITEOUT | flags);
    assert_eq!(client.error(whiteout("a", "c", 0)), Errno::ENOSPC);
    // An existing name is reported first.
    assert_eq!(client.error(whiteout("a", "b", 0)), Errno::EISDIR);
    assert_eq!(client.error(whiteout("a", "b", 1)), Errno::EEXIST);
    client.done(whiteout("a", "a", 0));
    assert_eq!(client.error(create(ROOT_INO, "b", true)), Errno::EEXIST);
    assert_eq!((client.stat(ROOT_INO), fixture.free_inodes()), (before, 0));
    client.done(Request::Rmdir { parent, name: b"b" });
    client.done(whiteout("a", "b", 0));
    assert_eq!(fixture.free_inodes(), 0);
    client.done(Request::Unlink { parent, name: b"a" });
    client.create("c");
}

#[test]
fn one_file_can_have_everything() {
    let fixture = fixture(1000, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    for block in 0..1000 {
        client.allocate(file.ino, block * B, B);
    }
    let before = client.stat(file.ino);
    assert_eq!(client.error(Request::Allocate { ino: file.ino, offset: 1000 * B, len: 1 }), Errno::ENOSPC);
    assert_eq!(client.stat(file.ino), before);
    let layout = client.layout(Request::Layout { ino: file.ino, offset: 0 });
    assert_eq!((layout.extents.len(), layout.extents[0].len), (1, 1000 * B));
    assert_eq!(fixture.free_blocks(), 0);
}

#[test]
fn files_that_grow_together_fill_the_space() {
    let fixture = fixture(1000, 8);
    let client = fixture.client(1);
    let files: Vec<u64> = ["a", "b", "c"].map(|name| client.create(name).attr.ino).to_vec();
    let mut written = [0u64; 3];
    let mut full = [false; 3];
    while full != [true; 3] {
        for (at, &ino) in files.iter().enumerate() {
            match client.ask(Request::Allocate { ino, offset: written[at] * B, len: B }) {
                Reply::Layout(_) => written[at] += 1,
                reply => {
                    assert_eq!(reply, Reply::Error(Errno::ENOSPC));
                    full[at] = true;
                }
            }
        }
    }
    // The writers use up the space that was given ahead of need, so none is left over.
    assert_eq!((written.iter().sum::<u64>(), fixture.free_blocks()), (1000, 0));
}

#[test]
fn enospc_changes_nothing() {
    let fixture = fixture(10, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    client.allocate(ino, 2 * B, B);
    client.allocate(ino, 6 * B, B);
    let before = client.layout(Request::Layout { ino, offset: 0 });
    let (stat, free) = (client.stat(ino), fixture.free_blocks());
    let len = 11 * B;
    assert_eq!(client.error(Request::Allocate { ino, offset: 0, len }), Errno::ENOSPC);
    assert_eq!(client.layout(Request::Layout { ino, offset: 0 }), before);
    assert_eq!((client.stat(ino), fixture.free_blocks()), (stat, free));
    assert_eq!(client.allocate(ino, 0, 10 * B).extents.iter().map(|e| e.len).sum::<u64>(), 10 * B);
}

#[test]
fn fragmented_space_is_space() {
    let fixture = fixture(64, 80);
    let client = fixture.client(1);
    for i in 0..64 {
        let ino = client.create(&format!("f{i}")).attr.ino;
        client.allocate(ino, 0, B);
        client.truncate(ino, B);
        client.close(ino);
    }
    for i in (0..64).step_by(2) {
        client.unlink(&format!("f{i}"));
    }
    let ino = client.create("big").attr.ino;
    let layout = client.allocate(ino, 0, 32 * B);
    assert_eq!(layout.extents.len(), 32);
    assert_eq!(fixture.free_blocks(), 0);
}

#[test]
fn layouts_in_parts_fit_into_messages() {
    let blocks = 2 * rfs_proto::MAX_EXTENTS as u64 + 100;
    let fixture = fixture(blocks, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    // Every other block, from the end: no two extents are adjacent.
    for at in (0..blocks / 2).rev().map(|at| 2 * at) {
        client.allocate(ino, at * B, 1);
    }
    let first = client.opened(Request::Open { ino, write: true }).layout;
    assert_eq!((first.extents.len(), first.complete), (rfs_proto::MAX_EXTENTS, false));
    let offset = first.extents.last().unwrap().file_end();
    let rest = client.layout(Request::Layout { ino, offset });
    assert_eq!((rest.extents.len(), rest.complete), (50, true));
}

#[test]
fn many_threads_in_little_space() {
    let arena = Arc::new(Memory::private(64 * B as usize).unwrap());
    let table = Arc::new(Memory::private(16 * record::LEN).unwrap());
    let space = Arc::new(Space::new(Arc::clone(&arena), Zeroing::Background));
    let clock = Arc::new(ManualClock::new(1));
    let fixture = Fixture {
        dispatcher: Dispatcher::new(space, Arc::clone(&table), ROOT, clock.clone()).unwrap(),
        arena,
        table,
        clock,
    };
    thread::scope(|scope| {
        for id in 1..=4u8 {
            let fixture = &fixture;
            scope.spawn(move || {
                let client = fixture.client(u64::from(id));
                for round in 0..100 {
                    // Four times 16 blocks fit exactly, so no request may fail.
                    let name = format!("{id}-{round}");
                    let file = client.create(&name).attr;
                    let layout = client.allocate(file.ino, 0, 16 * B);
                    assert_eq!(client.read(&layout, 0, 16 * B), vec![0; 16 * B as usize]);
                    client.write(&file, &layout, 0, &vec![id; 16 * B as usize], 5);
                    assert_eq!(client.read(&layout, 0, 16 * B), vec![id; 16 * B as usize]);
                    client.close(file.ino);
                    client.unlink(&name);
                }
            });
        }
    });
    assert_eq!((fixture.free_blocks(), fixture.free_inodes()), (64, 15));
    fixture.assert_free_space_is_zero(&[]);
}
