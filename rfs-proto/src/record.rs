//! The attribute record: one inode's attributes in server memory, for one-sided access.
//!
//! The server owns every field but three. Clients write [`SIZE`] (by compare-and-swap, only ever upwards) when a
//! write went past the end of the file, and [`WRITE_TIME`] (by a plain WRITE) when they wrote; so a write is
//! visible to everyone at once without any server code running. [`APPENDER`] keeps those apart who append at the same time. A reader takes the whole record with one READ
//! and accepts it if [`VERSION`] is even, [`INO`] is the inode it meant and [`CHECK`] fits the fields that the
//! server owns; otherwise it reads again, and after a few tries asks by message. The check is what makes one READ
//! enough: nothing says in which order a READ fetches the words of a record, so that the version alone could
//! not tell a record from a mixture of two. What clients write are single words and always whole.
//!
//! All fields are little-endian; a record is [`LEN`] bytes, aligned to them.

use crate::{Attr, BLOCK, FileKind, Marks};

/// Bytes of a record, and its alignment.
pub const LEN: usize = 128;
/// Offset of the inode number (u64); 0 in a free record.
pub const INO: usize = 0;
/// Offset of the version (u64): odd while the server is changing the record.
pub const VERSION: usize = 8;
/// Offset of the file size in bytes (u64). Authoritative.
pub const SIZE: usize = 16;
/// Offset of the time of the last write by a client (i64, nanoseconds on the server's clock); 0 for none since the
/// server last set mtime.
pub const WRITE_TIME: usize = 24;
/// Offset of the mtime that the server knows (i64, ns).
pub const MTIME: usize = 32;
/// Offset of the ctime that the server knows (i64, ns).
pub const CTIME: usize = 40;
/// Offset of the atime (i64, ns).
pub const ATIME: usize = 48;
/// Offset of the space allocated (u64, units of 512 bytes). It may reach beyond the end of the file: what is shown
/// to users is [`Space::visible`].
pub const BLOCKS: usize = 56;
/// Offset of the mode (u32): kind and permission bits, as `st_mode`.
pub const MODE: usize = 64;
/// Offset of the link count (u32).
pub const NLINK: usize = 68;
/// Offset of the owner (u32).
pub const UID: usize = 72;
/// Offset of the group (u32).
pub const GID: usize = 76;
/// Offset of the device number (u32).
pub const RDEV: usize = 80;
/// Offset of what the inode has (u32): the bits of [`Marks`].
pub const MARKS: usize = 84;
/// Offset of the layout generation (u64).
pub const LAYOUT_GENERATION: usize = 88;
/// Offset of the first file byte behind all space that was asked for (u64); see [`Space`].
pub const NEEDED_TO: usize = 96;
/// Offset of the first file byte behind all space (u64).
pub const SPACE_END: usize = 104;
/// Offset of the check (u64) over all words but those that clients write: see [`check`].
pub const CHECK: usize = 112;
/// Offset of the word of whoever is appending (u64), 0 for nobody: see [`appender`]. Clients take it and give it back by
/// compare-and-swap; the server gives it back for a session whose lease ends.
pub const APPENDER: usize = 120;

/// Bytes that the server owns, from [`MTIME`] on.
pub const SERVER_PART: usize = APPENDER - MTIME;

