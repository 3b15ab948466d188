//! Between the kernel and a file system: what it asks, and the ways by which that comes and is answered.
//!
//! [`device`]: over `/dev/fuse`, by fuser's session; [`ring`]: over io_uring, where the kernel has that. A [`Filesystem`] does not know by
//! which of them a request has come; fuser's own trait can only be answered over `/dev/fuse`. Names and values are fuser's.

pub(super) mod descriptors;
mod device;
mod lock_flags;
mod reply;
mod ring;
pub(super) mod threads;

use std::{ffi::OsStr, path::Path, time::SystemTime};

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, TimeOrNow,
    WriteFlags,
};
use rfs_proto::LockClass;

pub use self::{
    device::{Device, Started},
    reply::{
        ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
        ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    },
    ring::{Beside, Ring, Serving, SwitchError},
};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    uid: u32,
    gid: u32,
    pid: u32,
    unique: u64,
}

impl Request {
    /// The user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The thread; 0 if it has no number that this process knows.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The kernel's number of the request: greater than the numbers of all that it has queued
    /// before.
    pub fn unique(&self) -> u64 {
        self.unique
    }
}

impl From<&fuser::Request> for Request {
    fn from(request: &fuser::Request) -> Request {
        Request { uid: request.uid(), gid: request.gid(), pid: request.pid(), unique: request.unique().0 }
    }
}

/// Which of whose locks is asked for: the file that is open, the owner, and the kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedBy {
    /// The open file.
    pub handle: FileHandle,
    /// Whoever has the lock, or wants it.
    pub owner: LockOwner,
    /// flock(2) or fcntl(2).
    pub class: LockClass,
}

/// A lock as fcntl(2) says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub typ: i32,
    /// The process.
    pub pid: u32,
}

/// A file system, called by several threads at once. Every request but `forget` is answered exactly once, by whatever thread; what is
/// dropped instead is answered with EIO. What is left out is answered with ENOSYS, which makes the kernel stop asking, or as
/// said.
#[allow(clippy::too_many_arguments)]
pub trait Filesystem: Send + Sync + 'static {
    /// Where session threads say when they begin with a request, if that is of use.
    fn threads(&self) -> Option<&threads::Threads> {
        None
    }

    /// A release is begun with, before the session thread says so.
    fn will_release(&self) {}

    /// Agrees with the kernel, before anything is asked.
    fn init(&mut self, config: &mut KernelConfig);

    /// What a name stands for.
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry);

    /// The kernel has so many references fewer.
    fn forget(&self, _: &Request, _ino: INodeNo, _nlookup: u64) {}

    /// Attributes.
    fn getattr(&self, request: &Request, ino: INodeNo, reply: ReplyAttr);

    /// Changes attributes.
    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    );

    /// The target of a symbolic link.
    fn readlink(&self, _: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a file, or a node of another kind.
    fn mknod(
        &self,
        _: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a directory.
    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    );

    /// Removes a name of a file.
    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);

    /// Removes a directory.
    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);

    /// Makes a symbolic link. EPERM if left out.
    fn symlink(&self, _: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    /// Gives something another name.
    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    );

    /// Gives a file one more name. EPERM if left out.
    fn link(&self, _: &Request, _ino: INodeNo, _newparent: INodeNo, _newname: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    /// Opens a file.
    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);

    /// Makes a file and opens it.
    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    );

    /// Reads `range`, the first byte and the length, through a file that is open with `flags`.
    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        range: (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    );

    /// Writes.
    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        reply: ReplyWrite,
    );

    /// A descriptor of an open file is closed.
    fn flush(&self, request: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty);

    /// The last one is. Done if left out.
    fn release(&self, _: &Request, _ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// What was written is to last.
    fn fsync(&self, request: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty);

    /// Opens a directory. Done if left out.
    fn opendir(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    /// Lists a directory from after a cookie on.
    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    );

    /// Lists a directory with attributes.
    fn readdirplus(
        &self,
        _: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Closes a directory. Done if left out.
    fn releasedir(&self, _: &Request, _ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Names are to last.
    fn fsyncdir(&self, _: &Request, _ino: INodeNo, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// How much space there is.
    fn statfs(&self, request: &Request, reply: ReplyStatfs);

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        _: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// The value of an extended attribute.
    fn getxattr(&self, _: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    /// The names of extended attributes.
    fn listxattr(&self, _: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, _: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// A lock that is in the way.
    fn getlk(&self, _: &Request, _ino: INodeNo, _by: LockedBy, _lock: Lock, reply: ReplyLock) {
        reply.error(Errno::ENOSYS);
    }

    /// Locks or unlocks; waits if asked to.
    fn setlk(&self, _: &Request, _ino: INodeNo, _by: LockedBy, _lock: Lock, _sleep: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Space, holes and ranges, as fallocate(2).
    fn fallocate(
        &self,
        _: &Request,
        _file: (INodeNo, FileHandle),
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Where there is data, or none.
    fn lseek(&self, _: &Request, _ino: INodeNo, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    /// Copies from a place in one file to a place in another one.
    fn copy_file_range(
        &self,
        _: &Request,
        _from: (INodeNo, FileHandle, u64),
        _to: (INodeNo, FileHandle, u64),
        _len: u64,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
