//! Decodes requests of the kernel, and calls the [`Filesystem`].
//!
//! # Concurrency
//! The thread that took the request. Takes no locks.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{FileHandle, INodeNo, LockOwner, OpenFlags, RenameFlags, TimeOrNow, WriteFlags};
use rfs_proto::LockClass;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::{
    abi::{
        BTIME, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, FsyncIn, GetxattrIn, InHeader, LinkIn, LkIn,
        LseekIn, MkdirIn, MknodIn, OpenIn, ReadWriteIn, ReleaseIn, Rename2In, RenameIn, SetattrIn,
        SetxattrIn, StatxIn,
    },
    opcode,
};
use crate::fuse::session::{
    Filesystem, Lock, LockedBy, Request, RequestKind,
    slot::{List, Slot},
};

/// `FATTR_*`: flags for the fields of a SETATTR.
mod fattr {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const FH: u32 = 1 << 6;
    pub(super) const CTIME: u32 = 1 << 10;
}

/// `FUSE_LK_FLOCK`.
const LK_FLOCK: u32 = 1;

/// An arrived request.
#[derive(Clone, Copy, Debug)]
pub(in crate::fuse::session) struct Incoming<'a> {
    pub(in crate::fuse::session) header: InHeader,
    /// Structure of the operation. Bytes of earlier requests may follow it.
    pub(in crate::fuse::session) op: &'a [u8],
    /// Names, values and data behind the structure.
    pub(in crate::fuse::session) payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    /// Returns the structure of the operation.
    fn op<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.op).ok().map(|(op, _)| op)
    }

    /// Returns the first name, and the bytes behind it.
    fn name(&self) -> Option<(&'a OsStr, &'a [u8])> {
        name(self.payload)
    }

    fn only_name(&self) -> Option<&'a OsStr> {
        self.name().map(|(name, _)| name)
    }
}

fn name(bytes: &[u8]) -> Option<(&OsStr, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((OsStr::from_bytes(&bytes[..end]), &bytes[end + 1..]))
}

