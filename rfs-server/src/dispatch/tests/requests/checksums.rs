//! Files with checksums: writes by the server, and all other requests that change bytes.

use proptest::prelude::*;
use rfs_proto::{BadBlock, FallocateFlags, Growth, Verified, WRITE_PART, checksum};

use super::*;
use crate::space::{alloc::range::Range, bytes::Bytes};

struct Checked {
    fixture: Fixture,
    bytes: Bytes,
}

fn checked(blocks: u64) -> Checked {
    checked_with(blocks, 64)
}

fn checked_with(blocks: u64, inodes: usize) -> Checked {
    let arena = Arc::new(Memory::private((blocks * B) as usize).unwrap());
    let words = Memory::private(checksum::region_len(blocks * B) as usize).unwrap();
    let bytes = Bytes::new(Arc::clone(&arena), Some(Arc::new(words)));
    let table = Arc::new(Memory::private(inodes * record::LEN).unwrap());
    let clock = Arc::new(ManualClock::new(1000));
    let space = Arc::new(Space::new(bytes.clone(), Zeroing::Inline));
    let dispatcher =
        Dispatcher::new(space, Arc::clone(&table), ROOT, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    Checked { fixture: Fixture { dispatcher, arena, table, clock }, bytes }
}

impl Checked {
    fn flip(&self, place: u64) {
        let mut byte = [0];
        self.fixture.arena.read(place as usize, &mut byte);
        self.fixture.arena.write(place as usize, &[byte[0] ^ 0x10]);
    }

    fn bad(&self) -> Vec<u64> {
        let all = Range { start: 0, len: self.bytes.len() };
        self.bytes.bad(all).iter().map(|bad| bad.place / B).collect()
    }
}

fn write(ino: u64, offset: u64, growth: Growth, data: &[u8]) -> Request<'_> {
    Request::Write { ino, offset, check: checksum::check_data(data), growth, data }
}

fn verify(client: &Client<'_>, ino: u64, offset: u64) -> Verified {
    match client.ask(Request::Verify { ino, offset }) {
        Reply::Verified(verified) => verified,
        other => panic!("{other:?}"),
    }
}

/// Scrubs everything. Returns the number of blocks and the bad blocks.
fn verify_all(client: &Client<'_>) -> (u64, Vec<BadBlock>) {
    let (mut blocks, mut bad, mut at) = (0, Vec::new(), Some((0, 0)));
    while let Some((ino, offset)) = at {
        let part = verify(client, ino, offset);
        blocks += part.blocks;
        bad.extend(part.bad);
        at = part.next;
    }
    (blocks, bad)
}

fn contents(client: &Client<'_>, ino: u64, size: u64) -> Vec<u8> {
    let layout = client.layout(Request::Layout { ino, offset: 0 });
    client.read(&layout, 0, size)
}

#[test]
fn a_write_gets_space_and_sets_the_size_as_requested() {
    let checked = checked(64);
    let client = checked.fixture.client(1);
    let ino = client.create("a").attr.ino;
    client.done(write(ino, 2 * B + 1, Growth::Stay, b"later"));
    assert_eq!(client.stat(ino).size, 0);
    client.done(write(ino, 0, Growth::Reach, b"first"));
    client.done(write(ino, 1, Growth::Reach, b"i"));
    assert_eq!(client.stat(ino).size, 5);
    assert_eq!(client.error(write(ino, 4, Growth::From(4), b"xx")), Errno::EAGAIN);
    client.done(write(ino, 5, Growth::From(5), b"!"));
    assert_eq!((client.stat(ino).size, contents(&client, ino, 6)), (6, b"first!".to_vec()));
    // The bytes of an unfinished write lie beyond the end, and go with the last close.
    assert_eq!(contents(&client, ino, 2 * B + 6)[2 * B as usize + 1..], *b"later");
    client.close(ino);
    client.opened(Request::Open { ino, write: false });
    assert!(contents(&client, ino, 2 * B + 6)[6..].iter().all(|&byte| byte == 0));
    assert!(checked.bad().is_empty());
}

#[test]
fn damaged_and_invalid_writes_are_refused() {
    let checked = checked(16);
    let client = checked.fixture.client(1);
    let ino = client.create("a").attr.ino;
    let damaged = Request::Write { ino, offset: 0, check: 7, growth: Growth::Reach, data: b"x" };
    assert_eq!(client.error(damaged), Errno::EBADMSG);
    assert_eq!(client.error(write(ino, 0, Growth::Reach, b"")), Errno::EINVAL);
    assert_eq!(client.error(write(ino, 0, Growth::Reach, &[0; WRITE_PART + 1])), Errno::EINVAL);
    assert_eq!(client.error(write(ino, u64::MAX, Growth::Reach, b"x")), Errno::EFBIG);
    assert_eq!(client.error(write(ino, 1 << 63, Growth::Reach, b"x")), Errno::EFBIG);
    assert_eq!(client.error(write(ROOT_INO, 0, Growth::Reach, b"x")), Errno::EBADF);
    let other = checked.fixture.client(2);
    assert_eq!(other.error(write(ino, 0, Growth::Reach, b"x")), Errno::EBADF);
    assert_eq!((client.stat(ino).size, checked.fixture.free_blocks()), (0, 16));
    // A write without enough space changes nothing.
    client.done(write(ino, 0, Growth::Reach, &[1; 15 * B as usize]));
    assert_eq!(client.error(write(ino, 15 * B, Growth::Reach, &[2; 2 * B as usize])), Errno::ENOSPC);
    assert_eq!(client.stat(ino).size, 15 * B);
    client.done(write(ino, 14 * B, Growth::Reach, &[3; 2 * B as usize]));
}

