//! Notifications to the kernel: requests to drop cached attributes, pages and names, and questions
//! whether it knows an inode.
//!
//! [`Kernel`] writes the messages of the kernel's `fuse.h` to the FUSE device. fuser's notifier
//! does not report whether the kernel knows the inode, so this module has its own.
//!
//! # Concurrency
//! Any thread. Messages that may block in the kernel are written by threads of `notify`. No locks
//! of its own.

mod barrier;
mod notify;

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

use rfs_client::QueueHint;

use self::{barrier::Barrier, notify::NotifyPool};
use super::{
    descriptors::{clone_of, has_request},
    session::OtherRequests,
};

/// Length of a `fuse_out_header` in bytes.
const HEADER: usize = 16;
const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_INVAL_ENTRY: i32 = 3;
const NOTIFY_STORE: i32 = 4;
const NOTIFY_INC_EPOCH: i32 = 8;
/// FUSE_EXPIRE_ONLY: the kernel looks the name up again, and leaves open files and mounts below
/// it alone.
const EXPIRE_ONLY: u32 = 1;
/// Protocol of Linux 6.2, the first with FUSE_EXPIRE_ONLY. Older kernels ignore the flag.
const EXPIRES: (u32, u32) = (7, 38);
/// Protocol of Linux 6.18. It ignores attributes of a SETATTR reply that were dropped meanwhile.
const ORDERS_CHANGES: (u32, u32) = (7, 45);

/// Connection to the kernel. It has no device before the mount exists.
#[derive(Debug, Default)]
pub struct Kernel {
    notify_pool: NotifyPool,
    /// Clone of the FUSE device. No request is read from it.
    device: OnceLock<File>,
    expires: AtomicBool,
    orders_changes: AtomicBool,
    barrier: Barrier,
}

/// Shared reference to the connection.
pub type KernelLink = Arc<Kernel>;

/// Part of an inode that the kernel drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Attributes and ACLs. Dropping them waits for no page.
    Attributes,
    /// Attributes, and pages from this byte on.
    PagesFrom(u64),
    /// Attributes, and the pages of a range: its first byte and its length, which is not 0.
    Pages(u64, u64),
}

fn notification(code: i32, fields: &[&[u8]]) -> Vec<u8> {
    let len = HEADER + fields.iter().map(|field| field.len()).sum::<usize>();
    let mut message = Vec::with_capacity(len);
    // A message is shorter than a page.
    message.extend_from_slice(&(len as u32).to_ne_bytes());
    message.extend_from_slice(&code.to_ne_bytes());
    message.extend_from_slice(&0_u64.to_ne_bytes());
    fields.iter().for_each(|field| message.extend_from_slice(field));
    message
}

fn inval_inode(ino: u64, part: Part) -> Vec<u8> {
    // A negative offset means attributes only. No offset in a file exceeds i64::MAX. Length 0 means
    // up to the end.
    let bytes = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (from, len) = match part {
        Part::Attributes => (-1, 0),
        Part::PagesFrom(from) => (bytes(from), 0),
        Part::Pages(from, len) => (bytes(from), bytes(len).min(i64::MAX - bytes(from))),
    };
    notification(NOTIFY_INVAL_INODE, &[&ino.to_ne_bytes(), &from.to_ne_bytes(), &len.to_ne_bytes()])
}

