//! Threads of sessions, which are inside the library for all their life.
//!
//! A thread that a call of the library starts, or a thread of the library, is such a thread.
//!
//! # Concurrency
//! Any thread.

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t};

use crate::{guard, next::Next};

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Routine, *mut c_void) -> c_int;

/// The beginning of a thread of the library.
struct Start {
    routine: Routine,
    argument: *mut c_void,
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    guard::stay();
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
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_create");
    let found = NEXT.get();
    if found.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the symbol is the function of libc.
    let create: Create = unsafe { std::mem::transmute(found) };
    if guard::enter().is_some() {
        // SAFETY: as the caller promises.
        return unsafe { create(thread, attributes, routine, argument) };
    }
    let start = Box::into_raw(Box::new(Start { routine, argument }));
    // SAFETY: as the caller promises, and the new thread owns `start`.
    let outcome = unsafe { create(thread, attributes, run, start.cast()) };
    if outcome != 0 {
        // SAFETY: there is no thread that owns `start`.
        drop(unsafe { Box::from_raw(start) });
    }
    outcome
}
