//! The FUSE adapter: kernel requests into client operations, results into replies.
//!
//! Requests come by a [`session`](Filesystem), over `/dev/fuse` or over io_uring. Handlers run on its threads, several at once, and wait for
//! the server on the thread that they are called on; the session's timeouts bound every wait. Permission is the kernel's business (`default_permissions`). Who
//! waits for a lock waits on none of them (`locks`).
//! Which core a handler runs on is the business of `placement`.
//! What this file system does not have is not implemented here: the answer is ENOSYS, which makes the kernel stop asking.

mod adapter;
mod background;
mod barrier;
mod convert;
mod handles;
mod kernel;
mod labels;
mod lifetimes;
mod locks;
mod losses;
mod page_ranges;
mod pages;
mod placement;
mod process;
mod recalls;
mod remote_pages;
mod reply;
mod retries;
mod session;
mod telling;

use std::time::Duration;

use fuser::{FopenFlags, InitFlags, KernelConfig};

pub use adapter::Adapter;
pub use kernel::{Kernel, KernelLink};
pub use losses::{Losses, Untold};
pub use placement::Placement;
pub use session::*;

/// What is agreed with the kernel; the same for the real and the null file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest write request in bytes.
    pub max_write: u32,
    /// Read ahead in bytes.
    pub max_readahead: u32,
    /// For how long the kernel may keep attributes, at most.
    pub attr_timeout: Duration,
    /// For how long the kernel may keep names, at most.
    pub entry_timeout: Duration,
    /// Bypass the page cache.
    pub direct_io: bool,
    /// Keep what may be kept until it is recalled.
    pub keeps: bool,
    /// Keep what is written, too, and the times of that. Nobody else uses the file system.
    pub writeback: bool,
}

/// For how long something is kept that may be: as long as anything.
pub const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// What `stat` reports as the size of a good I/O request: programs that buffer go by it.
pub const IO_BLOCK: u32 = 128 * 1024;

/// Requests without a waiting process that the kernel sends before it holds others back: read-ahead, asynchronous direct I/O, and
/// releases. A direct write that waits until pages are dropped keeps one of these places, and a page may be locked by a read-ahead that
/// needs one. So there are more of them than writes that wait ([`pages::MAX_WAITING`]).
const MAX_BACKGROUND: u16 = 256;

/// True if the kernel has all of them.
fn request(config: &mut KernelConfig, wanted: &[InitFlags]) -> bool {
    let mut all = true;
    for &flag in wanted {
        if let Err(missing) = config.add_capabilities(flag) {
            log::debug!("the kernel has no {missing:?}");
            all = false;
        }
    }
    all
}

impl Settings {
    /// Agrees with the kernel at the start of a session on how data moves. What it cannot do is not set afterwards.
    pub fn negotiate(&mut self, config: &mut KernelConfig) {
        // The nearest value that works is the answer to one that does not.
        if let Err(nearest) = config.set_max_write(self.max_write) {
            config.set_max_write(nearest).ok();
        }
        if let Err(nearest) = config.set_max_readahead(self.max_readahead) {
            config.set_max_readahead(nearest).ok();
        }
        // Fails for 0 only.
        config.set_max_background(MAX_BACKGROUND).ok();
        let always = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        request(config, &always);
        if self.writeback && !request(config, &[InitFlags::FUSE_WRITEBACK_CACHE]) {
            log::warn!("this kernel keeps no writes: --cache writeback is like auto, for one mount only");
            self.writeback = false;
        }
    }

    /// Agrees on what a file system with names, owners and permissions of its own has besides.
    pub fn negotiate_names(&self, config: &mut KernelConfig) {
        request(
            config,
            &[
                InitFlags::FUSE_DO_READDIRPLUS,
                InitFlags::FUSE_READDIRPLUS_AUTO,
                // Numbers are enough to find inodes that the kernel has forgotten: `.` and `..` are looked up.
                InitFlags::FUSE_EXPORT_SUPPORT,
                // The kernel checks ACLs, too, and leaves the umask to the directory's default ACL.
                InitFlags::FUSE_POSIX_ACL,
                InitFlags::FUSE_DONT_MASK,
                // Locks are the server's, so that all mounts know of them.
                InitFlags::FUSE_POSIX_LOCKS,
                InitFlags::FUSE_FLOCK_LOCKS,
                // suid, sgid and capabilities are taken away here, so that the kernel need not ask for
                // security.capability before every write.
                InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            ],
        );
    }

    /// The most bytes that the kernel reads or writes at once.
    pub fn max_payload(&self) -> usize {
        self.max_write.max(self.max_readahead) as usize
    }

    /// True if the kernel may keep listings of directories, for which it has no limit of time.
    pub fn keeps_listings(&self) -> bool {
        self.keeps && self.entry_timeout >= FOREVER
    }

    /// The flags of every open file.
    pub fn open_flags(&self) -> FopenFlags {
        if self.direct_io {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else if self.writeback {
            // Nobody else can have changed what the kernel has.
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        }
    }
}