/// Returns a time as fuser would. `convert::nanoseconds` corrects times before 1970.
fn time(secs: i64, nanos: u32) -> SystemTime {
    let distance = Duration::new(secs.unsigned_abs(), nanos);
    let time = match secs >= 0 {
        true => UNIX_EPOCH.checked_add(distance),
        false => UNIX_EPOCH.checked_sub(distance),
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Calls a file system. Answers a malformed request with EIO, because `slot` is dropped, and an
/// unknown request with ENOSYS.
pub(in crate::fuse::session) fn dispatch(filesystem: &impl Filesystem, incoming: &Incoming<'_>, slot: Slot) {
    // `None` means that the slot was dropped.
    let _ = perform(filesystem, incoming, slot);
}

/// Calls the handler of a request. Returns `None` if the request is malformed.
fn perform(fs: &impl Filesystem, incoming: &Incoming<'_>, slot: Slot) -> Option<()> {
    let InHeader { opcode, nodeid, uid, gid, pid, unique, .. } = incoming.header;
    let (ino, request) = (INodeNo(nodeid), &Request { uid, gid, pid, unique });
    if let Some(counts) = fs.counts() {
        counts.count(RequestKind::of_opcode(opcode));
    }
    match opcode {
        opcode::LOOKUP => fs.lookup(request, ino, incoming.only_name()?, slot.into()),
        opcode::GETATTR => fs.getattr(request, ino, slot.into()),
        opcode::STATX => return attributes_and_birth(fs, (request, ino), incoming, slot),
        opcode::SETATTR => return change_attributes(fs, (request, ino), incoming, slot),
        opcode::READLINK => fs.readlink(request, ino, slot.into()),
        opcode::OPEN => {
            let op: OpenIn = incoming.op()?;
            fs.open(request, ino, OpenFlags(op.flags as i32), slot.into());
        }
        opcode::READ => {
            let op: ReadWriteIn = incoming.op()?;
            let (range, flags) = ((op.offset, op.size), OpenFlags(op.flags as i32));
            fs.read(request, ino, FileHandle(op.fh), range, flags, slot.into());
        }
        opcode::WRITE => {
            let op: ReadWriteIn = incoming.op()?;
            let data = incoming.payload.get(..op.size as usize)?;
            let how = WriteFlags::from_bits_retain(op.read_write_flags);
            let flags = OpenFlags(op.flags as i32);
            slot.announce_payload();
            fs.write(request, ino, FileHandle(op.fh), op.offset, data, how, flags, slot.into());
        }
        opcode::STATFS => fs.statfs(request, slot.into()),
        opcode::RELEASE => {
            let op: ReleaseIn = incoming.op()?;
            fs.release(request, ino, FileHandle(op.fh), slot.into());
        }
        opcode::FSYNC => {
            let op: FsyncIn = incoming.op()?;
            fs.fsync(request, ino, FileHandle(op.fh), slot.into());
        }
        opcode::FLUSH => {
            let op: FlushIn = incoming.op()?;
            fs.flush(request, ino, FileHandle(op.fh), LockOwner(op.lock_owner), slot.into());
        }
        opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::RENAME2
        | opcode::LINK
        | opcode::CREATE
        | opcode::TMPFILE => return change_names(fs, (request, ino), incoming, slot),
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            return extended_attributes(fs, (request, ino), incoming, slot);
        }
        opcode::OPENDIR | opcode::READDIR | opcode::READDIRPLUS | opcode::RELEASEDIR | opcode::FSYNCDIR => {
            return directories(fs, (request, ino), incoming, slot);
        }
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => {
            return locks(fs, (request, ino), incoming, slot);
        }
        opcode::FALLOCATE | opcode::LSEEK | opcode::COPY_FILE_RANGE => {
            return ranges(fs, (request, ino), incoming, slot);
        }
        opcode::DESTROY => slot.done(),
        _ => slot.error(Errno::NOSYS.raw_os_error()),
    }
    Some(())
}

fn attributes_and_birth(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    let op: StatxIn = incoming.op()?;
    fs.statx(request, ino, op.sx_mask & BTIME != 0, slot.into());
    Some(())
}

/// Calls the handler of SETATTR.
fn change_attributes(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    let op: SetattrIn = incoming.op()?;
    let given = |bit, value| (op.valid & bit != 0).then_some(value);
    let time = |bit, now, secs, nanos| match op.valid {
        valid if valid & now != 0 => Some(TimeOrNow::Now),
        valid if valid & bit != 0 => Some(TimeOrNow::SpecificTime(time(secs, nanos))),
        _ => None,
    };
    fs.setattr(
        request,
        ino,
        given(fattr::MODE, op.mode),
        given(fattr::UID, op.uid),
        given(fattr::GID, op.gid),
        (op.valid & fattr::SIZE != 0).then_some(op.size),
        time(fattr::ATIME, fattr::ATIME_NOW, op.atime, op.atimensec),
        time(fattr::MTIME, fattr::MTIME_NOW, op.mtime, op.mtimensec),
        (op.valid & fattr::CTIME != 0).then(|| self::time(op.ctime, op.ctimensec)),
        (op.valid & fattr::FH != 0).then_some(FileHandle(op.fh)),
        slot.into(),
    );
    Some(())
}

/// Calls the handlers that make, remove and rename names.
fn change_names(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    match incoming.header.opcode {
        opcode::SYMLINK => {
            let (link, rest) = incoming.name()?;
            let (target, _) = name(rest)?;
            fs.symlink(request, ino, link, Path::new(target), slot.into());
        }
        opcode::MKNOD => {
            let op: MknodIn = incoming.op()?;
            fs.mknod(request, ino, incoming.only_name()?, op.mode, op.umask, op.rdev, slot.into());
        }
        opcode::MKDIR => {
            let op: MkdirIn = incoming.op()?;
            fs.mkdir(request, ino, incoming.only_name()?, op.mode, op.umask, slot.into());
        }
        opcode::UNLINK => fs.unlink(request, ino, incoming.only_name()?, slot.into()),
        opcode::RMDIR => fs.rmdir(request, ino, incoming.only_name()?, slot.into()),
        opcode::RENAME | opcode::RENAME2 => {
            let RenameIn { newdir } = incoming.op()?;
            let flags = match incoming.header.opcode {
                opcode::RENAME2 => incoming.op::<Rename2In>()?.flags,
                _ => 0,
            };
            let (from, rest) = incoming.name()?;
            let (to, _) = name(rest)?;
            let flags = RenameFlags::from_bits_retain(flags);
            fs.rename(request, ino, from, INodeNo(newdir), to, flags, slot.into());
        }
        opcode::LINK => {
            let op: LinkIn = incoming.op()?;
            fs.link(request, INodeNo(op.oldnodeid), ino, incoming.only_name()?, slot.into());
        }
        opcode::CREATE => {
            let op: CreateIn = incoming.op()?;
            let name = incoming.only_name()?;
            fs.create(request, ino, name, op.mode, op.umask, op.flags as i32, slot.into());
        }
        opcode::TMPFILE => {
            // The name is the kernel's own, and stands for nothing.
            let op: CreateIn = incoming.op()?;
            fs.tmpfile(request, ino, op.mode, op.umask, op.flags as i32, slot.into());
        }
        _ => slot.error(Errno::NOSYS.raw_os_error()),
    }
    Some(())
}

/// Calls the handlers of extended attributes.
fn extended_attributes(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    match incoming.header.opcode {
        opcode::SETXATTR => {
            let op: SetxattrIn = incoming.op()?;
            let (name, rest) = incoming.name()?;
            let value = rest.get(..op.size as usize)?;
            fs.setxattr(request, ino, name, value, op.flags as i32, slot.into());
        }
        opcode::GETXATTR => {
            let op: GetxattrIn = incoming.op()?;
            let name = incoming.only_name()?;
            // An answer in the place of the request may overwrite the name.
            let copy = slot.answers_in_place().then(|| name.to_owned());
            fs.getxattr(request, ino, copy.as_deref().unwrap_or(name), op.size, slot.into());
        }
        opcode::LISTXATTR => {
            let op: GetxattrIn = incoming.op()?;
            fs.listxattr(request, ino, op.size, slot.into());
        }
        opcode::REMOVEXATTR => fs.removexattr(request, ino, incoming.only_name()?, slot.into()),
        _ => slot.error(Errno::NOSYS.raw_os_error()),
    }
    Some(())
}

/// Calls the handlers of open directories.
fn directories(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    match incoming.header.opcode {
        opcode::OPENDIR => {
            let op: OpenIn = incoming.op()?;
            fs.opendir(request, ino, OpenFlags(op.flags as i32), slot.into());
        }
        opcode::READDIR => {
            let op: ReadWriteIn = incoming.op()?;
            let list = List::new(slot, op.size as usize);
            fs.readdir(request, ino, FileHandle(op.fh), op.offset, list.into());
        }
        opcode::READDIRPLUS => {
            let op: ReadWriteIn = incoming.op()?;
            let list = List::new(slot, op.size as usize);
            fs.readdirplus(request, ino, FileHandle(op.fh), op.offset, list.into());
        }
        opcode::RELEASEDIR => {
            let op: ReleaseIn = incoming.op()?;
            fs.releasedir(request, ino, FileHandle(op.fh), slot.into());
        }
        opcode::FSYNCDIR => fs.fsyncdir(request, ino, slot.into()),
        _ => slot.error(Errno::NOSYS.raw_os_error()),
    }
    Some(())
}

/// Calls the handlers of file locks.
fn locks(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    let op: LkIn = incoming.op()?;
    let class = if op.lk_flags & LK_FLOCK != 0 { LockClass::Flock } else { LockClass::Record };
    let by = LockedBy { handle: FileHandle(op.fh), owner: LockOwner(op.owner), class };
    let lock = Lock { start: op.lk.start, end: op.lk.end, typ: op.lk.typ, pid: op.lk.pid };
    match incoming.header.opcode {
        opcode::GETLK => fs.getlk(request, ino, by, lock, slot.into()),
        opcode => fs.setlk(request, ino, by, lock, opcode == opcode::SETLKW, slot.into()),
    }
    Some(())
}

/// Calls the handlers that allocate, seek and copy.
fn ranges(
    fs: &impl Filesystem,
    (request, ino): (&Request, INodeNo),
    incoming: &Incoming<'_>,
    slot: Slot,
) -> Option<()> {
    match incoming.header.opcode {
        opcode::FALLOCATE => {
            let op: FallocateIn = incoming.op()?;
            fs.fallocate(
                request,
                (ino, FileHandle(op.fh)),
                op.offset,
                op.length,
                op.mode as i32,
                slot.into(),
            );
        }
        opcode::LSEEK => {
            let op: LseekIn = incoming.op()?;
            fs.lseek(request, ino, op.offset as i64, op.whence as i32, slot.into());
        }
        opcode::COPY_FILE_RANGE => {
            let op: CopyFileRangeIn = incoming.op()?;
            let from = (ino, FileHandle(op.fh_in), op.off_in);
            let to = (INodeNo(op.nodeid_out), FileHandle(op.fh_out), op.off_out);
            fs.copy_file_range(request, from, to, op.len, slot.into());
        }
        _ => slot.error(Errno::NOSYS.raw_os_error()),
    }
    Some(())
}
