//! Receives requests from the kernel, and sends the replies.
//!
//! fuser negotiates ([`negotiation`]). Then [`device`] receives requests over `/dev/fuse`, and
//! [`ring`] over io_uring where the kernel offers it. Both decode them by [`wire`], and answer
//! through a [`slot`]. A [`Filesystem`] does not know how a request arrived. Names and values are
//! fuser's.
//!
//! # Concurrency
//! Several session threads call the [`Filesystem`]. Any thread may send a reply.

mod channel;
mod device;
mod negotiation;
mod reply;
mod request_counts;
mod ring;
mod slot;
mod thread_end;
pub(super) mod threads;
mod trace;
mod wire;

use std::{ffi::OsStr, path::Path, time::SystemTime};

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, TimeOrNow,
    WriteFlags,
};
use rfs_proto::LockClass;

pub use self::{
    device::{DeviceServing, DeviceSession, ResentRequest},
    negotiation::{Negotiation, negotiate},
    reply::{
        ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
        ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
    },
    request_counts::RequestCounts,
    ring::{Ring, Serving, SwitchError},
    slot::OtherRequests,
};

pub(crate) use self::{
    request_counts::RequestKind,
    trace::{Trace, TraceError, parse_limit},
};

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    uid: u32,
    gid: u32,
    pid: u32,
    unique: u64,
}

impl Request {
    /// Returns the user ID.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the group ID.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Returns the thread ID, or 0 if the thread has no number in this process's PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the kernel's number of the request. It is greater than the numbers of all requests
    /// that the kernel has queued before.
    pub fn unique(&self) -> u64 {
        self.unique
    }
}

/// The open file, owner and class of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedBy {
    /// The open file.
    pub handle: FileHandle,
    /// Owner of the lock, or of the lock request.
    pub owner: LockOwner,
    /// flock(2) or fcntl(2).
    pub class: LockClass,
}

/// A lock, as in fcntl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub typ: i32,
    /// ID of the locking process.
    pub pid: u32,
}

/// A file system, called by several threads at once. Each request but `forget` is answered
/// exactly once, by any thread. A reply that is dropped sends EIO. Methods without an
/// implementation answer ENOSYS, which makes the kernel stop asking, unless their comment says
/// otherwise.
#[allow(clippy::too_many_arguments)]
pub trait Filesystem: Send + Sync + 'static {
    /// Returns the record of begun requests that session threads keep, if the file system needs it.
    fn threads(&self) -> Option<&threads::Threads> {
        None
    }

    /// Returns the counters of requests, if the file system has some.
    fn counts(&self) -> Option<&RequestCounts> {
        None
    }

    /// Announces a RELEASE, before the session thread records its begin.
    fn will_release(&self) {}

    /// Handles a signal of the caller of request `unique`, which perhaps has not begun yet, or has
    /// an answer. A request that was carried out must not fail. Returns false if no signal ends any
    /// request: the kernel then reports no more of them.
    fn interrupt(&self, _unique: u64) -> bool {
        false
    }

    /// Negotiates with the kernel, before the first request.
    fn init(&mut self, config: &mut KernelConfig);

    /// Returns the part of the negotiation that a next process needs to continue the kernel's
    /// session.
    fn negotiated(&self) -> [u64; 3] {
        [0; 3]
    }

    /// Continues the kernel's session of a previous process, instead of [`init`](Self::init).
    /// `takeovers` is the number of processes that have done so.
    fn continue_session(&mut self, _negotiated: [u64; 3], _takeovers: u64) {}

    /// Looks a name up.
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry);

    /// Drops `nlookup` references of the kernel to an inode.
    fn forget(&self, _: &Request, _ino: INodeNo, _nlookup: u64) {}

    /// Returns attributes.
    fn getattr(&self, request: &Request, ino: INodeNo, reply: ReplyAttr);

    /// Returns attributes and, if `births` is set, the time of birth. After ENOSYS, the kernel asks
    /// for attributes only.
    fn statx(&self, _: &Request, _ino: INodeNo, _births: bool, reply: ReplyStatx) {
        reply.error(Errno::ENOSYS);
    }

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

    /// Returns the target of a symbolic link.
    fn readlink(&self, _: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    /// Creates a file, or a node of another kind.
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

    /// Creates a directory.
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

    /// Creates a symbolic link. EPERM by default.
    fn symlink(&self, _: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    /// Renames an inode.
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

    /// Adds a name to a file. EPERM by default.
    fn link(&self, _: &Request, _ino: INodeNo, _newparent: INodeNo, _newname: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    /// Opens a file.
    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);

    /// Creates and opens a file.
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

    /// Creates a file without a name, and opens it. After ENOSYS, the kernel answers EOPNOTSUPP.
    fn tmpfile(
        &self,
        _: &Request,
        _parent: INodeNo,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Reads `range`, its first byte and its length, through a file that is open with `flags`.
    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        range: (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    );

    /// Writes `data` at `offset`.
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

    /// Handles the close of one descriptor of an open file.
    fn flush(&self, request: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty);

    /// Handles the last close of an open file. Succeeds by default.
    fn release(&self, _: &Request, _ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes the data of a file durable.
    fn fsync(&self, request: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty);

    /// Opens a directory. Succeeds by default.
    fn opendir(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    /// Lists a directory, starting after a cookie.
    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    );

    /// Lists a directory with attributes, starting after a cookie.
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

    /// Closes a directory. Succeeds by default.
    fn releasedir(&self, _: &Request, _ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes the names in a directory durable.
    fn fsyncdir(&self, _: &Request, _ino: INodeNo, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Returns the size of the file system, and its free space.
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

    /// Returns the value of an extended attribute.
    fn getxattr(&self, _: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    /// Returns the names of extended attributes.
    fn listxattr(&self, _: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, _: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Returns a conflicting lock.
    fn getlk(&self, _: &Request, _ino: INodeNo, _by: LockedBy, _lock: Lock, reply: ReplyLock) {
        reply.error(Errno::ENOSYS);
    }

    /// Locks or unlocks. Blocks the caller if `sleep` is set.
    fn setlk(&self, _: &Request, _ino: INodeNo, _by: LockedBy, _lock: Lock, _sleep: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Allocates or frees space, as fallocate(2).
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

    /// Returns the next data or the next hole, as lseek(2).
    fn lseek(&self, _: &Request, _ino: INodeNo, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    /// Copies a range of a file to an offset in another file.
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
