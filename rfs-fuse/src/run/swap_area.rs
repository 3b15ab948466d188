//! Prepares the process for a swap area on its mount.
//!
//! The kernel frees memory by writing pages to the swap area, and waits for this process. The
//! process must not wait for the kernel to free memory in turn.
//!
//! # Concurrency
//! Called while the process has one thread. Later threads inherit the settings.

use std::{fs, hint, io};

use rustix::mm::{MlockAllFlags, mlockall};

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// The least likely victim of the OOM killer.
const NO_VICTIM: &str = "-1000";

/// Bytes that the allocator has beside those in use. Requests that wait hold up to 32 KiB each, so
/// there is room for as many as the kernel has under way.
const RESERVE: usize = 32 << 20;

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
    reserve()
}

/// Gives the allocator memory that it keeps: later allocations of requests need none of the kernel.
///
/// All threads share one heap, which returns nothing to the kernel, and no allocation is a mapping
/// of its own. A second heap would take its pages one by one, at faults on the write path.
#[cfg(target_env = "gnu")]
fn reserve() -> io::Result<()> {
    let settings = [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)];
    for (setting, value) in settings {
        // SAFETY: The call sets a parameter of the allocator.
        if unsafe { libc::mallopt(setting, value) } != 1 {
            log::warn!("the allocator refuses parameter {setting}: writes may wait for memory");
        }
    }
    // The heap grows by locked pages, which are there at once, and keeps them.
    allocate_once()
}

/// Allocates the reserve once. Allocators other than glibc's have no such settings.
#[cfg(not(target_env = "gnu"))]
fn reserve() -> io::Result<()> {
    allocate_once()
}

/// Allocates the reserve, and gives it back to the allocator. Fails beyond RLIMIT_MEMLOCK.
fn allocate_once() -> io::Result<()> {
    let mut reserve = Vec::<u8>::new();
    reserve.try_reserve_exact(RESERVE).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    drop(hint::black_box(reserve));
    Ok(())
}