fn u64_at(raw: &[u8; LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn u32_at(raw: &[u8; LEN], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(bytes)
}

/// The word of a session's append. `turn` tells it from those before it.
pub fn appender(session: u64, turn: u16) -> u64 {
    session << 16 | u64::from(turn)
}

/// Whose append it is.
pub fn appender_session(word: u64) -> u64 {
    word >> 16
}

/// Applies the time of the last client write to the times that the server knows: (mtime, ctime).
pub fn effective_times(mtime: i64, ctime: i64, write_time: i64) -> (i64, i64) {
    if write_time == 0 { (mtime, ctime) } else { (write_time, ctime.max(write_time)) }
}

/// The space of a regular file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All of it, in units of 512 bytes.
    pub allocated: u64,
    /// First file byte behind what was asked for; what lies behind it was given ahead of need.
    pub needed_to: u64,
    /// First file byte behind all of it.
    pub end: u64,
}

impl Space {
    /// A file without holes, with all but its first byte given ahead of need.
    pub fn contiguous(allocated: u64) -> Space {
        Space { allocated, needed_to: 0, end: allocated.saturating_mul(512) }
    }

    /// What a file of `size` bytes shows as taken, in units of 512 bytes: space ahead of need counts as far as the file
    /// reaches.
    pub fn visible(&self, size: u64) -> u64 {
        let reached = size.div_ceil(BLOCK).saturating_mul(BLOCK);
        let ahead = self.end.saturating_sub(self.needed_to.max(reached));
        self.allocated.saturating_sub(ahead / 512)
    }
}

/// The check value: FNV-1a, taken word by word instead of byte by byte and with the upper half folded in after
/// each step, over the inode number, the version and the words from [`MTIME`] up to [`CHECK`]. It finds mixtures
/// of two records, not malice.
pub fn check(ino: u64, version: u64, server_part: &[u8; SERVER_PART]) -> u64 {
    let words = server_part[..CHECK - MTIME].chunks_exact(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    });
    [ino, version].into_iter().chain(words).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

/// Reads a record that was fetched in one piece. `None` if it was being changed, belongs to another inode, or
/// makes no sense: read again, or ask by message.
pub fn decode(raw: &[u8; LEN], ino: u64, slot: u32) -> Option<Attr> {
    if u64_at(raw, INO) != ino || !u64_at(raw, VERSION).is_multiple_of(2) {
        return None;
    }
    let mut server_part = [0; SERVER_PART];
    server_part.copy_from_slice(&raw[MTIME..APPENDER]);
    if u64_at(raw, CHECK) != check(ino, u64_at(raw, VERSION), &server_part) {
        return None;
    }
    let mode = u32_at(raw, MODE);
    let kind = FileKind::from_mode(mode)?;
    let size = u64_at(raw, SIZE);
    let space = Space {
        allocated: u64_at(raw, BLOCKS),
        needed_to: u64_at(raw, NEEDED_TO),
        end: u64_at(raw, SPACE_END),
    };
    let (mtime, ctime) =
        effective_times(u64_at(raw, MTIME) as i64, u64_at(raw, CTIME) as i64, u64_at(raw, WRITE_TIME) as i64);
    Some(Attr {
        ino,
        kind,
        perm: mode & 0o7777,
        nlink: u32_at(raw, NLINK),
        uid: u32_at(raw, UID),
        gid: u32_at(raw, GID),
        rdev: u32_at(raw, RDEV),
        size,
        blocks: space.visible(size),
        atime: u64_at(raw, ATIME) as i64,
        mtime,
        ctime,
        layout_generation: u64_at(raw, LAYOUT_GENERATION),
        slot,
        marks: Marks::from_bits_retain(u32_at(raw, MARKS)),
    })
}

/// The fields that the server owns, as one run of bytes from [`MTIME`] on, with the check for
/// `version`, the even number that the record will have. The size and `attr.blocks` are not part of it.
pub fn encode_server_part(attr: &Attr, space: &Space, version: u64) -> [u8; SERVER_PART] {
    let mut out = [0; SERVER_PART];
    let mut put = |at: usize, bytes: &[u8]| out[at - MTIME..at - MTIME + bytes.len()].copy_from_slice(bytes);
    put(MTIME, &attr.mtime.to_le_bytes());
    put(CTIME, &attr.ctime.to_le_bytes());
    put(ATIME, &attr.atime.to_le_bytes());
    put(BLOCKS, &space.allocated.to_le_bytes());
    put(NEEDED_TO, &space.needed_to.to_le_bytes());
    put(SPACE_END, &space.end.to_le_bytes());
    put(MODE, &(attr.kind.mode_bits() | attr.perm).to_le_bytes());
    put(NLINK, &attr.nlink.to_le_bytes());
    put(UID, &attr.uid.to_le_bytes());
    put(GID, &attr.gid.to_le_bytes());
    put(RDEV, &attr.rdev.to_le_bytes());
    put(MARKS, &attr.marks.bits().to_le_bytes());
    put(LAYOUT_GENERATION, &attr.layout_generation.to_le_bytes());
    let check = check(attr.ino, version, &out);
    out[CHECK - MTIME..].copy_from_slice(&check.to_le_bytes());
    out
}
