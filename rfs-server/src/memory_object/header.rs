//! Header of a memory object, in the first page of its state file.
//!
//! The page has two copies. Each new header overwrites the older copy, so a server that is killed
//! while it writes leaves the last complete header intact. A checksum tells a complete copy.
//!
//! # Concurrency
//! One thread at a time; the caller serializes.

use std::sync::atomic::Ordering;

use rdmabox::Memory;

use super::hash::{hash, words};

/// Size of the header page in bytes.
pub const PAGE: usize = 4096;

/// Version of all formats in the object.
pub const VERSION: u64 = 4;
/// Versions that this server reads. The log of version 1 has no sessions. Version 2 has no
/// checksums; objects without checksums carried it until version 4, which has times of birth.
const READ: std::ops::RangeInclusive<u64> = 1..=VERSION;

const MAGIC: u64 = u64::from_le_bytes(*b"rfs-mem\0");
/// Words of a copy, including its checksum.
const WORDS: usize = 16;
/// Offsets of the two copies in the page.
const PLACES: [usize; 2] = [0, PAGE / 2];

/// Size and features of an object. A server that starts with another shape cannot use the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Size of the arena in bytes.
    pub arena: u64,
    /// Number of inodes, and of records in the table.
    pub inodes: u32,
    /// Each block of the arena has a checksum.
    pub checked: bool,
}

/// The header of a memory object: which memory it is, how large, and how its last server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size and features.
    pub shape: Shape,
    /// Size in bytes of each of the two segments of the log.
    pub segment: u64,
    /// Random identity, made with the object and never changed.
    pub identity: u128,
    /// The log records sessions. This holds from the first start by version 2 or later on.
    pub knows_sessions: bool,
    /// Number of servers that have started with this object.
    pub starts: u64,
    /// The last server stopped in order, with no open file left.
    pub clean: bool,
}

/// Reason why a page is not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The page has no header of this program.
    #[error("not an rfs state file, or its header is damaged")]
    Foreign,
    /// Another version of the format.
    #[error("it has version {0} of the format, this is version {VERSION}")]
    Version(u64),
    /// The checksum does not match.
    #[error("its header is damaged")]
    Damaged,
}

/// Sequence number of a header; its parity selects the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderNumber(u64);

impl Header {
    /// Returns the newest header and its sequence number.
    ///
    /// # Errors
    /// Neither copy is a complete header of a supported version.
    pub fn read(memory: &Memory) -> Result<(Header, HeaderNumber), HeaderError> {
        let read = PLACES.map(|at| Header::read_at(memory, at));
        let newest = read.iter().filter_map(|place| place.ok()).max_by_key(|(_, number)| number.0);
        // `make` writes the first copy, so its error describes the page.
        newest.ok_or(read[0].err().unwrap_or(HeaderError::Damaged))
    }

    /// Writes the header after `last`, or as the first header of a new object. Returns its sequence
    /// number.
    pub fn write(&self, memory: &Memory, last: Option<HeaderNumber>) -> HeaderNumber {
        let number = last.map_or(0, |number| number.0 + 1);
        let identity = [self.identity as u64, (self.identity >> 64) as u64];
        let fields = [
            MAGIC,
            VERSION,
            number,
            self.shape.arena,
            u64::from(self.shape.inodes),
            self.segment,
            identity[0],
            identity[1],
            self.starts,
            u64::from(self.clean),
            u64::from(self.shape.checked),
        ];
        let at = PLACES[(number % 2) as usize];
        let mut place = [0u64; WORDS];
        place[..fields.len()].copy_from_slice(&fields);
        place[WORDS - 1] = hash(place[..WORDS - 1].iter().copied());
        let store = |word: usize, value: u64| {
            memory.atomic_u64(at + 8 * word).store(value.to_le(), Ordering::SeqCst);
        };
        // The checksum is invalid until all other words are stored.
        store(WORDS - 1, 0);
        place.iter().enumerate().for_each(|(word, &value)| store(word, value));
        HeaderNumber(number)
    }

    /// Returns true if no server has started with the object. A damaged header does not count, and
    /// neither does the older one beside it.
    pub fn is_unused(memory: &Memory) -> bool {
        let is_blank = |at: usize| (0..WORDS).all(|word| memory.load_u64(at + 8 * word) == 0);
        let never_started =
            |at: usize| Header::read_at(memory, at).is_ok_and(|(header, _)| header.starts == 0);
        let [one, other] = PLACES;
        (is_blank(one) && never_started(other)) || (is_blank(other) && never_started(one))
    }

    fn read_at(memory: &Memory, at: usize) -> Result<(Header, HeaderNumber), HeaderError> {
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
        Ok((header, HeaderNumber(all[2])))
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
    fn the_newest_header_is_read() {
        let memory = Memory::private(PAGE).unwrap();
        assert_eq!(Header::read(&memory), Err(HeaderError::Foreign));
        let mut number = HEADER.write(&memory, None);
        for starts in 1..5 {
            let (read, last) = Header::read(&memory).unwrap();
            assert_eq!((read, last), (Header { starts: starts - 1, clean: starts == 1, ..HEADER }, number));
            number = Header { starts, clean: false, ..HEADER }.write(&memory, Some(last));
        }
    }

    /// Catches a damaged header that makes a used object look unused: its files would be removed.
    #[test]
    fn an_object_is_unused_until_the_first_start() {
        let memory = Memory::private(PAGE).unwrap();
        assert!(!Header::is_unused(&memory));
        let first = HEADER.write(&memory, None);
        assert!(Header::is_unused(&memory));
        Header { starts: 1, ..HEADER }.write(&memory, Some(first));
        assert!(!Header::is_unused(&memory));
        let damaged = PLACES[1] + 20;
        memory.write(damaged, &[0xff]);
        assert_eq!(Header::read(&memory).unwrap().0, HEADER);
        assert!(!Header::is_unused(&memory));
    }

    #[test]
    fn an_incomplete_header_leaves_the_previous_one() {
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
    fn earlier_versions_are_read() {
        let memory = Memory::private(PAGE).unwrap();
        let number = HEADER.write(&memory, None);
        for (version, knows_sessions) in [(1, false), (2, true), (3, true), (VERSION, true)] {
            let mut words: Vec<u64> = (0..WORDS).map(|word| memory.load_u64(8 * word)).collect();
            words[1] = version;
            words[WORDS - 1] = hash(words[..WORDS - 1].iter().copied());
            words.iter().enumerate().for_each(|(at, word)| memory.write(8 * at, &word.to_le_bytes()));
            assert_eq!(Header::read(&memory), Ok((Header { knows_sessions, ..HEADER }, number)));
        }
    }

    #[test]
    fn every_header_has_the_newest_version() {
        let memory = Memory::private(PAGE).unwrap();
        let header = Header { shape: Shape { checked: false, ..HEADER.shape }, ..HEADER };
        for header in [header, HEADER] {
            header.write(&memory, None);
            assert_eq!((memory.load_u64(8), Header::read(&memory).unwrap().0), (VERSION, header));
        }
    }

    #[test]
    fn damaged_and_foreign_headers_are_rejected() {
        let memory = Memory::private(PAGE).unwrap();
        HEADER.write(&memory, None);
        for version in [0, 5] {
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