#[test]
fn a_bad_block_is_reported_and_heals_when_it_is_written() {
    let checked = checked(64);
    let client = checked.fixture.client(1);
    let directory = client.mkdir(ROOT_INO, "d").ino;
    let file = client.opened(create(directory, "f", true)).attr.ino;
    client.done(write(file, B, Growth::Reach, &[7; 3 * B as usize]));
    let layout = client.layout(Request::Layout { ino: file, offset: 0 });
    let place = layout.extents[0].arena + B;
    checked.flip(place + 17);
    let (blocks, bad) = verify_all(&client);
    let expected = checksum::check(&[7; B as usize]);
    let [BadBlock { ino, offset, arena, expected: e, found, path }] = &bad[..] else { panic!("{bad:?}") };
    assert_eq!((*ino, *offset, *arena, *e), (file, 2 * B, place, expected));
    assert_ne!(*found, expected);
    assert_eq!((blocks, &path[..]), (3, &b"/d/f"[..]));
    // A write of a part or a copy would give bad bytes a valid checksum.
    assert_eq!(client.error(write(file, 2 * B + 5, Growth::Reach, b"x")), Errno::EIO);
    let to = client.create("copy").attr.ino;
    let copy = |from_offset| Request::Copy { from: file, from_offset, to, to_offset: 0, len: 10 };
    assert_eq!(client.error(copy(2 * B)), Errno::EIO);
    assert!(matches!(client.ask(copy(B)), Reply::Copied(_)));
    assert_eq!(verify_all(&client).1.len(), 1);
    client.done(write(file, 2 * B - 5, Growth::Reach, &[8; B as usize + 10]));
    assert_eq!(verify_all(&client), (4, vec![]));
    // A write to the end of a file writes its last block as a whole.
    client.done(write(file, 4 * B, Growth::Reach, b"end"));
    let last = client.layout(Request::Layout { ino: file, offset: 4 * B }).extents[0];
    checked.flip(last.arena + 4 * B - last.file);
    assert_eq!(client.error(write(file, 4 * B, Growth::Reach, b"en")), Errno::EIO);
    client.done(write(file, 4 * B, Growth::Reach, b"END"));
    assert!(checked.bad().is_empty());
}

/// Empty files count, because a request could otherwise look at any number of files.
#[test]
fn empty_files_count() {
    let checked = checked_with(8, 1200);
    let client = checked.fixture.client(1);
    for file in 0..1100 {
        let ino = client.create(&file.to_string()).attr.ino;
        if file == 1050 {
            client.done(write(ino, 0, Growth::Reach, b"x"));
        }
        client.close(ino);
    }
    let (mut replies, mut blocks, mut at) = (0, 0, Some((0, 0)));
    while let Some((ino, offset)) = at {
        let part = verify(&client, ino, offset);
        (replies, blocks, at) = (replies + 1, blocks + part.blocks, part.next);
    }
    assert_eq!((replies, blocks), (2, 1));
}

/// Each bad file is reported with its path. A reply contains few files, because their paths have
/// to be searched.
#[test]
fn a_reply_contains_a_bounded_number_of_bad_files() {
    let checked = checked(64);
    let client = checked.fixture.client(1);
    let directory = client.mkdir(ROOT_INO, "d").ino;
    for file in 0..20 {
        let ino = client.opened(create(directory, &file.to_string(), true)).attr.ino;
        client.done(write(ino, 0, Growth::Reach, b"x"));
        checked.flip(client.layout(Request::Layout { ino, offset: 0 }).extents[0].arena);
    }
    assert_eq!(verify(&client, 0, 0).bad.len(), 8);
    let mut paths: Vec<Vec<u8>> = verify_all(&client).1.into_iter().map(|bad| bad.path).collect();
    paths.sort_unstable();
    let mut expected: Vec<Vec<u8>> = (0..20).map(|file| format!("/d/{file}").into_bytes()).collect();
    expected.sort_unstable();
    assert_eq!(paths, expected);
}

