//! Answers, by whichever way they go.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Duration};

use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};

use super::ring::{Beside, List, Slot, abi};
use crate::fuse::placement::Unanswered;

/// How an answer gets to the kernel.
#[derive(Debug)]
enum Way<D, R> {
    Device(Waiting<D>),
    Ring(R),
}

/// A reply that has not been sent.
#[derive(Debug)]
struct Waiting<D> {
    // Dropped first: a reply that is dropped is sent, with EIO.
    unanswered: Unanswered,
    reply: D,
}

impl<D> Waiting<D> {
    /// The reply, which the caller sends at once.
    fn take(self) -> D {
        drop(self.unanswered);
        self.reply
    }
}

/// Types of fuser's names, for both ways.
macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident over $ring:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Way<fuser::$name, $ring>);

        impl From<(fuser::$name, Unanswered)> for $name {
            fn from((reply, unanswered): (fuser::$name, Unanswered)) -> $name {
                $name(Way::Device(Waiting { unanswered, reply }))
            }
        }

        impl From<$ring> for $name {
            fn from(reply: $ring) -> $name {
                $name(Way::Ring(reply))
            }
        }

        impl $name {
            /// It has failed.
            pub fn error(self, errno: Errno) {
                match self.0 {
                    Way::Device(waiting) => waiting.take().error(errno),
                    Way::Ring(reply) => reply.error(errno.code()),
                }
            }
        }
    )*};
}

impl<D> Way<D, Slot> {
    fn beside(&self) -> Option<Beside> {
        match self {
            Way::Device(_) => None,
            Way::Ring(slot) => Some(slot.beside()),
        }
    }
}

replies! {
    /// Answers with attributes.
    ReplyAttr over Slot;
    /// Answers with a file that is new and open.
    ReplyCreate over Slot;
    /// Answers with bytes.
    ReplyData over Slot;
    /// Answers with names.
    ReplyDirectory over List;
    /// Answers with names and attributes.
    ReplyDirectoryPlus over List;
    /// Answers with nothing but that it is done.
    ReplyEmpty over Slot;
    /// Answers with what a name stands for.
    ReplyEntry over Slot;
    /// Answers with a lock.
    ReplyLock over Slot;
    /// Answers with a place in a file.
    ReplyLseek over Slot;
    /// Answers with a handle.
    ReplyOpen over Slot;
    /// Answers with how much space there is.
    ReplyStatfs over Slot;
    /// Answers with how many bytes were written.
    ReplyWrite over Slot;
    /// Answers with an extended attribute, or how long it is.
    ReplyXattr over Slot;
}

impl ReplyAttr {
    /// Attributes, and for how long they hold.
    pub fn attr(self, ttl: &Duration, attr: &FileAttr) {
        match self.0 {
            Way::Device(waiting) => waiting.take().attr(ttl, attr),
            Way::Ring(slot) => slot.answer(&abi::AttrOut::new(*ttl, attr)),
        }
    }
}

impl ReplyEntry {
    /// What the name stands for, and for how long its attributes and the name hold.
    pub fn entry_with_ttls(
        self,
        attr_ttl: &Duration,
        entry_ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) {
        match self.0 {
            Way::Device(waiting) => waiting.take().entry_with_ttls(attr_ttl, entry_ttl, attr, generation),
            Way::Ring(slot) => slot.answer(&abi::EntryOut::new((*attr_ttl, *entry_ttl), attr, generation)),
        }
    }
}

impl ReplyCreate {
    /// The file, for how long its name and attributes hold, and its handle.
    pub fn created(
        self,
        ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
        handle: FileHandle,
        flags: FopenFlags,
    ) {
        match self.0 {
            Way::Device(waiting) => waiting.take().created(ttl, attr, generation, handle, flags),
            Way::Ring(slot) => {
                let entry = abi::EntryOut::new((*ttl, *ttl), attr, generation);
                slot.answer(&abi::CreateOut { entry, open: abi::OpenOut::new(handle, flags) });
            }
        }
    }
}

impl ReplyOpen {
    /// The handle, and what the kernel may keep.
    pub fn opened(self, handle: FileHandle, flags: FopenFlags) {
        match self.0 {
            Way::Device(waiting) => waiting.take().opened(handle, flags),
            Way::Ring(slot) => slot.answer(&abi::OpenOut::new(handle, flags)),
        }
    }
}

impl ReplyEmpty {
    /// It is done.
    pub fn ok(self) {
        match self.0 {
            Way::Device(waiting) => waiting.take().ok(),
            Way::Ring(slot) => slot.done(),
        }
    }
}

