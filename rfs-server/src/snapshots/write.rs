//! Writes a snapshot of a file system that is in use.
//!
//! First the inodes are described, shard by shard, together with concurrent changes; the end of the
//! description is the moment of the snapshot. Then the arena is copied from start to end, without
//! free space and zero blocks, and verified if it has checksums. Sizes are read before the bytes,
//! because a client writes the bytes first.
//!
//! # Concurrency
//! One thread, possibly of low priority. A request waits at most while one shard is described.

use std::io::{self, Write};

use rfs_proto::BLOCK;
use rustix::io::{Errno, pread};

use super::format::{Frames, Header, Kind};
use crate::{
    dispatch::{Dispatcher, SnapshotDelta},
    metadata::attr_table::ClientFields,
    space::{alloc::range::Range, bytes::Bad},
};

/// Bytes that are copied at a time.
const CHUNK: u64 = 1 << 20;
const ZERO: [u8; BLOCK as usize] = [0; BLOCK as usize];
/// Maximum number of sizes and times in a frame.
const WRITTEN: usize = 32 << 10;

/// Progress of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the arena that are done.
    pub done: u64,
    /// Size of the arena in bytes.
    pub all: u64,
}

/// Writes a snapshot. Calls `go_on` regularly; its error aborts the snapshot.
pub fn snapshot<W: Write>(
    dispatcher: &Dispatcher,
    header: &Header,
    out: W,
    mut go_on: impl FnMut(Progress) -> io::Result<()>,
) -> io::Result<W> {
    let mut frames = Frames::begin(out, header)?;
    let all = header.arena;
    let moment = dispatcher.snapshot_source().describe(|said| {
        describe(&mut frames, &said)?;
        go_on(Progress { done: 0, all })
    })?;
    let mut written = Vec::new();
    let hold = moment.written(|one| -> io::Result<()> {
        written.push(one);
        if written.len() == WRITTEN {
            tell(&mut frames, Kind::WrittenLater, &written)?;
            written.clear();
        }
        Ok(())
    })?;
    tell(&mut frames, Kind::WrittenLater, &written)?;
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < all {
        let chunk = Range { start: at, len: CHUNK.min(all - at) };
        for range in hold.to_copy(chunk) {
            buffer.resize(range.len as usize, 0);
            read(dispatcher, range.start, &mut buffer)?;
            let bad = dispatcher.snapshot_source().bytes().mend(range.start, &mut buffer);
            copy(&mut frames, range.start, &buffer)?;
            tell_bad(&mut frames, &bad)?;
        }
        at = chunk.end();
        hold.copied_to(at);
        go_on(Progress { done: at, all })?;
    }
    frames.end()
}

fn describe<W: Write>(frames: &mut Frames<W>, said: &SnapshotDelta) -> io::Result<()> {
    for ops in said.pieces.iter().filter(|ops| !ops.is_empty()) {
        frames.frame(Kind::Ops, &[ops])?;
    }
    said.written.chunks(WRITTEN).try_for_each(|written| tell(frames, Kind::Written, written))
}

fn tell<W: Write>(frames: &mut Frames<W>, kind: Kind, written: &[ClientFields]) -> io::Result<()> {
    if written.is_empty() {
        return Ok(());
    }
    let words = written.iter().flat_map(|one| [one.ino, one.size, one.time as u64]);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    frames.frame(kind, &[&bytes]).map(drop)
}

/// Records bad blocks behind their bytes. A restore would otherwise compute checksums that match
/// the bad bytes.
fn tell_bad<W: Write>(frames: &mut Frames<W>, bad: &[Bad]) -> io::Result<()> {
    if bad.is_empty() {
        return Ok(());
    }
    for Bad { place, expected, found } in bad {
        log::error!(
            "the block at {place} of the arena is bad, and so is its copy in the snapshot: checksum {found:08x}, expected {expected:08x}"
        );
    }
    let words = bad.iter().flat_map(|bad| [bad.place, bad.expected.into()]);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    frames.frame(Kind::Bad, &[&bytes]).map(drop)
}

/// Reads bytes of the arena. A read does not allocate pages that were never touched.
fn read(dispatcher: &Dispatcher, start: u64, out: &mut [u8]) -> io::Result<()> {
    let arena = dispatcher.snapshot_source().bytes().memory();
    let Some(fd) = arena.fd() else {
        arena.read(start as usize, out);
        return Ok(());
    };
    let mut done = 0;
    while done < out.len() {
        match pread(fd, &mut out[done..], start + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Writes the nonzero blocks as runs.
fn copy<W: Write>(frames: &mut Frames<W>, start: u64, bytes: &[u8]) -> io::Result<()> {
    let is_zero = |block: &&[u8]| **block == ZERO[..block.len()];
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK as usize).collect();
    let mut at = 0;
    for run in blocks.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
        let len: usize = run.iter().map(|block| block.len()).sum();
        if !is_zero(&run[0]) {
            let place = (start + at as u64).to_le_bytes();
            frames.frame(Kind::Bytes, &[&place, &bytes[at..at + len]])?;
        }
        at += len;
    }
    Ok(())
}
