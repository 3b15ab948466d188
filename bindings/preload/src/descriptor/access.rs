//! Which opens the library carries, by their flags. No I/O, no locks, no clock.

use std::ffi::c_int;

use rfs_native::OpenOptions;

/// Flags of opens that are left to the kernel: of no file, of directories, and of files without a
/// name.
const OTHERS: c_int = libc::O_PATH | libc::O_DIRECTORY;

/// How a descriptor was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) appends: bool,
    /// True if each write is synchronous.
    pub(crate) syncs: bool,
    counts_reads: bool,
}

impl Access {
    /// Returns the access of an open with these flags, or `None` if the kernel keeps it.
    pub(crate) fn of(flags: c_int) -> Option<Access> {
        if flags & OTHERS != 0 {
            return None;
        }
        let (reads, writes) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            _ => return None,
        };
        Some(Access {
            reads,
            writes,
            appends: writes && flags & libc::O_APPEND != 0,
            syncs: flags & libc::O_DSYNC != 0,
            counts_reads: flags & libc::O_NOATIME == 0,
        })
    }

    /// Returns the options of the native open.
    pub(crate) fn options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.reads).write(self.writes).append(self.appends).count_reads(self.counts_reads);
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_select_reads_and_writes() {
        let of = |flags| Access::of(flags).map(|access| (access.reads, access.writes, access.appends));
        assert_eq!(of(libc::O_RDONLY | libc::O_APPEND), Some((true, false, false)));
        assert_eq!(of(libc::O_WRONLY | libc::O_CREAT), Some((false, true, false)));
        assert_eq!(of(libc::O_RDWR | libc::O_APPEND), Some((true, true, true)));
        for other in [libc::O_PATH, libc::O_DIRECTORY, libc::O_TMPFILE | libc::O_RDWR, 3] {
            assert_eq!(of(other), None, "{other:o}");
        }
        assert!(Access::of(libc::O_WRONLY | libc::O_SYNC).is_some_and(|access| access.syncs));
    }
}
