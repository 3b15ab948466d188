//! Fallocate, hole punching and copies.

use rfs_proto::{Copied, FallocateFlags as F, MAX_FILE_SIZE};

use super::*;

const PUNCH: F = F::PUNCH_HOLE.union(F::KEEP_SIZE);

fn fallocate(ino: u64, offset: u64, len: u64, flags: F) -> Request<'static> {
    Request::Fallocate { ino, offset, len, flags }
}

fn copy(from: (u64, u64), to: (u64, u64), len: u64) -> Request<'static> {
    Request::Copy { from: from.0, from_offset: from.1, to: to.0, to_offset: to.1, len }
}

impl Client<'_> {
    fn whole(&self, ino: u64) -> Vec<u8> {
        let size = self.stat(ino).size;
        self.read(&self.layout(Request::Layout { ino, offset: 0 }), 0, size)
    }

    fn filled(&self, name: &str, blocks: u64, byte: u8) -> Attr {
        let file = self.create(name).attr;
        let layout = self.allocate(file.ino, 0, blocks * B);
        self.write(&file, &layout, 0, &vec![byte; (blocks * B) as usize], 2000);
        file
    }

    fn copied(&self, request: Request<'_>) -> u64 {
        match self.ask(request) {
            Reply::Copied(Copied { bytes, attr }) => {
                assert_eq!(self.record(&attr), Some(attr));
                bytes
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_hole_is_punched() {
    let fixture = fixture(64, 8);
    let (one, two) = (fixture.client(1), fixture.client(2));
    let ino = one.filled("f", 10, 9).ino;
    two.opened(Request::Open { ino, write: true });
    fixture.clock.set(5000);
    let attr = one.attr(fallocate(ino, 2 * B - 5, 3 * B + 10, PUNCH));
    assert_eq!((attr.size, attr.blocks, attr.mtime, attr.ctime), (10 * B, 7 * 8, 5000, 5000));
    assert_eq!(attr.layout_generation, 2);
    let mut expected = vec![9; 10 * B as usize];
    expected[2 * B as usize - 5..5 * B as usize + 5].fill(0);
    assert!(one.whole(ino) == expected);
    // Session 2 may still be writing there.
    assert_eq!(fixture.free_blocks(), 54);
    two.close(ino);
    assert_eq!(fixture.free_blocks(), 57);
    // Within one block no space is freed, but a writer has to learn of the hole.
    assert_eq!(one.attr(fallocate(ino, 1, 2, PUNCH)).layout_generation, 4);
    // A hole across the end frees the space that was given ahead of need.
    one.allocate(ino, 10 * B, 1);
    assert!(fixture.free_blocks() < 56);
    let attr = one.attr(fallocate(ino, 0, 20 * B, PUNCH));
    assert_eq!((attr.size, attr.blocks, fixture.free_blocks()), (10 * B, 0, 64));
    fixture.assert_free_space_is_zero(&[]);
}

#[test]
fn space_is_kept_beyond_the_end() {
    let fixture = fixture(64, 8);
    let client = fixture.client(1);
    let file = client.filled("f", 1, 7);
    let attr = client.attr(fallocate(file.ino, 0, 8 * B, F::KEEP_SIZE));
    assert_eq!((attr.size, attr.blocks), (B, 64));
    // The bytes of a write that did not raise the size are gone; the space stays.
    let layout = client.layout(Request::Layout { ino: file.ino, offset: 0 });
    fixture.arena.write(layout.extents[0].arena as usize + B as usize + 3, b"lost");
    client.close(file.ino);
    assert_eq!((fixture.free_blocks(), client.stat(file.ino).blocks), (56, 64));
    let attr = client.truncate(file.ino, 3 * B);
    assert_eq!((attr.blocks, fixture.free_blocks()), (24, 61));
    client.opened(Request::Open { ino: file.ino, write: true });
    assert_eq!(client.whole(file.ino)[B as usize..], vec![0; 2 * B as usize]);
}

#[test]
fn space_is_asked_for_and_zeroed() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.filled("f", 2, 7).ino;
    let attr = client.attr(fallocate(ino, B, 3 * B, F::empty()));
    assert_eq!((attr.size, attr.blocks, attr.layout_generation), (4 * B, 32, 0));
    assert_eq!(client.whole(ino), [vec![7; 2 * B as usize], vec![0; 2 * B as usize]].concat());
    let attr = client.attr(fallocate(ino, 5, B, F::ZERO_RANGE | F::KEEP_SIZE));
    assert_eq!((attr.size, attr.blocks), (4 * B, 32));
    let bytes = client.whole(ino);
    assert_eq!((&bytes[..5], &bytes[5..B as usize + 5]), (&[7; 5][..], &vec![0; B as usize][..]));
    assert!(bytes[B as usize + 5..2 * B as usize].iter().all(|&byte| byte == 7));
    assert_eq!(client.attr(fallocate(ino, 4 * B, 1, F::ZERO_RANGE)).size, 4 * B + 1);
    // A full server changes nothing, and an invalid request changes nothing.
    let before = client.stat(ino);
    for (offset, len, flags, errno) in [
        (0, 17 * B, F::empty(), Errno::ENOSPC),
        (0, 17 * B, F::ZERO_RANGE, Errno::ENOSPC),
        (0, 0, F::empty(), Errno::EINVAL),
        (MAX_FILE_SIZE, 1, F::empty(), Errno::EFBIG),
        (0, B, F::PUNCH_HOLE, Errno::EOPNOTSUPP),
        (0, B, PUNCH | F::ZERO_RANGE, Errno::EOPNOTSUPP),
        (0, B, F::from_bits_retain(8), Errno::EOPNOTSUPP),
    ] {
        assert_eq!(client.error(fallocate(ino, offset, len, flags)), errno, "{offset} {len} {flags:?}");
    }
    assert_eq!((client.stat(ino), client.whole(ino)), (before, [bytes, vec![0]].concat()));
    client.close(ino);
    assert_eq!(client.error(fallocate(ino, 0, 1, F::empty())), Errno::EBADF);
    assert_eq!(client.error(fallocate(ino, 0, 1, PUNCH)), Errno::EBADF);
}

#[test]
fn copies() {
    let fixture = fixture(2000, 8);
    let client = fixture.client(1);
    // More than one step, with a hole in the middle and an unaligned end.
    let source = client.filled("source", 200, 5);
    client.attr(fallocate(source.ino, 50 * B, 100 * B, PUNCH));
    client.truncate(source.ino, 200 * B - 77);
    let to = client.create("to").attr;
    fixture.clock.set(9000);
    assert_eq!(client.copied(copy((source.ino, 100), (to.ino, 33), 1 << 40)), 200 * B - 177);
    let attr = client.stat(to.ino);
    assert_eq!(attr.size, 200 * B - 144);
    assert!(attr.mtime >= 9000 && attr.blocks <= 102 * 8, "holes stay holes: {attr:?}");
    assert!(client.whole(to.ino)[33..] == client.whole(source.ino)[100..]);
    assert_eq!(client.whole(to.ino)[..33], [0; 33]);
    // A hole that is copied over data becomes zeroes.
    let other = client.filled("other", 200, 6);
    assert_eq!(client.copied(copy((source.ino, 49 * B), (other.ino, B), 3 * B)), 3 * B);
    let bytes = client.whole(other.ino);
    let run = |byte: u8, blocks: u64| vec![byte; (blocks * B) as usize];
    assert!(bytes == [run(6, 1), run(5, 1), run(0, 2), run(6, 196)].concat());
    // Within one file.
    assert_eq!(client.copied(copy((other.ino, 0), (other.ino, 3 * B), 3 * B)), 3 * B);
    assert!(
        client.whole(other.ino)[..6 * B as usize]
            == [run(6, 1), run(5, 1), run(0, 1), run(6, 1), run(5, 1), run(0, 1)].concat()
    );
    assert_eq!(client.error(copy((other.ino, 0), (other.ino, B), B + 1)), Errno::EINVAL);
    assert_eq!(client.copied(copy((other.ino, 200 * B), (to.ino, 0), 5)), 0);
    // Bytes that the copy itself appends to the source are not copied.
    assert_eq!(client.copied(copy((other.ino, 200 * B - 5), (other.ino, 300 * B), 99 * B)), 5);
    assert_eq!(client.stat(other.ino).size, 300 * B + 5);
    assert_eq!(client.error(copy((other.ino, 0), (to.ino, MAX_FILE_SIZE), 1)), Errno::EFBIG);
    client.close(source.ino);
    assert_eq!(client.error(copy((source.ino, 0), (to.ino, 0), 1)), Errno::EBADF);
}

#[test]
fn a_copy_into_too_little_space_is_short() {
    let fixture = fixture(200, 8);
    let client = fixture.client(1);
    let source = client.filled("source", 120, 5).ino;
    let to = client.create("to").attr.ino;
    let bytes = client.copied(copy((source, 0), (to, 0), 120 * B));
    assert!((1..=80 * B).contains(&bytes) && bytes == client.stat(to).size, "{bytes}");
    assert!(client.whole(to) == vec![5; bytes as usize]);
    client.filled("rest", fixture.free_blocks(), 1);
    assert_eq!(client.error(copy((source, 0), (to, 100 * B), B)), Errno::ENOSPC);
}
