//! What this side tells the kernel without being asked: to drop what it keeps.
//!
//! Written to the FUSE device as the kernel's `fuse.h` says; fuser's own notifier does not say whether the kernel
//! knew the inode at all.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::io::Errno;

use crate::client::Next;

use super::{
    barrier::Barrier,
    session::{
        Beside,
        descriptors::{clone_of, has_request},
    },
    telling::{self, Tellers},
};

/// The bytes of a `fuse_out_header`.
const HEADER: usize = 16;
const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_INVAL_ENTRY: i32 = 3;
const NOTIFY_INC_EPOCH: i32 = 8;
/// FUSE_EXPIRE_ONLY: the name is looked up anew, and what is open or mounted below it stays.
const EXPIRE_ONLY: u32 = 1;
/// The protocol of Linux 6.2, whose kernels know that flag. Others take no notice of it.
const EXPIRES: (u32, u32) = (7, 38);

/// The way to the kernel, which exists only once there is a device.
#[derive(Debug, Default)]
pub struct Kernel {
    tellers: Tellers,
    /// A clone: no request is taken through it.
    device: OnceLock<File>,
    expires: AtomicBool,
    barrier: Barrier,
}

/// For all who tell the kernel something.
pub type KernelLink = Arc<Kernel>;

/// What of an inode is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Attributes and ACLs. Waits for no page.
    Attributes,
    /// Those, and pages from this byte on.
    PagesFrom(u64),
    /// Those, and the pages of a range: its first byte and its length, which is not 0.
    Pages(u64, u64),
}

fn notification(code: i32, fields: &[&[u8]]) -> Vec<u8> {
    let len = HEADER + fields.iter().map(|field| field.len()).sum::<usize>();
    let mut message = Vec::with_capacity(len);
    // Shorter than a page.
    message.extend_from_slice(&(len as u32).to_ne_bytes());
    message.extend_from_slice(&code.to_ne_bytes());
    message.extend_from_slice(&0_u64.to_ne_bytes());
    fields.iter().for_each(|field| message.extend_from_slice(field));
    message
}

fn inval_inode(ino: u64, part: Part) -> Vec<u8> {
    // A negative offset stands for attributes only; no file is longer than i64 can say; a length of 0 is all that follows.
    let bytes = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (from, len) = match part {
        Part::Attributes => (-1, 0),
        Part::PagesFrom(from) => (bytes(from), 0),
        Part::Pages(from, len) => (bytes(from), bytes(len).min(i64::MAX - bytes(from))),
    };
    notification(NOTIFY_INVAL_INODE, &[&ino.to_ne_bytes(), &from.to_ne_bytes(), &len.to_ne_bytes()])
}

fn inval_entry(parent: u64, name: &[u8], flags: u32) -> Vec<u8> {
    // Names are at most 255 bytes long.
    let len = name.len() as u32;
    notification(
        NOTIFY_INVAL_ENTRY,
        &[&parent.to_ne_bytes(), &len.to_ne_bytes(), &flags.to_ne_bytes(), name, b"\0"],
    )
}

impl Kernel {
    /// From now on the kernel can be told.
    pub fn connect(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.device.set(clone_of(device)?).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// Says where the mount is, and whether requests have a queue for each core.
    pub fn mounted_on(&self, point: PathBuf, by_core: bool) {
        self.barrier.mounted_on(point, by_core);
    }

    pub(super) fn barrier(&self) -> &Barrier {
        &self.barrier
    }

    /// What a thread does next. If its request came over a ring it knows itself what has come with it (`beside`); to see more, and for answers to leave, it has to come
    /// back to the ring. Otherwise this looks whether the device has a request that nobody has taken.
    pub(super) fn next(&self, beside: Option<Beside>) -> Next {
        let device = match (beside, self.device.get()) {
            (Some(Beside::Another), _) => return Next::Waits,
            (Some(Beside::Many), _) => return Next::Answers,
            (Some(Beside::Few), _) | (None, None) => return Next::Unknown,
            (None, Some(device)) => device,
        };
        if has_request(device) { Next::Waits } else { Next::Nothing }
    }

    /// What waits for nothing. False: it knows of no such thing.
    fn tell(&self, message: &[u8]) -> io::Result<bool> {
        self.tell_by(|device| telling::write(device, message))
    }

    /// What may wait for somebody whose request this process has. False: it knows of no such thing.
    fn tell_and_wait(&self, message: Vec<u8>) -> io::Result<bool> {
        self.tell_by(|device| self.tellers.tell(device, message))
    }

    fn tell_by(&self, write: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<bool> {
        let Some(device) = self.device.get() else { return Ok(false) };
        match write(device.as_fd()) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(false),
            // There is no mount any more.
            Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Has it drop a part of what it keeps of an inode; pages that were changed are written back first. False: it knows no such inode.
    pub(super) fn drop_inode(&self, ino: u64, part: Part) -> io::Result<bool> {
        match part {
            Part::Attributes => self.tell(&inval_inode(ino, part)),
            Part::PagesFrom(_) | Part::Pages(..) => self.tell_and_wait(inval_inode(ino, part)),
        }
    }

    /// Has it ask for each name anew. Linux 6.16 and newer.
    pub(super) fn drop_names(&self) -> io::Result<()> {
        self.tell(&notification(NOTIFY_INC_EPOCH, &[])).map(drop)
    }

    /// Has it write back what it keeps of an inode and nobody else has, and waits for that. Not for session threads, which it waits
    /// for.
    pub fn write_back(&self, ino: u64) -> io::Result<()> {
        self.drop_inode(ino, Part::PagesFrom(0)).map(drop)
    }

    /// Has it drop what a name stands for. Waits for whoever changes the directory, or looks something up there. False: it
    /// knows no such name.
    pub(super) fn drop_name(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        self.tell_and_wait(inval_entry(parent, name, 0))
    }

    /// Which version of the protocol it speaks.
    pub(super) fn speaks(&self, version: (u32, u32)) {
        self.expires.store(version >= EXPIRES, Ordering::Relaxed);
    }

    /// Has it look a name up anew before it goes by what that stands for; all else stays as it is. Waits as
    /// [`drop_name`](Self::drop_name). A kernel that cannot do that drops the name: what is mounted on it, or below it, is unmounted then.
    pub(super) fn expire_name(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        self.tell_and_wait(inval_entry(parent, name, EXPIRE_ONLY))
    }

    /// Whether it can do that.
    pub(super) fn expires_names(&self) -> bool {
        self.expires.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_kernel() {
        let mut expected = vec![];
        for word in [40_u32, 2, 0, 0, 7, 0, u32::MAX, u32::MAX, 0, 0] {
            expected.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(inval_inode(7, Part::Attributes), expected, "on a little-endian machine");
        expected[24..32].copy_from_slice(&5_i64.to_ne_bytes());
        assert_eq!(inval_inode(7, Part::PagesFrom(5)), expected);
        expected[32..40].copy_from_slice(&9_i64.to_ne_bytes());
        assert_eq!(inval_inode(7, Part::Pages(5, 9)), expected);
        for (flags, byte) in [(0, 0), (EXPIRE_ONLY, 1)] {
            let entry = inval_entry(7, b"ab", flags);
            assert_eq!((entry.len(), &entry[24..]), (35, &[2, 0, 0, 0, byte, 0, 0, 0, b'a', b'b', 0][..]));
        }
    }

    #[test]
    fn nobody_is_told_before_there_is_a_device() {
        let kernel = Kernel::default();
        assert_eq!(kernel.drop_inode(1, Part::Attributes).ok(), Some(false));
    }
}
