//! Tells threads of the program from threads of the pager, whose memory must not be paged.
//!
//! The fault thread would wait for itself. Threads of the pager have names that begin with
//! `rdmabox` or `rfs-paging`. A thread of the program is inside the pager while it makes or asks
//! it.
//!
//! # Concurrency
//! Per thread. The library is loaded at the start of the program, so its thread-local variables
//! need no allocation.

use std::cell::Cell;

thread_local! {
    static KIND: Cell<Kind> = const { Cell::new(Kind::Unknown) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Program,
    /// A thread of the program in a call of the pager.
    Inside,
    Pager,
}

/// Ends the call of the pager when it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        KIND.set(Kind::Program);
    }
}

/// Begins a call of the pager. `None` if memory of this thread must not be paged.
pub(crate) fn enter() -> Option<Inside> {
    if KIND.get() == Kind::Unknown {
        KIND.set(if has_name_of_pager() { Kind::Pager } else { Kind::Program });
    }
    (KIND.get() == Kind::Program).then(|| {
        KIND.set(Kind::Inside);
        Inside(())
    })
}

fn has_name_of_pager() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    let outcome = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    outcome == 0 && (name.starts_with(b"rdmabox") || name.starts_with(b"rfs-paging"))
}
