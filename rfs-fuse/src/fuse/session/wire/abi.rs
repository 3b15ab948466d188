//! The kernel's structures of requests and answers (`fuse.h`, version 7.42 and newer), in native
//! byte order.
//!
//! No I/O, no locks, no clock.

use std::{
    ffi::OsStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Header of a request: `fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct InHeader {
    pub(in crate::fuse::session) len: u32,
    pub(in crate::fuse::session) opcode: u32,
    pub(in crate::fuse::session) unique: u64,
    pub(in crate::fuse::session) nodeid: u64,
    pub(in crate::fuse::session) uid: u32,
    pub(in crate::fuse::session) gid: u32,
    pub(in crate::fuse::session) pid: u32,
    pub(in crate::fuse::session) total_extlen: u16,
    pub(in crate::fuse::session) padding: u16,
}

/// Header of an answer: `fuse_out_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct OutHeader {
    pub(in crate::fuse::session) len: u32,
    pub(in crate::fuse::session) error: i32,
    pub(in crate::fuse::session) unique: u64,
}

/// Defines structures of requests.
macro_rules! incoming {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(in crate::fuse::session) struct $name { $(pub(in crate::fuse::session) $field: $type),* }
    )*};
}

incoming! {
    /// `fuse_setattr_in`
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// `fuse_mknod_in`
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// `fuse_mkdir_in`
    MkdirIn { mode: u32, umask: u32 }
    /// `fuse_rename_in`
    RenameIn { newdir: u64 }
    /// `fuse_rename2_in`
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    /// `fuse_link_in`
    LinkIn { oldnodeid: u64 }
    /// `fuse_open_in`
    OpenIn { flags: u32, open_flags: u32 }
    /// `fuse_create_in`
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `fuse_release_in`
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// `fuse_flush_in`
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// `fuse_read_in` and `fuse_write_in`
    ReadWriteIn {
        fh: u64, offset: u64, size: u32, read_write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `fuse_fsync_in`
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// `fuse_setxattr_in` without FUSE_SETXATTR_EXT
    SetxattrIn { size: u32, flags: u32 }
    /// `fuse_getxattr_in`
    GetxattrIn { size: u32, padding: u32 }
    /// `fuse_lk_in`
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    /// `fuse_fallocate_in`
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// `fuse_statx_in`
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// `fuse_lseek_in`
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// `fuse_copy_file_range_in`
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}

/// `fuse_file_lock`, and `fuse_lk_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct FileLock {
    pub(in crate::fuse::session) start: u64,
    pub(in crate::fuse::session) end: u64,
    pub(in crate::fuse::session) typ: i32,
    pub(in crate::fuse::session) pid: u32,
}

/// `fuse_attr`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct Attr {
    ino: u64,
    size: u64,
    blocks: u64,
    atime: i64,
    mtime: i64,
    ctime: i64,
    atimensec: u32,
    mtimensec: u32,
    ctimensec: u32,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    blksize: u32,
    flags: u32,
}

/// Returns the file type bits of a mode for `readdir`: S_IFMT without the twelve permission bits.
fn kind_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => 0o1,
        FileType::CharDevice => 0o2,
        FileType::Directory => 0o4,
        FileType::BlockDevice => 0o6,
        FileType::RegularFile => 0o10,
        FileType::Symlink => 0o12,
        FileType::Socket => 0o14,
    }
}

/// Returns seconds since 1970, and nanoseconds after that second.
fn since_1970(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN + 1, |seconds| -seconds);
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanos => (seconds.saturating_sub(1), 1_000_000_000 - nanos),
            }
        }
    }
}

impl From<&FileAttr> for Attr {
    fn from(attr: &FileAttr) -> Attr {
        let (atime, mtime, ctime) = (since_1970(attr.atime), since_1970(attr.mtime), since_1970(attr.ctime));
        Attr {
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            atime: atime.0,
            mtime: mtime.0,
            ctime: ctime.0,
            atimensec: atime.1,
            mtimensec: mtime.1,
            ctimensec: ctime.1,
            mode: kind_bits(attr.kind) << 12 | u32::from(attr.perm),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }
}

/// Defines structures of answers.
macro_rules! outgoing {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(in crate::fuse::session) struct $name { $(pub(in crate::fuse::session) $field: $type),* }
    )*};
}

outgoing! {
    /// `fuse_entry_out` and `fuse_open_out`
    CreateOut { entry: EntryOut, open: OpenOut }
    /// `fuse_write_out` and `fuse_getxattr_out`
    SizeOut { size: u32, padding: u32 }
    /// `fuse_lseek_out`
    LseekOut { offset: i64 }
    /// `fuse_statfs_out`
    StatfsOut { counts: [u64; 5], sizes: [u32; 4], spare: [u32; 6] }
}

/// `fuse_attr_out`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct AttrOut {
    attr_valid: u64,
    attr_valid_nsec: u32,
    dummy: u32,
    attr: Attr,
}

impl AttrOut {
    pub(in crate::fuse::session) fn new(ttl: Duration, attr: &FileAttr) -> AttrOut {
        let (attr_valid, attr_valid_nsec) = (ttl.as_secs(), ttl.subsec_nanos());
        AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr.into() }
    }
}

/// `fuse_sx_time`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SxTime {
    secs: i64,
    nanos: u32,
    reserved: u32,
}

impl From<SystemTime> for SxTime {
    fn from(time: SystemTime) -> SxTime {
        let (secs, nanos) = since_1970(time);
        SxTime { secs, nanos, reserved: 0 }
    }
}

