//! Keeps signal handlers of the program off the pager's threads.
//!
//! A handler may touch paged memory. On the fault thread that access would wait for itself.
//!
//! # Concurrency
//! The mask belongs to the calling thread; threads inherit it when they start.

use std::mem::MaybeUninit;

/// Signals that a fault of the thread itself raises. A blocked one would end the process; and
/// SIGBUS tells rdmabox that memory which it shares with a server has gone.
const OWN: [libc::c_int; 4] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL];

/// Blocks all signals but [`OWN`] of the calling thread while it runs `work`. Threads that `work`
/// starts keep them blocked.
pub(crate) fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initializes the set that it is given.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        OWN.iter().for_each(|signal| {
            libc::sigdelset(all.as_mut_ptr(), *signal);
        });
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) == 0
    };
    let result = work();
    if blocked {
        // SAFETY: The first call succeeded, and initialized `old`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if the calling thread blocks a signal.
    fn is_blocked(signal: libc::c_int) -> bool {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: The first call changes nothing, and initializes `set`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr());
            libc::sigismember(set.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn signals_of_other_threads_are_blocked() {
        with_signals_blocked(|| {
            assert!(is_blocked(libc::SIGUSR1) && is_blocked(libc::SIGALRM));
            assert!(!OWN.iter().any(|signal| is_blocked(*signal)));
        });
        assert!(!is_blocked(libc::SIGUSR1));
    }
}
