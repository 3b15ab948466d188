//! What a memory object is, in its first page. Pure, but for the memory that it is read from.
//!
//! The page has two places; each new state of the header goes to the one that the last one is not in, so that a server that is killed while it
//! writes leaves the last one.
//!
//! Threading: belongs to one thread at a time.

use std::sync::atomic::Ordering;

use rdmabox::Memory;

use super::{hash, words};

/// Bytes of the page.
pub const PAGE: usize = 4096;

/// Version of all formats in the object.
pub const VERSION: u64 = 3;
/// Those before are read as well. Version 1: its log says nothing of sessions. Version 2 knows no checksums, and is what an object without
/// them has still.
const READ: std::ops::RangeInclusive<u64> = 1..=VERSION;

const MAGIC: u64 = u64::from_le_bytes(*b"rfs-mem\0");
/// Words of a place, its check among them.
const WORDS: usize = 16;
/// Where the places are.
const PLACES: [usize; 2] = [0, PAGE / 2];

/// How large an object is, and what there is in it. Another one is another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the arena.
    pub arena: u64,
    /// Inodes, and records of the table.
    pub inodes: u32,
    /// Whether each block of the arena has a checksum.
    pub checked: bool,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its size.
    pub shape: Shape,
    /// Bytes of each of the two segments of the log.
    pub segment: u64,
    /// Made at random when the object was, and the same for good.
    pub identity: u128,
    /// Whether its log says which sessions there are. It does from the first start by this version on.
    pub knows_sessions: bool,
    /// How many servers have begun to work with it.
    pub starts: u64,
    /// The last of them has ended in order: nobody had anything open by then.
    pub clean: bool,
}

/// Why a page is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Something else.
    #[error("not an rfs state file, or its header is damaged")]
    Foreign,
    /// Made by another version.
    #[error("it has version {0} of the format, this is version {VERSION}")]
    Version(u64),
    /// The check fails.
    #[error("its header is damaged")]
    Damaged,
}

/// Where the state of a header goes: they take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u64);

impl Header {
    /// The last state, and its turn.
    pub fn read(memory: &Memory) -> Result<(Header, Turn), HeaderError> {
        let read = PLACES.map(|at| Header::read_at(memory, at));
        let newest = read.iter().filter_map(|place| place.ok()).max_by_key(|(_, turn)| turn.0);
        // The first place was written when the object was made.
        newest.ok_or(read[0].err().unwrap_or(HeaderError::Damaged))
    }

    /// Writes a new state behind `last`; without one, to an object that is being made.
    pub fn write(&self, memory: &Memory, last: Option<Turn>) -> Turn {
        let turn = last.map_or(0, |turn| turn.0 + 1);
        let identity = [self.identity as u64, (self.identity >> 64) as u64];
        let fields = [
            MAGIC,
            if self.shape.checked { VERSION } else { 2 },
            turn,
            self.shape.arena,
            u64::from(self.shape.inodes),
            self.segment,
            identity[0],
            identity[1],
            self.starts,
            u64::from(self.clean),
            u64::from(self.shape.checked),
        ];
        let at = PLACES[(turn % 2) as usize];
        let mut place = [0u64; WORDS];
        place[..fields.len()].copy_from_slice(&fields);
        place[WORDS - 1] = hash(place[..WORDS - 1].iter().copied());
        let store = |word: usize, value: u64| {
            memory.atomic_u64(at + 8 * word).store(value.to_le(), Ordering::SeqCst);
        };
        // No check fits in between.
        store(WORDS - 1, 0);
        place.iter().enumerate().for_each(|(word, &value)| store(word, value));
        Turn(turn)
    }

