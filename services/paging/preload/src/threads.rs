//! Tells threads of the program from threads of the pager, whose memory must not be paged.
//!
//! The fault thread would wait for itself. A thread that is made in a call of the pager, or by a
//! thread of the pager, is a thread of the pager. A thread of the program is inside the pager while
//! it makes or asks it.
//!
//! # Concurrency
//! Per thread. The library is loaded at the start of the program, so its thread-local variables
//! need no allocation.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
};

thread_local! {
    static KIND: Cell<Kind> = const { Cell::new(Kind::Program) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
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
    is_program().then(|| {
        KIND.set(Kind::Inside);
        Inside(())
    })
}

/// Returns true if this is a thread of the program, outside of the pager.
pub(crate) fn is_program() -> bool {
    KIND.get() == Kind::Program
}

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

/// The beginning of a thread of the pager.
struct Start {
    routine: Routine,
    argument: *mut c_void,
}

/// Runs a thread of the pager.
extern "C" fn run(start: *mut c_void) -> *mut c_void {
    KIND.set(Kind::Pager);
    // SAFETY: `pthread_create` below made the box for this thread only.
    let Start { routine, argument } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    routine(argument)
}

/// Starts a thread.
///
/// # Safety
/// As for `pthread_create` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        Routine,
        *mut c_void,
    ) -> c_int;
    // SAFETY: The name ends with a zero. The next library that has it is libc.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
    if found.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: The symbol is the function of libc, with that signature.
    let create: Create = unsafe { std::mem::transmute(found) };
    if is_program() {
        // SAFETY: as the caller promises.
        return unsafe { create(thread, attributes, routine, argument) };
    }
    let start = Box::into_raw(Box::new(Start { routine, argument }));
    // SAFETY: as the caller promises, and the new thread owns `start`.
    let outcome = unsafe { create(thread, attributes, run, start.cast()) };
    if outcome != 0 {
        // SAFETY: There is no thread that owns `start`.
        drop(unsafe { Box::from_raw(start) });
    }
    outcome
}