/// `STATX_BASIC_STATS` and `STATX_BTIME`: attributes in an answer.
const BASIC_STATS: u32 = 0x7ff;
pub(in crate::fuse::session) const BTIME: u32 = 0x800;

/// `fuse_statx_out`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct StatxOut {
    attr_valid: u64,
    attr_valid_nsec: u32,
    flags: u32,
    spare: [u64; 2],
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    spare0: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    atime: SxTime,
    btime: SxTime,
    ctime: SxTime,
    mtime: SxTime,
    /// Major and minor number of a device node.
    rdev: [u32; 2],
    dev: [u32; 2],
    spare2: [u64; 14],
}

impl StatxOut {
    pub(in crate::fuse::session) fn new(
        ttl: Duration,
        attr: &FileAttr,
        birth: Option<SystemTime>,
    ) -> StatxOut {
        // The number of a device node has the kernel's 32-bit encoding.
        let rdev = [attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00];
        StatxOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            mask: BASIC_STATS | if birth.is_some() { BTIME } else { 0 },
            blksize: attr.blksize,
            attributes: 0,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: (kind_bits(attr.kind) << 12) as u16 | attr.perm,
            spare0: 0,
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: 0,
            atime: attr.atime.into(),
            btime: birth.map(SxTime::from).unwrap_or_default(),
            ctime: attr.ctime.into(),
            mtime: attr.mtime.into(),
            rdev,
            dev: [0; 2],
            spare2: [0; 14],
        }
    }
}

/// `fuse_entry_out`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct EntryOut {
    nodeid: u64,
    generation: u64,
    entry_valid: u64,
    attr_valid: u64,
    entry_valid_nsec: u32,
    attr_valid_nsec: u32,
    attr: Attr,
}

impl EntryOut {
    pub(in crate::fuse::session) fn new(
        (attr_ttl, entry_ttl): (Duration, Duration),
        attr: &FileAttr,
        generation: Generation,
    ) -> EntryOut {
        EntryOut {
            nodeid: attr.ino.0,
            generation: generation.0,
            entry_valid: entry_ttl.as_secs(),
            attr_valid: attr_ttl.as_secs(),
            entry_valid_nsec: entry_ttl.subsec_nanos(),
            attr_valid_nsec: attr_ttl.subsec_nanos(),
            attr: attr.into(),
        }
    }
}

/// `fuse_open_out`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct OpenOut {
    fh: u64,
    open_flags: u32,
    backing_id: i32,
}

impl OpenOut {
    pub(in crate::fuse::session) fn new(handle: FileHandle, flags: FopenFlags) -> OpenOut {
        OpenOut { fh: handle.0, open_flags: flags.bits(), backing_id: 0 }
    }
}

/// `fuse_dirent` without its name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::fuse::session) struct Dirent {
    ino: u64,
    off: u64,
    namelen: u32,
    typ: u32,
}

impl Dirent {
    pub(in crate::fuse::session) fn new(ino: INodeNo, offset: u64, kind: FileType, name: &OsStr) -> Dirent {
        // Names are at most 255 bytes long.
        Dirent { ino: ino.0, off: offset, namelen: name.len() as u32, typ: kind_bits(kind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<SetattrIn>(), 88),
            (size_of::<MknodIn>(), 16),
            (size_of::<RenameIn>(), 8),
            (size_of::<Rename2In>(), 16),
            (size_of::<CreateIn>(), 16),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<FlushIn>(), 24),
            (size_of::<ReadWriteIn>(), 40),
            (size_of::<LkIn>(), 48),
            (size_of::<FallocateIn>(), 32),
            (size_of::<LseekIn>(), 24),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<Attr>(), 88),
            (size_of::<AttrOut>(), 104),
            (size_of::<EntryOut>(), 128),
            (size_of::<CreateOut>(), 144),
            (size_of::<OpenOut>(), 16),
            (size_of::<FileLock>(), 24),
            (size_of::<StatfsOut>(), 80),
            (size_of::<Dirent>(), 24),
        ];
        for (at, (ours, theirs)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, theirs, "{at}");
        }
    }

    #[test]
    fn times_before_1970_are_seconds_before_and_nanoseconds_after() {
        assert_eq!(since_1970(UNIX_EPOCH + Duration::new(5, 7)), (5, 7));
        assert_eq!(since_1970(UNIX_EPOCH), (0, 0));
        assert_eq!(since_1970(UNIX_EPOCH - Duration::new(2, 0)), (-2, 0));
        assert_eq!(since_1970(UNIX_EPOCH - Duration::from_millis(1750)), (-2, 250_000_000));
        let i64s_end = UNIX_EPOCH - Duration::from_nanos(i64::MIN.unsigned_abs());
        assert_eq!(since_1970(i64s_end), (-9_223_372_037, 145_224_192));
    }

    #[test]
    fn kinds_are_those_of_stat() {
        let kinds = [
            (FileType::NamedPipe, libc::S_IFIFO),
            (FileType::CharDevice, libc::S_IFCHR),
            (FileType::Directory, libc::S_IFDIR),
            (FileType::BlockDevice, libc::S_IFBLK),
            (FileType::RegularFile, libc::S_IFREG),
            (FileType::Symlink, libc::S_IFLNK),
            (FileType::Socket, libc::S_IFSOCK),
        ];
        for (kind, bits) in kinds {
            assert_eq!(kind_bits(kind) << 12, bits);
        }
    }
}
