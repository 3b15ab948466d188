//! Settings of a mount that the kernel agrees to.
//!
//! [`Settings`] has cache times, transfer sizes and the choice of caches. `init` negotiates them
//! at the start of a session. No I/O, no locks, no clock.

use std::time::Duration;

use fuser::{FopenFlags, InitFlags, KernelConfig};

/// Settings that a mount negotiates with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest write request in bytes.
    pub max_write: u32,
    /// Size of the kernel's read-ahead in bytes.
    pub max_readahead: u32,
    /// Maximum time for which the kernel caches attributes.
    pub attr_timeout: Duration,
    /// Maximum time for which the kernel caches names.
    pub entry_timeout: Duration,
    /// True if reads and writes bypass the page cache.
    pub direct_io: bool,
    /// True if the kernel caches names, attributes and pages until they are recalled.
    pub keeps: bool,
    /// True if the kernel also caches written data and their times. The mount is then the export's
    /// only one.
    pub writeback: bool,
    /// True if `statx` returns the time of birth.
    pub births: bool,
}

/// Cache time without a limit.
pub const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// I/O size that `stat` recommends (`st_blksize`). Programs choose their buffers by it.
pub const IO_BLOCK: u32 = 128 * 1024;

/// Maximum number of background requests in flight: read-ahead, asynchronous direct I/O and
/// RELEASE. A direct write that waits for a drop of pages occupies one of these slots. The page
/// may be locked by a read-ahead that needs a slot. So this exceeds the number of waiting writes
/// (`pages::MAX_WAITING`).
const MAX_BACKGROUND: u16 = 256;

/// Requests flags of the kernel. Returns true if the kernel supports all of them.
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
    /// Negotiates data transfer with the kernel at the start of a session. Clears the settings that
    /// the kernel does not support.
    pub fn negotiate(&mut self, config: &mut KernelConfig) {
        // The error carries the nearest value that works.
        if let Err(nearest) = config.set_max_write(self.max_write) {
            config.set_max_write(nearest).ok();
        }
        if let Err(nearest) = config.set_max_readahead(self.max_readahead) {
            config.set_max_readahead(nearest).ok();
        }
        // Fails only for 0.
        config.set_max_background(MAX_BACKGROUND).ok();
        let always = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        request(config, &always);
        if self.writeback && !request(config, &[InitFlags::FUSE_WRITEBACK_CACHE]) {
            log::warn!(
                "this kernel has no write-back cache: --cache writeback works like auto, but for one mount only"
            );
            self.writeback = false;
        }
    }

    /// Negotiates the flags of a file system that has names, owners and permissions.
    pub fn negotiate_names(&self, config: &mut KernelConfig) {
        request(
            config,
            &[
                InitFlags::FUSE_DO_READDIRPLUS,
                InitFlags::FUSE_READDIRPLUS_AUTO,
                // Inode numbers suffice to find inodes that the kernel has forgotten: `.` and `..`
                // have a lookup.
                InitFlags::FUSE_EXPORT_SUPPORT,
                // The kernel checks ACLs. It leaves the umask to the directory's default ACL.
                InitFlags::FUSE_POSIX_ACL,
                InitFlags::FUSE_DONT_MASK,
                // The server keeps the locks, so that all mounts see them.
                InitFlags::FUSE_POSIX_LOCKS,
                InitFlags::FUSE_FLOCK_LOCKS,
                // This process clears suid, sgid and capabilities. Otherwise the kernel would read
                // security.capability before every write.
                InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            ],
        );
    }

    /// Returns the maximum number of bytes in a read or write of the kernel.
    pub fn max_payload(&self) -> usize {
        self.max_write.max(self.max_readahead) as usize
    }

    /// Returns true if the kernel may cache directory listings, for which it has no timeout.
    pub fn keeps_listings(&self) -> bool {
        self.keeps && self.entry_timeout >= FOREVER
    }

    /// Returns the flags of an open file.
    pub fn open_flags(&self) -> FopenFlags {
        if self.direct_io {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else if self.writeback {
            // This mount is the only one, so the kernel's pages are current.
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        }
    }
}
