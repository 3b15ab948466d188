//! Format of a snapshot file: a preamble, then frames, then a final frame that counts them.
//!
//! Each frame has a CRC-32C over itself, its position, and the checksum of the first frame, which
//! contains identity and number. So a frame of another snapshot never matches. The checksums detect
//! incomplete writes and damage, not tampering.
//!
//! # Concurrency
//! Values of one thread. The reader holds one frame in memory at a time.

use std::io::{self, Read, Write};

use crc32c::{crc32c, crc32c_append};
use seeded_faults::seeded;
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const VERSION: u32 = 2;
/// Versions that this server reads. Version 1 has no times of birth.
const READ: std::ops::RangeInclusive<u32> = 1..=VERSION;

const MAGIC: [u8; 8] = *b"rfs-snap";
/// Size of the preamble: magic, version, checksum.
const PREAMBLE: usize = 16;
/// Size of the head of a frame: checksum, kind, length.
const FRONT: usize = 16;
/// Step in which a frame is read, so that a false length costs no memory.
const STEP: u64 = 1 << 20;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A [`Header`]; the first frame.
    Header = 1,
    /// Complete operations of the log.
    Ops = 2,
    /// Sizes and times that clients wrote, up to the moment of the snapshot. The last entry of an
    /// inode prevails.
    Written = 3,
    /// Sizes and times that clients wrote after the moment.
    WrittenLater = 4,
    /// Bytes of the arena, behind their offset.
    Bytes = 5,
    /// Number of the frames before it, and a checksum over their checksums; the last frame.
    End = 6,
    /// Bad blocks: offsets in the arena, each with its expected checksum. Follows the bytes of the
    /// blocks; present only if there are bad blocks.
    Bad = 7,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        use Kind as K;
        [K::Header, K::Ops, K::Written, K::WrittenLater, K::Bytes, K::End, K::Bad]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

impl Kind {
    /// Returns the maximum length of a frame of this kind, so that a false length costs little.
    /// Operations may be those of one transaction, which can change the extents of all blocks.
    fn longest(self, arena: u64) -> u64 {
        const MIB: u64 = 1 << 20;
        match self {
            Kind::Header | Kind::End => 1 << 10,
            Kind::Written | Kind::WrittenLater | Kind::Bytes | Kind::Bad => 2 * MIB,
            Kind::Ops => 64 * MIB + arena / 64,
        }
    }
}

/// Description of the memory and the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Size of the arena in bytes.
    pub arena: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Identity of the memory.
    pub identity: u128,
    /// Number of the snapshot within its export.
    pub number: u64,
    /// Start of the snapshot, in nanoseconds since 1970.
    pub time: i64,
}

/// Reason why a file is not a snapshot, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another version of the format.
    #[error("it has version {0} of the format, this is version {VERSION}")]
    Version(u32),
    /// The file ends too early.
    #[error("it ends too early")]
    Cut,
    /// A checksum does not match.
    #[error("it is damaged at byte {0}")]
    Damaged(u64),
    /// The checksums match but the content is invalid.
    #[error("its contents contradict each other")]
    Nonsense,
}

/// Writer of frames.
#[derive(Debug)]
pub struct Frames<W> {
    out: W,
    count: u64,
    /// Checksum of the first frame.
    seed: u32,
    /// Checksum over all checksums.
    checks: u32,
}

fn check(seed: u32, at: u64, front: &[u8], body: &[&[u8]]) -> u32 {
    let begin = crc32c_append(crc32c_append(seed, &at.to_le_bytes()), front);
    body.iter().fold(begin, |check, part| crc32c_append(check, part))
}

impl<W: Write> Frames<W> {
    /// Writes the preamble and the first frame.
    pub fn begin(mut out: W, header: &Header) -> io::Result<Frames<W>> {
        let mut preamble = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        preamble.extend_from_slice(&crc32c(&preamble).to_le_bytes());
        out.write_all(&preamble)?;
        let mut frames = Frames { out, count: 0, seed: 0, checks: 0 };
        let body = postcard::to_stdvec(header).map_err(io::Error::other)?;
        frames.seed = frames.frame(Kind::Header, &[&body])?;
        Ok(frames)
    }

