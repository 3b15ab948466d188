//! Reads and verifies a snapshot.
//!
//! # Concurrency
//! Plain values.

use std::io::Read;

use rfs_proto::{BLOCK, Extent, MAX_FILE_SIZE, record};

pub use super::format::ReadError;
use super::format::{Header, Kind, Reader};
use crate::{
    memory_object::{
        op::{self, Op},
        replay::State,
    },
    metadata::{
        attr_table::ClientFields,
        id_map::ByNumber,
        namespace::inode::{Body, Inode},
    },
    space::{alloc::range::Range, file_extents::block_up},
};

/// A file system without the bytes of its files.
#[derive(Debug)]
pub struct Contents {
    /// Header of the snapshot.
    pub header: Header,
    /// The inodes, with their times. Files have the space that they keep when no session has them
    /// open.
    pub state: State,
    /// Sizes of the files.
    pub sizes: ByNumber<u64>,
    /// Ranges of the arena with file data, in order.
    pub places: Vec<Range>,
}

impl Contents {
    /// Reads and verifies a whole file.
    ///
    /// # Errors
    /// The first damage or contradiction; the caller then uses nothing of the file.
    pub fn read(input: impl Read) -> Result<Contents, ReadError> {
        let mut reader = Reader::begin(input)?;
        let header = reader.header;
        let mut state = State::default();
        let (mut written, mut later) = (ByNumber::default(), ByNumber::default());
        while let Some((kind, body)) = reader.frame()? {
            match kind {
                Kind::Ops => {
                    for op in op::decode(body) {
                        let op = op.map_err(|_| ReadError::Nonsense)?;
                        check(&op, &header)?;
                        state.apply(op).map_err(|_| ReadError::Nonsense)?;
                    }
                }
                Kind::Written => written.extend(all_written(body)?),
                Kind::WrittenLater => later.extend(all_written(body)?),
                Kind::Bytes => {
                    place(body, &header)?;
                }
                Kind::Bad => drop(bad_blocks(body, &header)?),
                // The reader does not return these kinds.
                Kind::Header | Kind::End => return Err(ReadError::Nonsense),
            }
        }
        if state.slots > header.inodes || state.check_tree().is_err() {
            return Err(ReadError::Nonsense);
        }
        let (mut sizes, mut places) = (ByNumber::default(), Vec::new());
        for (&ino, inode) in &mut state.inodes {
            if let Body::File(_) = inode.body {
                sizes.insert(ino, settle(inode, written.get(&ino), later.get(&ino), &mut places));
            }
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].end() > pair[1].start) {
            return Err(ReadError::Nonsense);
        }
        Ok(Contents { header, state, sizes, places })
    }

    /// Reads the same file again. Calls `visit` with the bytes of files and their offsets in the
    /// arena, and `bad` with each bad block and its expected checksum.
    pub fn bytes(
        &self,
        input: impl Read,
        mut visit: impl FnMut(u64, &[u8]),
        mut bad: impl FnMut(u64, u32),
    ) -> Result<(), ReadError> {
        let mut reader = Reader::begin(input)?;
        if reader.header != self.header {
            return Err(ReadError::Nonsense);
        }
        while let Some((kind, body)) = reader.frame()? {
            match kind {
                Kind::Bytes => {
                    let (start, bytes) = place(body, &self.header)?;
                    self.visit(start, bytes, &mut visit);
                }
                Kind::Bad => {
                    for (block, expected) in bad_blocks(body, &self.header)? {
                        let at = self.places.partition_point(|place| place.end() <= block);
                        if self.places.get(at).is_some_and(|place| place.start < block + BLOCK) {
                            bad(block, expected);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Calls `visit` with the parts of `bytes` that belong to files.
    fn visit(&self, start: u64, bytes: &[u8], visit: &mut impl FnMut(u64, &[u8])) {
        let end = start + bytes.len() as u64;
        let first = self.places.partition_point(|place| place.end() <= start);
        for place in self.places[first..].iter().take_while(|place| place.start < end) {
            let (from, to) = (place.start.max(start), place.end().min(end));
            visit(from, &bytes[(from - start) as usize..(to - start) as usize]);
        }
    }
}

/// Splits a frame into the offset and the bytes.
fn place<'a>(body: &'a [u8], header: &Header) -> Result<(u64, &'a [u8]), ReadError> {
    let (start, bytes) = body.split_first_chunk().ok_or(ReadError::Nonsense)?;
    let start = u64::from_le_bytes(*start);
    let end = start.checked_add(bytes.len() as u64);
    end.filter(|&end| end <= header.arena).map(|_| (start, bytes)).ok_or(ReadError::Nonsense)
}

/// Decodes bad blocks and their expected checksums.
fn bad_blocks(body: &[u8], header: &Header) -> Result<Vec<(u64, u32)>, ReadError> {
    let (words, rest) = body.as_chunks::<8>();
    let pairs = words.chunks(2).map(|pair| match *pair {
        [place, expected] => {
            let (place, expected) = (u64::from_le_bytes(place), u64::from_le_bytes(expected));
            let end = place.checked_add(BLOCK).filter(|&end| end <= header.arena);
            let expected = u32::try_from(expected).ok();
            let block = place.is_multiple_of(BLOCK).then_some(place);
            end.and(block).zip(expected).ok_or(ReadError::Nonsense)
        }
        _ => Err(ReadError::Nonsense),
    });
    if rest.is_empty() { pairs.collect() } else { Err(ReadError::Nonsense) }
}

fn all_written(body: &[u8]) -> Result<impl Iterator<Item = (u64, ClientFields)> + '_, ReadError> {
    let (words, rest) = body.as_chunks::<8>();
    if !rest.is_empty() || !words.len().is_multiple_of(3) {
        return Err(ReadError::Nonsense);
    }
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let one = move |at: usize| ClientFields { ino: word(at), size: word(at + 1), time: word(at + 2) as i64 };
    Ok((0..words.len()).step_by(3).map(one).map(|written| (written.ino, written)))
}

/// Checks that the numbers of an operation are in range. [`State::apply`] checks the rest.
fn check(op: &Op<'_>, header: &Header) -> Result<(), ReadError> {
    let fits = |extent: &Extent| {
        let end = u64::saturating_add;
        let whole = [extent.file, extent.arena, extent.len].iter().all(|number| number.is_multiple_of(BLOCK));
        whole
            && extent.len > 0
            && end(extent.arena, extent.len) <= header.arena
            && end(extent.file, extent.len) < u64::MAX
    };
    match op {
        Op::Extents(_, _, extents) if !extents.iter().all(fits) => Err(ReadError::Nonsense),
        Op::Inode(..)
        | Op::Born(..)
        | Op::Gone(_)
        | Op::Name(..)
        | Op::Extents(..)
        | Op::Xattr(..)
        | Op::Counters(..) => Ok(()),
        // Of sessions and of the log itself.
        _ => Err(ReadError::Nonsense),
    }
}

/// Gives a file the size and times of its record, and removes the space that it would lose with its
/// last close. Adds the ranges of its data to `places`. Returns its size.
fn settle(
    inode: &mut Inode,
    written: Option<&ClientFields>,
    later: Option<&ClientFields>,
    places: &mut Vec<Range>,
) -> u64 {
    let Body::File(map) = &mut inode.body else { return 0 };
    // A later size counts as far as the extents of the snapshot reach. A file that was truncated
    // later still has its bytes.
    let later_size = later.map_or(0, |later| later.size.min(map.end()));
    let size = written.map_or(0, |written| written.size).max(later_size).min(MAX_FILE_SIZE);
    let time = later.map_or(0, |later| later.time);
    let time = if time != 0 { time } else { written.map_or(0, |written| written.time) };
    let keep = block_up(size).max(map.kept_to());
    if map.reaches_beyond(keep) {
        map.cut(keep);
    }
    map.take_touched();
    let pieces = map.pieces(0, size).into_iter();
    places.extend(pieces.filter_map(|(_, start, len)| Some(Range { start: start?, len })));
    (inode.mtime, inode.ctime) = record::effective_times(inode.mtime, inode.ctime, time);
    size
}
