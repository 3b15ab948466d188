//! A file system that says who calls, before it does what another one does.

use std::{ffi::OsStr, io, path::Path, time::SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::placement::{Calls, Placement};

/// Forwards to another file system, and tells a placement who calls.
#[derive(Debug)]
pub struct Placed<F> {
    inner: F,
    calls: Calls,
}

impl<F> Placed<F> {
    /// A file system whose session threads are placed.
    pub fn new(inner: F, placement: &Placement) -> Placed<F> {
        Placed { inner, calls: placement.calls() }
    }
}

/// Methods that only forward. `moves` tells the bytes of data that go either way, where it can be many.
macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*) $(moves $bytes:expr)?;)*) => {$(
        fn $method(&self, request: &Request, $($argument: $type),*) {
            self.calls.note(request.pid(), 0 $(+ $bytes)?);
            self.inner.$method(request, $($argument),*);
        }
    )*};
}

/// Every method of the trait: what is left out would get the trait's own answer instead of the file system's.
/// But for batch_forget, which cannot be named outside fuser: that is one forget after the other.
impl<F: Filesystem> Filesystem for Placed<F> {
    fn init(&mut self, request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.inner.init(request, config)
    }

    fn destroy(&mut self) {
        self.inner.destroy();
    }

    forward! {
        lookup(parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        forget(ino: INodeNo, nlookup: u64);
        getattr(ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr);
        setattr(
            ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>, handle: Option<FileHandle>,
            crtime: Option<SystemTime>, chgtime: Option<SystemTime>, bkuptime: Option<SystemTime>,
            flags: Option<BsdFileFlags>, reply: ReplyAttr
        );
        readlink(ino: INodeNo, reply: ReplyData);
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry);
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry);
        unlink(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        rmdir(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        symlink(parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry);
        rename(
            parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr, flags: RenameFlags, reply: ReplyEmpty
        );
        link(ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry);
        open(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        read(
            ino: INodeNo, handle: FileHandle, offset: u64, size: u32, flags: OpenFlags, owner: Option<LockOwner>,
            reply: ReplyData
        ) moves size as usize;
        write(
            ino: INodeNo, handle: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags, flags: OpenFlags,
            owner: Option<LockOwner>, reply: ReplyWrite
        ) moves data.len();
        flush(ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty);
        release(
            ino: INodeNo, handle: FileHandle, flags: OpenFlags, owner: Option<LockOwner>, flush: bool, reply: ReplyEmpty
        );
        fsync(ino: INodeNo, handle: FileHandle, datasync: bool, reply: ReplyEmpty);
        opendir(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        readdir(ino: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory);
        readdirplus(ino: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus);
        releasedir(ino: INodeNo, handle: FileHandle, flags: OpenFlags, reply: ReplyEmpty);
        fsyncdir(ino: INodeNo, handle: FileHandle, datasync: bool, reply: ReplyEmpty);
        statfs(ino: INodeNo, reply: ReplyStatfs);
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32, reply: ReplyEmpty)
            moves value.len();
        getxattr(ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        listxattr(ino: INodeNo, size: u32, reply: ReplyXattr);
        removexattr(ino: INodeNo, name: &OsStr, reply: ReplyEmpty);
        access(ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty);
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate);
        getlk(
            ino: INodeNo, handle: FileHandle, owner: LockOwner, start: u64, end: u64, typ: i32, pid: u32, reply: ReplyLock
        );
        setlk(
            ino: INodeNo, handle: FileHandle, owner: LockOwner, start: u64, end: u64, typ: i32, pid: u32, sleep: bool,
            reply: ReplyEmpty
        );
        bmap(ino: INodeNo, blocksize: u32, index: u64, reply: ReplyBmap);
        ioctl(
            ino: INodeNo, handle: FileHandle, flags: IoctlFlags, command: u32, data: &[u8], out_size: u32,
            reply: ReplyIoctl
        );
        poll(
            ino: INodeNo, handle: FileHandle, notifier: PollNotifier, events: PollEvents, flags: PollFlags,
            reply: ReplyPoll
        );
        fallocate(ino: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty);
        lseek(ino: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek);
        copy_file_range(
            ino_in: INodeNo, handle_in: FileHandle, offset_in: u64, ino_out: INodeNo, handle_out: FileHandle,
            offset_out: u64, len: u64, flags: CopyFileRangeFlags, reply: ReplyWrite
        );
    }
}
