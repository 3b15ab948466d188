//! The attribute record: the attributes of an inode in server memory, for one-sided access.
//!
//! Clients write three fields; the server owns the rest. A client raises [`SIZE`] by
//! compare-and-swap after a write past the end of the file. It sets [`WRITE_TIME`] by a WRITE. It
//! holds [`APPENDER`] while it appends. These writes are visible to all clients without server code
//! running.
//!
//! A reader fetches the whole record with one READ. The record is valid if [`VERSION`] is even,
//! [`INO`] is the expected inode and [`CHECK`] matches the fields of the server. Otherwise the
//! reader tries again, and after a few attempts sends a request. The check is needed because a READ
//! fetches words in any order: without it, a mixture of two versions could pass. A client's fields
//! are single words.
//!
//! All fields are little-endian. A record has [`LEN`] bytes and is aligned to its length.

use crate::{Attr, BLOCK, FileKind, Marks};

/// Length and alignment of a record, in bytes.
pub const LEN: usize = 128;
/// Offset of the inode number (u64); 0 in a free record.
pub const INO: usize = 0;
/// Offset of the version (u64); odd while the server changes the record.
pub const VERSION: usize = 8;
/// Offset of the file size in bytes (u64). Authoritative.
pub const SIZE: usize = 16;
/// Offset of the time of the last write by a client (i64, nanoseconds on the server's clock). The
/// time is 0 if no client wrote since the server last set mtime.
pub const WRITE_TIME: usize = 24;
/// Offset of the mtime without the last write by a client (i64, nanoseconds).
pub const MTIME: usize = 32;
/// Offset of the ctime without the last write by a client (i64, nanoseconds).
pub const CTIME: usize = 40;
/// Offset of the atime (i64, nanoseconds).
pub const ATIME: usize = 48;
/// Offset of the allocated space (u64, units of 512 bytes). It includes space beyond the end of the
/// file; users see [`Space::visible`].
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
/// Offset of the flags (u32): the bits of [`Marks`].
pub const MARKS: usize = 84;
/// Offset of the layout generation (u64).
pub const LAYOUT_GENERATION: usize = 88;
/// Offset of the end of the requested space (u64, a file offset); see [`Space`].
pub const NEEDED_TO: usize = 96;
/// Offset of the end of all allocated space (u64, a file offset).
pub const SPACE_END: usize = 104;
/// Offset of the check (u64) over the fields of the server; see [`check`].
pub const CHECK: usize = 112;
/// Offset of the word of the appending session (u64), 0 if no session appends; see [`appender`]. A
/// client sets and clears it by compare-and-swap. The server clears it when the session ends.
pub const APPENDER: usize = 120;

/// Length of the fields of the server, from [`MTIME`] on, in bytes.
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

/// Returns the [`APPENDER`] word of an append. `turn` distinguishes it from earlier appends of the
/// session.
pub fn appender(session: u64, turn: u16) -> u64 {
    session << 16 | u64::from(turn)
}

/// Returns the number of the session in an [`APPENDER`] word.
pub fn appender_session(word: u64) -> u64 {
    word >> 16
}

/// Returns mtime and ctime with the last write by a client applied.
pub fn effective_times(mtime: i64, ctime: i64, write_time: i64) -> (i64, i64) {
    if write_time == 0 { (mtime, ctime) } else { (write_time, ctime.max(write_time)) }
}

/// The space of a regular file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All allocated space, in units of 512 bytes.
    pub allocated: u64,
    /// End of the requested space, as a file offset. The server preallocated the space after it.
    pub needed_to: u64,
    /// End of all allocated space, as a file offset.
    pub end: u64,
}

impl Space {
    /// Returns the space of a file without holes whose space is all preallocated.
    pub fn contiguous(allocated: u64) -> Space {
        Space { allocated, needed_to: 0, end: allocated.saturating_mul(512) }
    }

    /// Returns the space that a file of `size` bytes reports, in units of 512 bytes. Preallocated
    /// space counts only up to the end of the file.
    pub fn visible(&self, size: u64) -> u64 {
        let reached = size.div_ceil(BLOCK).saturating_mul(BLOCK);
        let ahead = self.end.saturating_sub(self.needed_to.max(reached));
        self.allocated.saturating_sub(ahead / 512)
    }
}

/// Returns the check of a record. It detects mixtures of two versions, not deliberate forgery.
///
/// It is FNV-1a over the inode number, the version and the words from [`MTIME`] up to [`CHECK`].
/// The hash takes words instead of bytes, and folds the upper half in after each step.
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

/// Decodes a record that one READ fetched. Returns `None` if the server was changing the record, if
/// it belongs to another inode, or if it is invalid. The reader then tries again or sends a
/// request.
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

/// Encodes the fields of the server, from [`MTIME`] on, with the check for the even version
/// `version`. The size and `attr.blocks` are not part of it.
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
