//! Replies to requests, over `/dev/fuse` or a ring.
//!
//! # Concurrency
//! Any thread sends a reply, exactly once. A reply that is dropped sends EIO.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    time::{Duration, SystemTime},
};

use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};
use zerocopy::IntoBytes;

use super::{
    slot::{List, OtherRequests, Slot},
    trace::KernelRequest,
    wire::abi,
};

/// The request in a trace, if there is one.
pub(super) type Traced = Option<Box<KernelRequest>>;

/// Defines types with the names of fuser's replies.
macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident over $slot:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name($slot);

        impl From<$slot> for $name {
            fn from(slot: $slot) -> $name {
                $name(slot)
            }
        }

        impl $name {
            /// Fails the request.
            pub fn error(self, errno: Errno) {
                self.0.error(errno.code());
            }
        }
    )*};
}

replies! {
    /// Reply with attributes.
    ReplyAttr over Slot;
    /// Reply with a new, open file.
    ReplyCreate over Slot;
    /// Reply with bytes.
    ReplyData over Slot;
    /// Reply with names.
    ReplyDirectory over List;
    /// Reply with names and attributes.
    ReplyDirectoryPlus over List;
    /// Reply without a value.
    ReplyEmpty over Slot;
    /// Reply with the inode of a name.
    ReplyEntry over Slot;
    /// Reply with a lock.
    ReplyLock over Slot;
    /// Reply with an offset in a file.
    ReplyLseek over Slot;
    /// Reply with a handle.
    ReplyOpen over Slot;
    /// Reply with attributes and the time of birth.
    ReplyStatx over Slot;
    /// Reply with sizes of the file system.
    ReplyStatfs over Slot;
    /// Reply with the number of written bytes.
    ReplyWrite over Slot;
    /// Reply with an extended attribute, or with its length.
    ReplyXattr over Slot;
}

impl ReplyAttr {
    /// Sends attributes, and how long the kernel may cache them.
    pub fn attr(self, ttl: &Duration, attr: &FileAttr) {
        self.0.answer(&abi::AttrOut::new(*ttl, attr));
    }
}

impl ReplyStatx {
    /// Sends attributes, how long the kernel may cache them, and the time of birth, if it is known.
    pub fn attr(self, ttl: &Duration, attr: &FileAttr, birth: Option<SystemTime>) {
        self.0.bytes(abi::StatxOut::new(*ttl, attr, birth).as_bytes());
    }
}

impl ReplyEntry {
    /// Sends the inode of a name, and how long the kernel may cache its attributes and the name.
    pub fn entry_with_ttls(
        self,
        attr_ttl: &Duration,
        entry_ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) {
        self.0.answer(&abi::EntryOut::new((*attr_ttl, *entry_ttl), attr, generation));
    }
}

impl ReplyCreate {
    /// Sends a new file, how long the kernel may cache its name and attributes, and its handle.
    pub fn created(
        self,
        ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
        handle: FileHandle,
        flags: FopenFlags,
    ) {
        let entry = abi::EntryOut::new((*ttl, *ttl), attr, generation);
        self.0.answer(&abi::CreateOut { entry, open: abi::OpenOut::new(handle, flags) });
    }
}

impl ReplyOpen {
    /// Sends a handle, and its flags for the kernel.
    pub fn opened(self, handle: FileHandle, flags: FopenFlags) {
        self.0.answer(&abi::OpenOut::new(handle, flags));
    }
}

impl ReplyEmpty {
    /// Reports success.
    pub fn ok(self) {
        self.0.done();
    }
}

impl ReplyWrite {
    /// Returns which other requests the ring's thread has. `None` over `/dev/fuse`, where only the
    /// kernel knows.
    pub fn other_requests(&self) -> Option<OtherRequests> {
        self.0.other_requests()
    }

    /// Sends the number of written bytes.
    pub fn written(self, size: u32) {
        self.0.answer(&abi::SizeOut { size, padding: 0 });
    }
}

impl ReplyData {
    /// Returns which other requests the ring's thread has. `None` over `/dev/fuse`, where only the
    /// kernel knows.
    pub fn other_requests(&self) -> Option<OtherRequests> {
        self.0.other_requests()
    }

    /// Sends bytes.
    pub fn data(self, data: &[u8]) {
        self.0.bytes(data);
    }

    /// Sends bytes of shared memory, which other processes change meanwhile. `lend` returns them as
    /// a slice for one system call only. `copy` copies them.
    pub(crate) fn shared_data<'a>(
        self,
        len: usize,
        lend: impl FnOnce() -> &'a [u8],
        copy: impl FnOnce(&mut [u8]),
    ) {
        self.0.shared(len, lend, copy);
    }
}

impl ReplyXattr {
    /// Sends the length of the value.
    pub fn size(self, size: u32) {
        self.0.answer(&abi::SizeOut { size, padding: 0 });
    }

    /// Sends the value.
    pub fn data(self, data: &[u8]) {
        self.0.bytes(data);
    }
}

impl ReplyLock {
    /// Sends a conflicting lock, or F_UNLCK.
    pub fn locked(self, start: u64, end: u64, typ: i32, pid: u32) {
        self.0.answer(&abi::FileLock { start, end, typ, pid });
    }
}

impl ReplyLseek {
    /// Sends the offset.
    pub fn offset(self, offset: i64) {
        self.0.answer(&abi::LseekOut { offset });
    }
}

impl ReplyStatfs {
    /// Sends the number of blocks, of free blocks, and of blocks that users may allocate. Then the
    /// number of inodes and of free inodes, the block size, the maximum length of a name, and the
    /// fragment size.
    #[allow(clippy::too_many_arguments)]
    pub fn statfs(
        self,
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
    ) {
        let (counts, sizes) = ([blocks, bfree, bavail, files, ffree], [bsize, namelen, frsize, 0]);
        self.0.answer(&abi::StatfsOut { counts, sizes, spare: [0; 6] });
    }
}

impl ReplyDirectory {
    /// Adds a name. Returns true if there is no room for it.
    #[must_use]
    pub fn add(&mut self, ino: INodeNo, offset: u64, kind: FileType, name: &OsStr) -> bool {
        self.0.add(&[], abi::Dirent::new(ino, offset, kind, name), name.as_bytes())
    }

    /// Sends the names.
    pub fn ok(self) {
        self.0.done();
    }
}

impl ReplyDirectoryPlus {
    /// Adds a name, and how long the kernel may cache the name and its attributes. Returns true if
    /// there is no room for it.
    #[must_use]
    pub fn add(
        &mut self,
        ino: INodeNo,
        offset: u64,
        name: &OsStr,
        ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) -> bool {
        let entry = abi::EntryOut::new((*ttl, *ttl), attr, generation);
        let dirent = abi::Dirent::new(ino, offset, attr.kind, name);
        self.0.add(zerocopy::IntoBytes::as_bytes(&entry), dirent, name.as_bytes())
    }

    /// Sends the names.
    pub fn ok(self) {
        self.0.done();
    }
}
