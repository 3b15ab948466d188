//! The attribute record: one inode's attributes in server memory, for one-sided access.
//!
//! The server owns every field but two. Clients write [`SIZE`] (by compare-and-swap, only ever upwards) when a
//! write went past the end of the file, and [`WRITE_TIME`] (by a plain WRITE) when they wrote; so a write is
//! visible to everyone at once without any server code running. A reader takes the whole record with one READ
//! and accepts it if [`VERSION`] is even and [`INO`] is the inode it meant; otherwise it reads again, and after
//! a few tries asks by message.
//!
//! All fields are little-endian; a record is [`LEN`] bytes, aligned to them.

use crate::{Attr, FileKind};

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
/// Offset of the space taken (u64, units of 512 bytes).
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
/// Offset of the layout generation (u64).
pub const LAYOUT_GENERATION: usize = 88;

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

/// Applies the time of the last client write to the times that the server knows: (mtime, ctime).
pub fn effective_times(mtime: i64, ctime: i64, write_time: i64) -> (i64, i64) {
    if write_time == 0 { (mtime, ctime) } else { (write_time, ctime.max(write_time)) }
}

/// Reads a record that was fetched in one piece. `None` if it was being changed, belongs to another inode, or
/// makes no sense: read again, or ask by message.
pub fn decode(raw: &[u8; LEN], ino: u64, slot: u32) -> Option<Attr> {
    if u64_at(raw, INO) != ino || !u64_at(raw, VERSION).is_multiple_of(2) {
        return None;
    }
    let mode = u32_at(raw, MODE);
    let (mtime, ctime) = effective_times(
        u64_at(raw, MTIME) as i64,
        u64_at(raw, CTIME) as i64,
        u64_at(raw, WRITE_TIME) as i64,
    );
    Some(Attr {
        ino,
        kind: FileKind::from_mode(mode)?,
        perm: mode & 0o7777,
        nlink: u32_at(raw, NLINK),
        uid: u32_at(raw, UID),
        gid: u32_at(raw, GID),
        rdev: u32_at(raw, RDEV),
        size: u64_at(raw, SIZE),
        blocks: u64_at(raw, BLOCKS),
        atime: u64_at(raw, ATIME) as i64,
        mtime,
        ctime,
        layout_generation: u64_at(raw, LAYOUT_GENERATION),
        slot,
    })
}

/// The fields that the server owns, as one run of bytes from [`MTIME`] to the end of the record.
pub fn encode_server_part(attr: &Attr) -> [u8; LEN - MTIME] {
    let mut out = [0; LEN - MTIME];
    let mut put = |at: usize, bytes: &[u8]| out[at - MTIME..at - MTIME + bytes.len()].copy_from_slice(bytes);
    put(MTIME, &attr.mtime.to_le_bytes());
    put(CTIME, &attr.ctime.to_le_bytes());
    put(ATIME, &attr.atime.to_le_bytes());
    put(BLOCKS, &attr.blocks.to_le_bytes());
    put(MODE, &(attr.kind.mode_bits() | attr.perm).to_le_bytes());
    put(NLINK, &attr.nlink.to_le_bytes());
    put(UID, &attr.uid.to_le_bytes());
    put(GID, &attr.gid.to_le_bytes());
    put(RDEV, &attr.rdev.to_le_bytes());
    put(LAYOUT_GENERATION, &attr.layout_generation.to_le_bytes());
    out
}
