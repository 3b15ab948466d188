//! Calls that copy, close and change descriptors.
//!
//! # Concurrency
//! Any thread.

use std::ffi::{c_int, c_uint};

use super::export;
use crate::{
    carry::sequential::synchronized, counts::Reason, guard, next, next::DESCRIPTORS, process,
    session::session_fds,
};

export! { close | __close: fn(fd: c_int) -> c_int => close_one; }
export! { close_range: fn(first: c_uint, last: c_uint, flags: c_int) -> c_int => close_several; }
export! { closefrom: fn(first: c_int) -> () => close_from; }
export! { dup: fn(fd: c_int) -> c_int => copy; }
export! { dup2 | __dup2: fn(fd: c_int, new: c_int) -> c_int => copy_to; }
export! { dup3: fn(fd: c_int, new: c_int, flags: c_int) -> c_int => copy_to_with; }
export! { fcntl | fcntl64 | __fcntl: fn(fd: c_int, command: c_int, arg: usize) -> c_int => change; }

/// Forgets a descriptor. Closes the file at the server with its last descriptor.
fn forget(fd: c_int) {
    if process::find(fd).is_none() || !process::is_owner() {
        return;
    }
    let _inside = guard::enter();
    drop(process::state().and_then(|state| state.table.remove(fd)));
}

/// Gives a copy of a descriptor the same description.
fn copied(fd: c_int, new: c_int) -> c_int {
    if new < 0 || new == fd || !process::is_owner() {
        return new;
    }
    let Some(state) = process::state() else { return new };
    let _inside = guard::enter();
    match state.table.get(fd) {
        Some(description) => drop(state.table.set(new, description)),
        None => drop(state.table.remove(new)),
    }
    new
}

/// Forgets a descriptor and closes it. Ends the sessions of this process first if the program
/// closes a descriptor of one.
///
/// # Safety
/// As for `close` of libc.
unsafe fn close_one(fd: c_int) -> c_int {
    forget(fd);
    if session_fds::contains(fd) && process::is_owner() {
        if guard::is_inside() {
            // A session closes its descriptor. The program may get the number next.
            process::forget_session_descriptor(fd);
        } else {
            process::end_sessions();
            if !next::is_open(fd) {
                // It was the session's, and not the program's.
                return next::fail(libc::EBADF);
            }
        }
    }
    // SAFETY: as the caller promises.
    unsafe { next::close(fd) }
}

/// Forgets a range of descriptors and closes them. With CLOSE_RANGE_CLOEXEC they stay open, so the
/// library keeps them.
///
/// # Safety
/// As for `close_range` of libc.
unsafe fn close_several(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && process::is_owner() {
        forget_range(first, last);
    }
    // SAFETY: as the caller promises.
    unsafe { next::close_range(first, last, flags) }
}

fn forget_range(first: c_uint, last: c_uint) {
    let Some(state) = process::state() else { return };
    if session_fds::any_in(first, last) {
        process::end_sessions();
    }
    let end = (last as usize).saturating_add(1).min(DESCRIPTORS);
    for (fd, _) in state.table.entries(first as usize..end) {
        forget(fd);
    }
}

/// Forgets all descriptors from `first` on, and closes them.
///
/// # Safety
/// As for `closefrom` of libc.
unsafe fn close_from(first: c_int) {
    if process::is_owner() {
        forget_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX);
    }
    // SAFETY: as the caller promises.
    unsafe { next::closefrom(first) }
}

/// Copies a descriptor. The copy shares the description. Hands the description back to the kernel
/// if the copy is 0, 1 or 2, which streams of libc use.
///
/// # Safety
/// As for `dup` of libc.
unsafe fn copy(fd: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let new = unsafe { next::dup(fd) };
    if (0..=2).contains(&new) {
        super::streams::leave_to_kernel(fd);
    }
    copied(fd, new)
}

/// Copies a descriptor to the number `new`. The copy shares the description.
///
/// # Safety
/// As for `dup2` of libc.
unsafe fn copy_to(fd: c_int, new: c_int) -> c_int {
    before_copy(fd, new);
    // SAFETY: as the caller promises.
    copied(fd, unsafe { next::dup2(fd, new) })
}

/// Copies a descriptor to the number `new` with the `flags` of `dup3`. The copy shares the
/// description.
///
/// # Safety
/// As for `dup3` of libc.
unsafe fn copy_to_with(fd: c_int, new: c_int, flags: c_int) -> c_int {
    before_copy(fd, new);
    // SAFETY: as the caller promises.
    copied(fd, unsafe { next::dup3(fd, new, flags) })
}

/// Prepares a copy to a given number. A stream of libc may use the number.
fn before_copy(fd: c_int, new: c_int) {
    if session_fds::contains(new) && !guard::is_inside() && process::is_owner() {
        process::end_sessions();
    }
    if fd == new || process::find(fd).is_none() || process::find(new).is_some() {
        return;
    }
    if new <= 2 || next::is_open(new) {
        super::streams::leave_to_kernel(fd);
    }
}

/// Does `fcntl` by the kernel. Copies share the description. A change of O_APPEND hands the
/// description back. Locks find the kernel's offset up to date, because a range may begin there.
///
/// # Safety
/// As for `fcntl` of libc.
unsafe fn change(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::fcntl64(fd, command, arg) };
    if process::find(fd).is_none() {
        return kernel();
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = kernel();
            if (0..=2).contains(&new) {
                super::streams::leave_to_kernel(fd);
            }
            copied(fd, new)
        }
        libc::F_SETFL => {
            if let Some(description) = process::get(fd)
                && (arg as c_int & libc::O_APPEND != 0) != description.access.appends
            {
                process::hand_back(fd, &description, Reason::Flags);
            }
            kernel()
        }
        // A range may begin at the offset.
        libc::F_GETLK | libc::F_SETLK | libc::F_OFD_GETLK | libc::F_OFD_SETLK => synchronized(fd, kernel),
        libc::F_SETLKW | libc::F_OFD_SETLKW => {
            // The lock may be waited for, and the wait must not keep other threads from the offset.
            synchronized(fd, || ());
            kernel()
        }
        _ => kernel(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn a_number_that_a_session_has_closed_is_not_protected_any_more() {
        process::begin();
        let fd = std::fs::File::open("/dev/null").expect("a file").into_raw_fd();
        session_fds::add(&[fd]);
        let inside = guard::enter();
        // SAFETY: the descriptor is this test's.
        assert_eq!(unsafe { close_one(fd) }, 0);
        drop(inside);
        assert!(!session_fds::contains(fd));
    }
}