    fn read_at(memory: &Memory, at: usize) -> Result<(Header, Turn), HeaderError> {
        let mut raw = [0; 8 * WORDS];
        memory.read(at, &mut raw);
        let all: Vec<u64> = words(&raw).collect();
        if all[0] != MAGIC {
            return Err(HeaderError::Foreign);
        }
        if !READ.contains(&all[1]) {
            return Err(HeaderError::Version(all[1]));
        }
        if all[WORDS - 1] != hash(all[..WORDS - 1].iter().copied()) {
            return Err(HeaderError::Damaged);
        }
        let inodes = u32::try_from(all[4]).map_err(|_| HeaderError::Damaged)?;
        let header = Header {
            shape: Shape { arena: all[3], inodes, checked: all[10] == 1 },
            segment: all[5],
            identity: u128::from(all[6]) | u128::from(all[7]) << 64,
            knows_sessions: all[1] > 1,
            starts: all[8],
            clean: all[9] == 1,
        };
        Ok((header, Turn(all[2])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        shape: Shape { arena: 1 << 20, inodes: 7, checked: true },
        segment: 1 << 16,
        identity: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        knows_sessions: true,
        starts: 0,
        clean: true,
    };

    #[test]
    fn the_last_state_counts() {
        let memory = Memory::private(PAGE).unwrap();
        assert_eq!(Header::read(&memory), Err(HeaderError::Foreign));
        let mut turn = HEADER.write(&memory, None);
        for starts in 1..5 {
            let (read, last) = Header::read(&memory).unwrap();
            assert_eq!((read, last), (Header { starts: starts - 1, clean: starts == 1, ..HEADER }, turn));
            turn = Header { starts, clean: false, ..HEADER }.write(&memory, Some(last));
        }
    }

    #[test]
    fn a_state_that_is_written_in_part_leaves_the_one_before() {
        for written in 0..8 * WORDS {
            let memory = Memory::private(PAGE).unwrap();
            let first = HEADER.write(&memory, None);
            let mut next = vec![0; PAGE / 2];
            {
                let other = Memory::private(PAGE).unwrap();
                Header { starts: 9, clean: false, ..HEADER }.write(&other, Some(first));
                other.read(PAGE / 2, &mut next);
            }
            memory.write(PAGE / 2, &next[..written]);
            assert_eq!(Header::read(&memory).unwrap().0, HEADER, "{written}");
        }
    }

    #[test]
    fn the_version_before_is_read() {
        let memory = Memory::private(PAGE).unwrap();
        let turn = HEADER.write(&memory, None);
        let mut words: Vec<u64> = (0..WORDS).map(|word| memory.load_u64(8 * word)).collect();
        words[1] = 1;
        words[WORDS - 1] = hash(words[..WORDS - 1].iter().copied());
        words.iter().enumerate().for_each(|(at, word)| memory.write(8 * at, &word.to_le_bytes()));
        assert_eq!(Header::read(&memory), Ok((Header { knows_sessions: false, ..HEADER }, turn)));
    }

    #[test]
    fn one_without_checksums_is_as_before() {
        let memory = Memory::private(PAGE).unwrap();
        let header = Header { shape: Shape { checked: false, ..HEADER.shape }, ..HEADER };
        header.write(&memory, None);
        assert_eq!((memory.load_u64(8), Header::read(&memory).unwrap().0), (2, header));
        HEADER.write(&memory, None);
        assert_eq!((memory.load_u64(8), Header::read(&memory).unwrap().0), (3, HEADER));
    }

    #[test]
    fn what_is_no_header() {
        let memory = Memory::private(PAGE).unwrap();
        HEADER.write(&memory, None);
        for version in [0, 4] {
            memory.write(8, &[version]);
            assert_eq!(Header::read(&memory), Err(HeaderError::Version(version.into())));
        }
        for at in 16..8 * WORDS {
            HEADER.write(&memory, None);
            let mut byte = [0];
            memory.read(at, &mut byte);
            memory.write(at, &[!byte[0]]);
            assert_eq!(Header::read(&memory), Err(HeaderError::Damaged), "byte {at}");
        }
        memory.write(0, b"else");
        assert_eq!(Header::read(&memory), Err(HeaderError::Foreign));
    }
}