impl ReplyWrite {
    /// What else the thread has to do. `None` where that has to be asked of the kernel.
    pub fn beside(&self) -> Option<Beside> {
        self.0.beside()
    }

    /// So many bytes were written.
    pub fn written(self, size: u32) {
        match self.0 {
            Way::Device(waiting) => waiting.take().written(size),
            Way::Ring(slot) => slot.answer(&abi::SizeOut { size, padding: 0 }),
        }
    }
}

impl ReplyData {
    /// What else the thread has to do. `None` where that has to be asked of the kernel.
    pub fn beside(&self) -> Option<Beside> {
        self.0.beside()
    }

    /// These bytes.
    pub fn data(self, data: &[u8]) {
        match self.0 {
            Way::Device(waiting) => waiting.take().data(data),
            Way::Ring(slot) => slot.data(data.len(), |into| into.copy_from_slice(data)),
        }
    }

    /// Bytes that nobody may look at as such, because others change them meanwhile: `lend` has them for one system call, `copy` puts them
    /// somewhere.
    pub(crate) fn shared_data<'a>(
        self,
        len: usize,
        lend: impl FnOnce() -> &'a [u8],
        copy: impl FnOnce(&mut [u8]),
    ) {
        match self.0 {
            Way::Device(waiting) => waiting.take().data(lend()),
            Way::Ring(slot) => slot.data(len, copy),
        }
    }
}

impl ReplyXattr {
    /// The value is so long.
    pub fn size(self, size: u32) {
        match self.0 {
            Way::Device(waiting) => waiting.take().size(size),
            Way::Ring(slot) => slot.answer(&abi::SizeOut { size, padding: 0 }),
        }
    }

    /// The value.
    pub fn data(self, data: &[u8]) {
        match self.0 {
            Way::Device(waiting) => waiting.take().data(data),
            Way::Ring(slot) => slot.data(data.len(), |into| into.copy_from_slice(data)),
        }
    }
}

impl ReplyLock {
    /// A lock that is in the way, or F_UNLCK.
    pub fn locked(self, start: u64, end: u64, typ: i32, pid: u32) {
        match self.0 {
            Way::Device(waiting) => waiting.take().locked(start, end, typ, pid),
            Way::Ring(slot) => slot.answer(&abi::FileLock { start, end, typ, pid }),
        }
    }
}

impl ReplyLseek {
    /// The place.
    pub fn offset(self, offset: i64) {
        match self.0 {
            Way::Device(waiting) => waiting.take().offset(offset),
            Way::Ring(slot) => slot.answer(&abi::LseekOut { offset }),
        }
    }
}

impl ReplyStatfs {
    /// Blocks, free ones, free ones for all; inodes, free ones; the size of a block, the length of a name, the size of a fragment.
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
        match self.0 {
            Way::Device(waiting) => {
                waiting.take().statfs(blocks, bfree, bavail, files, ffree, bsize, namelen, frsize);
            }
            Way::Ring(slot) => {
                let (counts, sizes) = ([blocks, bfree, bavail, files, ffree], [bsize, namelen, frsize, 0]);
                slot.answer(&abi::StatfsOut { counts, sizes, spare: [0; 6] });
            }
        }
    }
}

impl ReplyDirectory {
    /// One more name. True if there is no room for it.
    #[must_use]
    pub fn add(&mut self, ino: INodeNo, offset: u64, kind: FileType, name: &OsStr) -> bool {
        match &mut self.0 {
            Way::Device(waiting) => waiting.reply.add(ino, offset, kind, name),
            Way::Ring(list) => list.add(&[], abi::Dirent::new(ino, offset, kind, name), name.as_bytes()),
        }
    }

    /// These are they.
    pub fn ok(self) {
        match self.0 {
            Way::Device(waiting) => waiting.take().ok(),
            Way::Ring(list) => list.done(),
        }
    }
}

impl ReplyDirectoryPlus {
    /// One more name, and for how long that and its attributes hold. True if there is no room for it.
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
        match &mut self.0 {
            Way::Device(waiting) => waiting.reply.add(ino, offset, name, ttl, attr, generation),
            Way::Ring(list) => {
                let entry = abi::EntryOut::new((*ttl, *ttl), attr, generation);
                let dirent = abi::Dirent::new(ino, offset, attr.kind, name);
                list.add(zerocopy::IntoBytes::as_bytes(&entry), dirent, name.as_bytes())
            }
        }
    }

    /// These are they.
    pub fn ok(self) {
        match self.0 {
            Way::Device(waiting) => waiting.take().ok(),
            Way::Ring(list) => list.done(),
        }
    }
}
