//! Space of files: allocation, truncation, and the sessions that can still reach freed space.

use rfs_proto::{Extent, MAX_FILE_SIZE};

use super::*;

fn extent(file: u64, arena: u64, len: u64) -> Extent {
    Extent { file: file * B, arena: arena * B, len: len * B }
}

#[test]
fn a_file_grows_contiguously() {
    let fixture = fixture(4096, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    // The first allocation is exact, in whole blocks; the next ones get more ahead of need.
    let layout = client.allocate(file.ino, 0, 5000);
    assert_eq!(layout, Layout { generation: 0, extents: vec![extent(0, 0, 2)], complete: true });
    assert_eq!(fixture.free_blocks(), 4094);
    let layout = client.allocate(file.ino, 2 * B, 1);
    assert_eq!(layout.extents, [extent(0, 0, 19)]);
    assert_eq!(client.allocate(file.ino, 18 * B, B).extents, layout.extents);
    // The reported blocks are those of the size, without the space ahead of need.
    client.write(&file, &layout, 0, &[7; 9000], 5000);
    let attr = client.stat(file.ino);
    assert_eq!((attr.size, attr.blocks), (9000, 24));
    // The last close frees the space ahead of need.
    client.close(file.ino);
    assert_eq!(fixture.free_blocks(), 4096 - 3);
    let opened = client.opened(Request::Open { ino: file.ino, write: true });
    assert_eq!(opened.layout, Layout { generation: 2, extents: vec![extent(0, 0, 3)], complete: true });
    assert_eq!(client.read(&opened.layout, 0, 9000), vec![7; 9000]);
    fixture.assert_free_space_is_zero(&[&opened.layout]);
}

#[test]
fn files_that_grow_side_by_side_are_in_few_pieces() {
    const BLOCKS: u64 = 16 << 10;
    let fixture = fixture(8 * BLOCKS, 8);
    let client = fixture.client(1);
    let files = ["a", "b"].map(|name| client.create(name).attr.ino);
    // In turn, 128 KiB at a time, as the kernel writes.
    let step = 32;
    for at in (0..BLOCKS).step_by(step) {
        files.iter().for_each(|&ino| drop(client.allocate(ino, at * B, step as u64 * B)));
    }
    for ino in files {
        let layout = client.layout(Request::Layout { ino, offset: 0 });
        assert!(layout.complete && layout.extents.iter().map(|extent| extent.len).sum::<u64>() >= BLOCKS * B);
        assert!(layout.extents.len() <= 12, "{:?}", layout.extents);
    }
}

#[test]
fn space_ahead_of_need_becomes_a_hole_when_the_file_grows() {
    let fixture = fixture(4096, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    client.allocate(file.ino, 0, 5000);
    let layout = client.allocate(file.ino, 2 * B, 1);
    assert_eq!(layout.extents, [extent(0, 0, 19)]);
    client.write(&file, &layout, 0, &[7; 9000], 5000);
    // Not while the file stays within the requested space.
    assert_eq!(client.truncate(file.ino, 3 * B).layout_generation, 0);
    let attr = client.truncate(file.ino, 100 * B);
    assert_eq!((attr.size, attr.blocks, attr.layout_generation), (100 * B, 24, 2));
    let layout = client.layout(Request::Layout { ino: file.ino, offset: 0 });
    assert_eq!(layout.extents, [extent(0, 0, 3)]);
    assert_eq!(fixture.free_blocks(), 4096 - 3);
    assert_eq!(client.read(&layout, 0, 12_288), [vec![7; 9000], vec![0; 3288]].concat());
    fixture.assert_free_space_is_zero(&[&layout]);
}

#[test]
fn an_access_moves_one_time_forward_and_nothing_else() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let before = client.create("f").attr;
    let ino = before.ino;
    for (at, atime) in [(before.atime + 5, 5), (before.atime + 3, 5), (before.atime + 6, 6), (i64::MIN, 6)] {
        client.done(Request::Accessed { ino, at });
        let expected = Attr { atime: before.atime + atime, ..before };
        assert_eq!(client.stat(ino), expected);
    }
    assert_eq!(client.error(Request::Accessed { ino: 99, at: 1 }), Errno::ESTALE);
}

#[test]
fn only_sessions_with_the_file_open_get_space_and_layouts() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let ino = one.create("f").attr.ino;
    assert_eq!(two.error(Request::Layout { ino, offset: 0 }), Errno::EBADF);
    assert_eq!(two.error(Request::Allocate { ino, offset: 0, len: 1 }), Errno::EBADF);
    assert_eq!(two.error(Request::Close { ino }), Errno::EBADF);
    one.close(ino);
    assert_eq!(one.error(Request::Allocate { ino, offset: 0, len: 1 }), Errno::EBADF);
    assert_eq!(fixture.free_blocks(), 16);
}