    /// Writes a frame whose body is the concatenation of `body`. Returns its checksum.
    pub fn frame(&mut self, kind: Kind, body: &[&[u8]]) -> io::Result<u32> {
        let len: u64 = body.iter().map(|part| part.len() as u64).sum();
        let front = [&(kind as u32).to_le_bytes()[..], &len.to_le_bytes()].concat();
        let check = check(self.seed, self.count, &front, body).to_le_bytes();
        self.out.write_all(&check)?;
        self.out.write_all(&front)?;
        body.iter().try_for_each(|part| self.out.write_all(part))?;
        self.count += 1;
        self.checks = crc32c_append(self.checks, &check);
        Ok(u32::from_le_bytes(check))
    }

    /// Writes the last frame. Returns the destination.
    pub fn end(mut self) -> io::Result<W> {
        let (count, checks) = (self.count.to_le_bytes(), self.checks.to_le_bytes());
        self.frame(Kind::End, &[&count, &checks])?;
        Ok(self.out)
    }
}

/// Reader that verifies frames.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Offset of the next frame in the file.
    at: u64,
    count: u64,
    seed: u32,
    checks: u32,
    body: Vec<u8>,
    /// Header of the file.
    pub header: Header,
}

impl<R: Read> Reader<R> {
    /// Reads the preamble and the first frame.
    pub fn begin(mut input: R) -> Result<Reader<R>, ReadError> {
        let mut preamble = [0; PREAMBLE];
        read_whole(&mut input, &mut preamble)?;
        let (said, check) = preamble.split_at(PREAMBLE - 4);
        if said[..8] != MAGIC || crc32c(said).to_le_bytes() != check {
            return Err(ReadError::Damaged(0));
        }
        let version = le_u32(&said[8..]);
        if !READ.contains(&version) {
            return Err(ReadError::Version(version));
        }
        let header = Header { arena: 0, inodes: 0, identity: 0, number: 0, time: 0 };
        let (at, body) = (PREAMBLE as u64, Vec::new());
        let mut reader = Reader { input, at, count: 0, seed: 0, checks: 0, body, header };
        let (kind, check) = reader.fetch()?;
        if kind != Kind::Header {
            return Err(ReadError::Nonsense);
        }
        reader.seed = check;
        reader.header = postcard::from_bytes(&reader.body).map_err(|_| ReadError::Nonsense)?;
        Ok(reader)
    }

    /// Returns the next frame; `None` after the last frame, if all frames are present and no bytes
    /// follow.
    pub fn frame(&mut self) -> Result<Option<(Kind, &[u8])>, ReadError> {
        let (count, checks) = (self.count, self.checks);
        let at = self.at;
        let (kind, _) = self.fetch()?;
        match kind {
            Kind::Header => Err(ReadError::Nonsense),
            Kind::End => {
                let expected = [&count.to_le_bytes()[..], &checks.to_le_bytes()].concat();
                let over = self.input.read(&mut [0])? == 0;
                if self.body == expected && over { Ok(None) } else { Err(ReadError::Damaged(at)) }
            }
            kind => Ok(Some((kind, &self.body))),
        }
    }

