//! Keeps signal handlers of the program off the pager's threads.
//!
//! A handler may touch paged memory. On the fault thread that access would wait for itself.
//!
//! # Concurrency
//! The mask belongs to the calling thread; threads inherit it when they start.

use std::mem::MaybeUninit;

/// Blocks all signals of the calling thread while it runs `work`. Threads that `work` starts keep
/// them blocked.
pub(crate) fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initializes the set that it is given.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) == 0
    };
    let result = work();
    if blocked {
        // SAFETY: The first call succeeded, and initialized `old`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    result
}