/// Returns the message that stores no bytes in an inode: it changes nothing.
fn store_nothing(ino: u64) -> Vec<u8> {
    notification(NOTIFY_STORE, &[&ino.to_ne_bytes(), &0_u64.to_ne_bytes(), &0_u64.to_ne_bytes()])
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
    /// Sets the device. From now on notifications reach the kernel. Notifications need a device of
    /// their own, so that a thread which waits for one ends with a killed process. `may_share`: if
    /// this process can open no FUSE device, they use the device of the requests. Then only the
    /// watchdog ends such a wait.
    ///
    /// # Errors
    /// There is no device for notifications.
    pub fn connect(&self, device: BorrowedFd<'_>, may_share: bool) -> io::Result<()> {
        let own = clone_of(device).or_else(|e| match may_share {
            true => device.try_clone_to_owned().map(File::from),
            false => Err(e),
        });
        self.device.set(own?).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// Sets the path of the mount, and whether each core has its own request queue.
    pub fn mounted_on(&self, point: PathBuf, by_core: bool) {
        self.barrier.mounted_on(point, by_core);
    }

    /// Returns true if a signal of a caller may come without an INTERRUPT. If the signal comes
    /// before the kernel hands a request over to a ring, the kernel does not look again then.
    pub(super) fn may_miss_signals(&self) -> bool {
        self.barrier.is_by_core()
    }

    pub(super) fn barrier(&self) -> &Barrier {
        &self.barrier
    }

    /// Tells a session thread how to serve its request. A request of a ring says itself which
    /// requests came with it (`others`); to see more requests, the thread has to return to the
    /// ring. Otherwise this checks whether the device has a pending request.
    pub(super) fn next(&self, others: Option<OtherRequests>) -> QueueHint {
        let device = match (others, self.device.get()) {
            (Some(OtherRequests::Another), _) => return QueueHint::Waits,
            (Some(OtherRequests::Many), _) => return QueueHint::PollForReplies,
            (Some(OtherRequests::Few), _) | (None, None) => return QueueHint::Unknown,
            (None, Some(device)) => device,
        };
        if has_request(device) { QueueHint::Waits } else { QueueHint::Nothing }
    }

    /// Writes a notification that does not block. Returns false if the kernel does not know its
    /// object.
    fn notify(&self, message: &[u8]) -> io::Result<bool> {
        self.notify_with(|device| notify::write(device, message))
    }

    /// Writes a notification that may wait for a request of this process. Returns false if the
    /// kernel does not know its object.
    fn notify_blocking(&self, message: Vec<u8>) -> io::Result<bool> {
        self.notify_with(|device| self.notify_pool.notify(device, message))
    }

    fn notify_with(&self, write: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<bool> {
        let Some(device) = self.device.get() else { return Ok(false) };
        match write(device.as_fd()) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(false),
            // The mount has ended.
            Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Has the kernel drop a part of an inode, after it has written dirty pages back. Returns false
    /// if the kernel does not know the inode.
    pub(super) fn drop_inode(&self, ino: u64, part: Part) -> io::Result<bool> {
        match part {
            Part::Attributes => self.notify(&inval_inode(ino, part)),
            Part::PagesFrom(_) | Part::Pages(..) => self.notify_blocking(inval_inode(ino, part)),
        }
    }

    /// Returns true if the kernel has a reference to the inode. Waits while the kernel evicts it.
    pub(super) fn knows_inode(&self, ino: u64) -> io::Result<bool> {
        match self.notify_blocking(store_nothing(ino)) {
            // Linux 6.18 stores only in regular files, and refuses after it has found the inode.
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(true),
            answer => answer,
        }
    }

    /// Has the kernel look up all names again. Needs Linux 6.16.
    pub(crate) fn drop_names(&self) -> io::Result<()> {
        self.notify(&notification(NOTIFY_INC_EPOCH, &[])).map(drop)
    }

    /// Blocks until the kernel has written back an inode's dirty pages. Session threads must not
    /// call this: the kernel waits for them.
    pub fn write_back(&self, ino: u64) -> io::Result<()> {
        self.drop_inode(ino, Part::PagesFrom(0)).map(drop)
    }

    /// Has the kernel drop a name. Waits for changes of the directory, and for lookups in it.
    /// Returns false if the kernel does not know the name.
    pub(super) fn drop_name(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        self.notify_blocking(inval_entry(parent, name, 0))
    }

    /// Sets the version of the kernel's FUSE protocol.
    pub(super) fn set_version(&self, version: (u32, u32)) {
        self.expires.store(version >= EXPIRES, Ordering::Relaxed);
        self.orders_changes.store(version >= ORDERS_CHANGES, Ordering::Relaxed);
    }

    /// Has the kernel look a name up before its next use. Waits like
    /// [`drop_name`](Self::drop_name). A kernel without FUSE_EXPIRE_ONLY drops the name, which
    /// unmounts file systems mounted on it or below it.
    pub(super) fn expire_name(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        self.notify_blocking(inval_entry(parent, name, EXPIRE_ONLY))
    }

    /// Returns true if the kernel has FUSE_EXPIRE_ONLY.
    pub(super) fn expires_names(&self) -> bool {
        self.expires.load(Ordering::Relaxed)
    }

    /// Returns true if the kernel ignores the attributes of a SETATTR reply that it was told to
    /// drop before it took them over.
    pub(super) fn orders_changes(&self) -> bool {
        self.orders_changes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_layout_of_the_kernel() {
        let mut expected = vec![];
        for word in [40_u32, 2, 0, 0, 7, 0, u32::MAX, u32::MAX, 0, 0] {
            expected.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(inval_inode(7, Part::Attributes), expected, "on a little-endian machine");
        expected[24..32].copy_from_slice(&5_i64.to_ne_bytes());
        assert_eq!(inval_inode(7, Part::PagesFrom(5)), expected);
        expected[32..40].copy_from_slice(&9_i64.to_ne_bytes());
        assert_eq!(inval_inode(7, Part::Pages(5, 9)), expected);
        let mut expected = vec![];
        for word in [40_u32, 4, 0, 0, 7, 0, 0, 0, 0, 0] {
            expected.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(store_nothing(7), expected);
        for (flags, byte) in [(0, 0), (EXPIRE_ONLY, 1)] {
            let entry = inval_entry(7, b"ab", flags);
            assert_eq!((entry.len(), &entry[24..]), (35, &[2, 0, 0, 0, byte, 0, 0, 0, b'a', b'b', 0][..]));
        }
    }

    #[test]
    fn notifications_before_the_mount_are_dropped() {
        let kernel = Kernel::default();
        assert_eq!(kernel.drop_inode(1, Part::Attributes).ok(), Some(false));
    }
}