    fn fetch(&mut self) -> Result<(Kind, u32), ReadError> {
        let mut front = [0; FRONT];
        read_whole(&mut self.input, &mut front)?;
        let (expected, front) = front.split_at(4);
        let mut len = [0; 8];
        len.copy_from_slice(&front[4..]);
        let len = u64::from_le_bytes(len);
        let kind = Kind::of(le_u32(front)).ok_or(ReadError::Damaged(self.at))?;
        if len > kind.longest(self.header.arena) {
            return Err(ReadError::Damaged(self.at));
        }
        self.body.clear();
        while (self.body.len() as u64) < len {
            let step = STEP.min(len - self.body.len() as u64);
            if self.input.by_ref().take(step).read_to_end(&mut self.body)? as u64 != step {
                return Err(ReadError::Cut);
            }
        }
        let found = check(self.seed, self.count, front, &[&self.body]);
        if found != le_u32(expected) && !seeded!(FrameUnchecked) {
            return Err(ReadError::Damaged(self.at));
        }
        self.count += 1;
        self.checks = crc32c_append(self.checks, expected);
        self.at += FRONT as u64 + len;
        Ok((kind, found))
    }
}

/// Returns the first four bytes as a number.
fn le_u32(bytes: &[u8]) -> u32 {
    let mut le = [0; 4];
    le.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(le)
}

fn read_whole(input: &mut impl Read, out: &mut [u8]) -> Result<(), ReadError> {
    input.read_exact(out).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Cut,
        _ => ReadError::Io(e),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header =
        Header { arena: 1 << 20, inodes: 7, identity: 0x0123_4567_89ab_cdef, number: 3, time: -5 };

    fn file(header: &Header, bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut frames = Frames::begin(Vec::new(), header).unwrap();
        for body in bodies {
            let (front, back) = body.split_at(body.len() / 3);
            frames.frame(Kind::Bytes, &[front, back]).unwrap();
        }
        frames.end().unwrap()
    }

    fn read(file: &[u8]) -> Result<(Header, Vec<Vec<u8>>), ReadError> {
        let mut reader = Reader::begin(file)?;
        let mut bodies = Vec::new();
        while let Some((kind, body)) = reader.frame()? {
            assert_eq!(kind, Kind::Bytes);
            bodies.push(body.to_vec());
        }
        Ok((reader.header, bodies))
    }

    fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..5)
    }

    proptest! {
        #[test]
        fn frames_survive_encoding(bodies in bodies()) {
            prop_assert_eq!(read(&file(&HEADER, &bodies)).unwrap(), (HEADER, bodies));
        }

        #[test]
        fn frames_of_another_file_are_rejected(mut bodies in bodies(), one in any::<prop::sample::Index>(), number in 0..9u64) {
            bodies.extend([b"one".to_vec(), b"two".to_vec()]);
            let whole = file(&HEADER, &bodies);
            let other = file(&Header { number, ..HEADER }, &bodies);
            prop_assert_eq!(whole == other, number == HEADER.number);
            // The first part of one file and the rest of the other, as torn disk writes could leave
            // them.
            let at = one.index(whole.len());
            let mixed = [&whole[..at], &other[at.min(other.len())..]].concat();
            let same = mixed == whole || mixed == other;
            prop_assert_eq!(read(&mixed).is_ok(), same);
        }
    }

    #[test]
    fn cut_or_changed_anywhere() {
        let whole = file(&HEADER, &[vec![5; 40], vec![], vec![0; 9]]);
        read(&whole).unwrap();
        for at in 0..whole.len() {
            assert!(read(&whole[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                let error = read(&changed).unwrap_err();
                assert!(matches!(error, ReadError::Damaged(_) | ReadError::Cut), "byte {at}: {error}");
            }
        }
        let longer = [&whole[..], b"\0"].concat();
        assert!(matches!(read(&longer), Err(ReadError::Damaged(_))));
    }

    #[test]
    fn another_version() {
        let with = |version| {
            let mut whole = file(&HEADER, &[]);
            whole[8] = version;
            let check = crc32c(&whole[..12]).to_le_bytes();
            whole[12..16].copy_from_slice(&check);
            read(&whole)
        };
        assert!(matches!(with(0), Err(ReadError::Version(0))));
        assert_eq!(with(1).unwrap().0, HEADER, "one version back");
        assert!(matches!(with(3), Err(ReadError::Version(3))));
    }
}