#[test]
fn holes() {
    let fixture = fixture(64, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    client.truncate(file.ino, 40 * B + 5);
    assert_eq!(client.stat(file.ino).blocks, 0);
    let layout = client.allocate(file.ino, 10 * B + 1, B);
    assert_eq!(layout.extents, [extent(10, 0, 2)]);
    let layout = client.allocate(file.ino, 8 * B, 6 * B);
    assert_eq!(layout.extents, [extent(8, 2, 2), extent(10, 0, 2), extent(12, 4, 2)]);
    let attr = client.stat(file.ino);
    assert_eq!((attr.size, attr.blocks), (40 * B + 5, 6 * 8));
    let layout = client.layout(Request::Layout { ino: file.ino, offset: 11 * B });
    assert_eq!(layout.extents, [extent(10, 0, 2), extent(12, 4, 2)]);
    assert_eq!(client.read(&layout, 8 * B, 20), [0; 20]);
}

#[test]
fn truncation() {
    let fixture = fixture(64, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    let layout = client.allocate(file.ino, 0, 10 * B);
    client.write(&file, &layout, 0, &vec![9; 10 * B as usize], 2000);

    fixture.clock.set(5000);
    let attr = client.truncate(file.ino, 2 * B + 100);
    assert_eq!((attr.size, attr.mtime, attr.ctime, attr.blocks), (2 * B + 100, 5000, 5000, 24));
    assert_eq!(attr.layout_generation, 2);
    assert_eq!(fixture.free_blocks(), 61);
    // Growing again shows zeroes, from the exact byte on.
    fixture.clock.set(6000);
    let attr = client.truncate(file.ino, 10 * B);
    assert_eq!((attr.size, attr.mtime, attr.blocks, attr.layout_generation), (10 * B, 6000, 24, 2));
    let layout = client.layout(Request::Layout { ino: file.ino, offset: 0 });
    let bytes = client.read(&layout, 0, 10 * B);
    assert!(bytes[..2 * B as usize + 100].iter().all(|&b| b == 9));
    assert!(bytes[2 * B as usize + 100..].iter().all(|&b| b == 0));
    // Truncation to the same size only changes times.
    fixture.clock.set(7000);
    let again = client.truncate(file.ino, 10 * B);
    assert_eq!(again, Attr { mtime: 7000, ctime: 7000, ..attr });
    // Truncation within a block only zeroes bytes.
    let attr = client.truncate(file.ino, 2 * B + 1);
    // A writer there must learn of it.
    assert_eq!((attr.layout_generation, attr.blocks), (4, 24));
    assert_eq!(client.read(&layout, 2 * B, 3), [9, 0, 0]);
    let attr = client.truncate(file.ino, 0);
    assert_eq!((attr.layout_generation, attr.blocks, fixture.free_blocks()), (6, 0, 64));
    fixture.assert_free_space_is_zero(&[]);
}

#[test]
fn limits_of_offsets() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    for (offset, len) in [(u64::MAX, 1), (MAX_FILE_SIZE, 1), (0, MAX_FILE_SIZE + 1), (1, u64::MAX)] {
        assert_eq!(client.error(Request::Allocate { ino, offset, len }), Errno::EFBIG);
    }
    assert_eq!(client.error(Request::Allocate { ino, offset: 0, len: MAX_FILE_SIZE }), Errno::ENOSPC);
    assert_eq!(client.allocate(ino, 5, 0).extents, []);
    let last = client.allocate(ino, MAX_FILE_SIZE - 1, 1);
    assert_eq!(last.extents[0].file_end(), 1 << 63);
    assert_eq!(client.truncate(ino, MAX_FILE_SIZE).size, MAX_FILE_SIZE);
    let changes = SetAttr { size: Some(MAX_FILE_SIZE + 1), ..SetAttr::default() };
    assert_eq!(client.error(Request::SetAttr { ino, changes }), Errno::EFBIG);
    assert_eq!(client.error(Request::SetAttr { ino: ROOT_INO, changes }), Errno::EISDIR);
    assert_eq!(client.layout(Request::Layout { ino, offset: u64::MAX }).extents, []);
}

#[test]
fn space_goes_with_the_last_name_and_the_last_open() {
    let fixture = fixture(16, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let file = one.create("f").attr;
    let layout = one.allocate(file.ino, 0, 8 * B);
    one.write(&file, &layout, 0, &vec![1; 8 * B as usize], 2000);
    two.opened(Request::Open { ino: file.ino, write: true });
    one.unlink("f");
    assert_eq!(one.error(lookup(ROOT_INO, "f")), Errno::ENOENT);
    let attr = two.stat(file.ino);
    assert_eq!((attr.nlink, attr.size), (0, 8 * B));
    one.close(file.ino);
    assert_eq!((fixture.free_blocks(), fixture.free_inodes()), (8, 6));
    let layout = two.layout(Request::Layout { ino: file.ino, offset: 0 });
    assert_eq!(two.read(&layout, 0, 4), [1; 4]);
    two.close(file.ino);
    assert_eq!((fixture.free_blocks(), fixture.free_inodes()), (16, 7));
    assert_eq!(two.error(Request::GetAttr { ino: file.ino }), Errno::ESTALE);
    assert_eq!(two.record(&file), None);
    fixture.assert_free_space_is_zero(&[]);
    // The slot is reused; the inode number is not.
    let next = one.create("g").attr;
    assert_eq!((next.slot, next.size), (file.slot, 0));
    assert!(next.ino > file.ino);
}

#[test]
fn replaced_by_rename_while_open() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let old = client.create("old").attr;
    client.allocate(old.ino, 0, 4 * B);
    let new = client.create("new").attr;
    client.done(rename((ROOT_INO, "new"), (ROOT_INO, "old"), RenameFlags::empty()));
    assert_eq!(client.attr(lookup(ROOT_INO, "old")).ino, new.ino);
    assert_eq!((client.stat(old.ino).nlink, fixture.free_blocks()), (0, 12));
    client.close(old.ino);
    assert_eq!(fixture.free_blocks(), 16);
}

#[test]
fn truncated_space_waits_for_other_sessions() {
    let fixture = fixture(16, 8);
    let (one, two, three) = (fixture.client(1), fixture.client(2), fixture.client(3));
    let file = one.create("f").attr;
    let layout = one.allocate(file.ino, 0, 16 * B);
    one.write(&file, &layout, 0, &[1; 100], 2000);
    two.opened(Request::Open { ino: file.ino, write: true });
    two.opened(Request::Open { ino: file.ino, write: true });
    three.opened(Request::Open { ino: file.ino, write: true });
    one.truncate(file.ino, 0);
    // Sessions 2 and 3 may still be writing to the space.
    assert_eq!(fixture.free_blocks(), 0);
    let other = one.create("g").attr.ino;
    assert_eq!(one.error(Request::Allocate { ino: other, offset: 0, len: 1 }), Errno::ENOSPC);
    two.write(&file, &layout, 0, &[2; 100], 2000);
    two.close(file.ino);
    three.close(file.ino);
    assert_eq!(fixture.free_blocks(), 0);
    fixture.dispatcher.attachments().ended(2);
    assert_eq!(fixture.free_blocks(), 16);
    fixture.assert_free_space_is_zero(&[]);
}

#[test]
fn a_dead_session_lets_everything_go() {
    let fixture = fixture(64, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let kept = one.create("kept").attr;
    let layout = one.allocate(kept.ino, 0, B);
    one.write(&kept, &layout, 0, b"abc", 2000);
    one.allocate(kept.ino, B, B);
    let gone = one.create("gone").attr.ino;
    one.allocate(gone, 0, 4 * B);
    one.unlink("gone");
    assert!(fixture.free_blocks() < 64 - 5);
    fixture.dispatcher.attachments().ended(1);
    assert_eq!((fixture.free_blocks(), fixture.free_inodes()), (63, 6));
    let opened = two.opened(Request::Open { ino: kept.ino, write: true });
    assert_eq!(two.read(&opened.layout, 0, 4), b"abc\0");
    assert_eq!(two.error(Request::GetAttr { ino: gone }), Errno::ESTALE);
}

#[test]
fn bytes_behind_the_end_are_gone_after_the_last_close() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    let layout = client.allocate(file.ino, 0, B);
    client.write(&file, &layout, 0, b"abc", 2000);
    // A write that did not get to raise the size.
    fixture.arena.write(layout.extents[0].arena as usize + 3, b"lost");
    client.close(file.ino);
    client.truncate(file.ino, 10);
    assert_eq!(client.read(&layout, 0, 10), b"abc\0\0\0\0\0\0\0");
}

#[test]
fn a_session_that_ended_meanwhile_leaves_no_lease() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    client.close(ino);
    // As if the session check had passed just before the session ended.
    let session = fixture.dispatcher.sessions.get(1).unwrap();
    fixture.dispatcher.attachments().ended(1);
    let call = Call::new(&fixture.dispatcher.store, &*fixture.clock, &session, None);
    assert_eq!(call.locked(&[ino], |meta| meta.open(1, ino, true)), Err(Errno::EPROTO));
    assert!(!call.look(&[ino], |look| look.open_files(ino).is_open(ino)));
}