#[test]
fn a_scrub_runs_in_steps_and_reads_every_file_once() {
    let checked = checked(2048);
    let client = checked.fixture.client(1);
    let large = client.create("large").attr.ino;
    for part in 0..50 {
        client.done(write(large, part * WRITE_PART as u64, Growth::Reach, &[1; WRITE_PART]));
    }
    let mut used = 0;
    let layout = client.layout(Request::Layout { ino: large, offset: 0 });
    used += layout.extents.iter().map(|extent| extent.len / B).sum::<u64>();
    for file in 0..40 {
        let ino = client.create(&file.to_string()).attr.ino;
        client.done(write(ino, file * B, Growth::Reach, b"x"));
        used += 1;
    }
    assert_eq!(used, 2048 - checked.fixture.free_blocks());
    // More bad blocks than fit into one reply.
    for block in 100..200 {
        checked.flip(layout.extents[0].arena + block * B);
    }
    let first = verify(&client, large, 0);
    assert!(first.blocks <= 256 && first.next.is_some() && first.bad.len() <= 64, "{first:?}");
    let (blocks, bad) = verify_all(&client);
    assert_eq!(blocks, used);
    let offsets: Vec<u64> = bad.iter().map(|bad| bad.offset / B).collect();
    assert_eq!(offsets, (100..200).collect::<Vec<u64>>());
    // A file that is removed in between does not stop the scrub.
    client.close(large);
    client.unlink("large");
    verify(&client, large, 300 * B);
    assert_eq!(verify_all(&client), (40, vec![]));
    let plain = fixture(8, 8);
    assert_eq!(plain.client(1).error(Request::Verify { ino: 0, offset: 0 }), Errno::EOPNOTSUPP);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Truncate(u64),
    Fallocate(u64, u64, u32),
    Copy(u64, u64, u64),
    Reopen,
}

const SIZE: u64 = 12 * B;

fn step() -> impl Strategy<Value = Step> {
    let place = || prop_oneof![0..SIZE, (0..SIZE / B, 0..3u64).prop_map(|(b, at)| b * B + at)];
    let len = || prop_oneof![1..2 * B, Just(B), Just(3 * B)];
    prop_oneof![
        4 => (place(), len(), 1..255u8).prop_map(|(at, len, byte)| Step::Write(at, len as usize, byte)),
        2 => place().prop_map(Step::Truncate),
        2 => (place(), len(), prop::sample::select(vec![0, 1, 3, 16, 17]))
            .prop_map(|(at, len, flags)| Step::Fallocate(at, len, flags)),
        1 => (place(), place(), len()).prop_map(|(from, to, len)| Step::Copy(from, to, len)),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    /// After any request that changes bytes, the file is right, and all checksums match, also those
    /// of free space.
    #[test]
    fn checksums_match_after_any_request(steps in prop::collection::vec(step(), 1..25)) {
        let checked = checked(64);
        let client = checked.fixture.client(1);
        let ino = client.create("a").attr.ino;
        let mut model: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Write(at, len, byte) => {
                    let data = vec![byte; len];
                    client.done(write(ino, at, Growth::Reach, &data));
                    model.resize(model.len().max(at as usize + len), 0);
                    model[at as usize..at as usize + len].copy_from_slice(&data);
                }
                Step::Truncate(size) => {
                    client.truncate(ino, size);
                    model.resize(size as usize, 0);
                }
                Step::Fallocate(offset, len, flags) => {
                    let flags = FallocateFlags::from_bits_retain(flags);
                    client.attr(Request::Fallocate { ino, offset, len, flags });
                    let (at, end) = (offset as usize, (offset + len) as usize);
                    if !flags.contains(FallocateFlags::KEEP_SIZE) {
                        model.resize(model.len().max(end), 0);
                    }
                    if !(flags - FallocateFlags::KEEP_SIZE).is_empty() {
                        let end = end.min(model.len());
                        model.get_mut(at..end).into_iter().for_each(|part| part.fill(0));
                    }
                }
                Step::Copy(from_offset, to_offset, len) => {
                    let copy = Request::Copy { from: ino, from_offset, to: ino, to_offset, len };
                    let overlap = from_offset < to_offset + len && to_offset < from_offset + len;
                    match client.ask(copy) {
                        Reply::Copied(_) => {
                            let (at, to) = (from_offset as usize, to_offset as usize);
                            let part = model.get(at..).map_or(&[][..], |rest| &rest[..rest.len().min(len as usize)]).to_vec();
                            if !part.is_empty() {
                                model.resize(model.len().max(to + part.len()), 0);
                                model[to..to + part.len()].copy_from_slice(&part);
                            }
                        }
                        reply => prop_assert!(overlap, "{:?}", reply),
                    }
                }
                Step::Reopen => {
                    client.close(ino);
                    client.opened(Request::Open { ino, write: true });
                }
            }
            prop_assert_eq!(client.stat(ino).size, model.len() as u64);
            prop_assert!(contents(&client, ino, model.len() as u64) == model);
            prop_assert_eq!(checked.bad(), Vec::<u64>::new());
        }
        let layout = client.layout(Request::Layout { ino, offset: 0 });
        checked.fixture.assert_free_space_is_zero(&[&layout]);
        client.close(ino);
        client.unlink("a");
        checked.fixture.assert_free_space_is_zero(&[]);
        prop_assert_eq!(checked.bad(), Vec::<u64>::new());
    }
}
