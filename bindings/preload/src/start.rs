//! Runs when the program starts: reads the settings, and prepares for `fork` and the end.
//!
//! # Concurrency
//! The loader calls it on the first thread, before `main`. The handlers of `fork` run on the
//! forking thread.

use std::{
    cell::Cell,
    mem::ManuallyDrop,
    sync::atomic::{AtomicI32, Ordering},
};

use parking_lot::RwLockWriteGuard;

use crate::{calls, counts::COUNTS, next, process};

/// `report` prints at the end which calls were carried. `off` carries nothing.
const MODE: &str = "RFS_PRELOAD";
/// Number of calls that the kernel does for a file before the library opens it.
const AFTER: &str = "RFS_PRELOAD_AFTER";

/// Least number of the descriptor for the report.
const REPORT_FD: i32 = 1000;

/// A copy of standard error, because many programs close it at their end.
static REPORT: AtomicI32 = AtomicI32::new(-1);

thread_local! {
    /// The fork lock while this thread is in `fork`.
    static FORKING: Cell<Option<ManuallyDrop<RwLockWriteGuard<'static, ()>>>> = const { Cell::new(None) };
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    match std::env::var(MODE).as_deref() {
        Ok("off") => return process::turn_off(),
        Ok("report") => {
            COUNTS.turn_on();
            // SAFETY: the call fails if standard error is closed.
            let copy = unsafe { next::fcntl64(2, libc::F_DUPFD_CLOEXEC, REPORT_FD as usize) };
            REPORT.store(copy, Ordering::Relaxed);
        }
        _ => {}
    }
    if let Some(calls) = std::env::var(AFTER).ok().and_then(|calls| calls.parse().ok()) {
        process::set_after(calls);
    }
    process::begin();
    // SAFETY: the handlers live as long as the library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
    }
}

/// Publishes the times of writes, and prints the report.
extern "C" fn end() {
    calls::publish();
    if COUNTS.is_on()
        && let Some(report) = COUNTS.report(std::process::id())
    {
        // In one piece, because other processes print theirs. The program may have closed it.
        // SAFETY: the buffer has that many bytes.
        unsafe { next::write(REPORT.load(Ordering::Relaxed), report.as_ptr().cast(), report.len()) };
    }
}

extern "C" fn before_fork() {
    FORKING.set(process::begin_process().map(ManuallyDrop::new));
}

extern "C" fn after_fork_in_parent() {
    drop(FORKING.take().map(ManuallyDrop::into_inner));
}

/// Starts the child with a state of its own. The fork lock of the parent belongs to the parent's
/// state.
extern "C" fn after_fork_in_child() {
    FORKING.set(None);
    process::begin_child();
}
