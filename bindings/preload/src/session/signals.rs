//! Signals of the program, and threads of the library.
//!
//! # Concurrency
//! The calling thread.

use std::{mem::MaybeUninit, ptr};

/// Runs `work` with all signals blocked. Threads that start meanwhile never run a handler.
pub(crate) fn without<R>(work: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets have room. The calls fail only for invalid arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let out = work();
    // SAFETY: the first call has filled the earlier set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    out
}
