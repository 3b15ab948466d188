//! Prepares the process for a swap area on its mount.
//!
//! The kernel frees memory by writing pages to the swap area, and waits for this process. The
//! process must not wait for the kernel to free memory in turn.
//!
//! # Concurrency
//! Called while the process has one thread. Later threads inherit the settings.

use std::{fs, io};

use rustix::mm::{MlockAllFlags, mlockall};

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// The least likely victim of the OOM killer.
const NO_VICTIM: &str = "-1000";

/// Locks the memory of the process, now and later, so that none of it is swapped out. Allocations
/// of the kernel for its threads start no I/O of block devices and file systems. The OOM killer
/// chooses other processes.
///
/// Without CAP_SYS_RESOURCE the last two are warnings: memory cgroups of other processes do not
/// depend on them.
///
/// # Errors
/// Of mlockall: EPERM without CAP_IPC_LOCK.
pub(super) fn prepare() -> io::Result<()> {
    // SAFETY: The call changes a flag of this thread.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        let error = io::Error::last_os_error();
        log::warn!(
            "cannot set PR_SET_IO_FLUSHER: {error}. Give rfs-fuse CAP_SYS_RESOURCE. Without it this mount may \
             wait for memory that only it can free, if the whole machine is short of memory"
        );
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", NO_VICTIM) {
        log::warn!(
            "cannot set oom_score_adj: {error}. Give rfs-fuse CAP_SYS_RESOURCE, or the OOM killer may choose \
             this mount"
        );
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    Ok(())
}
