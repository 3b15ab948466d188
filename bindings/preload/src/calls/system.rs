//! System calls without a function of their own, and limits.
//!
//! # Concurrency
//! Any thread.

use std::ffi::{c_int, c_long, c_uint, c_void};

use libc::{pid_t, rlimit, size_t};

use super::{copy::copy_range, export};
use crate::{counts::Reason, guard, next, process};

export! {
    syscall:
    fn(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long => call;
}
#[allow(non_snake_case, reason = "the name is libc's")]
mod fork {
    use super::{super::export, copy_process, pid_t};

    export! { _Fork: fn() -> pid_t => copy_process; }
}
export! { setrlimit | setrlimit64: fn(resource: c_uint, limit: *const rlimit) -> c_int => set_limit; }
export! {
    prlimit | prlimit64:
    fn(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int => change_limit;
}
export! {
    io_uring_queue_init:
    fn(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int => make_ring;
}
export! {
    io_uring_queue_init_params:
    fn(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int => make_ring_with;
}
export! {
    io_uring_queue_init_mem:
    fn(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: size_t)
    -> c_int => make_ring_in;
}

/// System calls that use the offset of a descriptor, or its number, in their first argument.
const OF_FIRST: [c_long; 10] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_close,
];

/// Makes a plain system call. Carries `copy_file_range`, and prepares the calls that
/// [`before_call`] knows.
///
/// # Safety
/// As for `syscall` of libc.
unsafe fn call(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    if process::state().is_some() && !guard::is_inside() {
        if number == libc::SYS_copy_file_range {
            // SAFETY: as the caller promises.
            return unsafe { copy_range(a as c_int, b as _, c as c_int, d as _, e, f as c_uint) } as c_long;
        }
        before_call(number, [a, b, c, d, e]);
    }
    // SAFETY: as the caller promises.
    unsafe { next::syscall(number, a, b, c, d, e, f) }
}

fn before_call(number: c_long, args: [usize; 5]) {
    match number {
        libc::SYS_io_uring_setup => process::keep_offsets_out(),
        libc::SYS_clone | libc::SYS_clone3 => process::turn_off(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => process::turn_off(),
        libc::SYS_execve | libc::SYS_execveat => process::give_offsets_back(),
        libc::SYS_close_range => process::turn_off(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => leave(&args[..2]),
        libc::SYS_sendfile | libc::SYS_dup3 => leave(&args[..2]),
        libc::SYS_splice => leave(&[args[0], args[2]]),
        libc::SYS_mmap => leave(&args[4..]),
        number if OF_FIRST.contains(&number) => leave(&args[..1]),
        _ => {}
    }
}

/// Leaves descriptors to the kernel that the program uses by plain system calls.
fn leave(fds: &[usize]) {
    for fd in fds {
        if let Some(description) = process::get(*fd as c_int) {
            process::hand_back(*fd as c_int, &description, Reason::Direct);
        }
    }
}

/// Stops carrying calls, then copies the process. `_Fork` runs no handlers, so the library does not
/// notice the child.
///
/// # Safety
/// As for `_Fork` of libc.
unsafe fn copy_process() -> pid_t {
    process::turn_off();
    // SAFETY: as the caller promises.
    unsafe { next::_Fork() }
}

/// Sets a limit by the kernel, then reads the limit of file sizes again.
///
/// # Safety
/// As for `setrlimit` of libc.
unsafe fn set_limit(resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: as the caller promises.
    let outcome = unsafe { next::setrlimit64(resource, limit) };
    process::read_limit();
    outcome
}

/// Sets or returns a limit by the kernel, then reads the limit of file sizes again.
///
/// # Safety
/// As for `prlimit` of libc.
unsafe fn change_limit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: as the caller promises.
    let outcome = unsafe { next::prlimit64(pid, resource, new, old) };
    process::read_limit();
    outcome
}

/// Makes a ring, after all offsets are left to the kernel: requests of a ring do not pass through
/// the library.
///
/// # Safety
/// As for the function of liburing.
unsafe fn make_ring(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
    process::keep_offsets_out();
    // SAFETY: as the caller promises.
    unsafe { next::io_uring_queue_init(entries, ring, flags) }
}

/// Makes a ring with parameters, after all offsets are left to the kernel.
///
/// # Safety
/// As for the function of liburing.
unsafe fn make_ring_with(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
    process::keep_offsets_out();
    // SAFETY: as the caller promises.
    unsafe { next::io_uring_queue_init_params(entries, ring, params) }
}

/// Makes a ring in the `len` bytes of `memory`, after all offsets are left to the kernel.
///
/// # Safety
/// As for the function of liburing.
unsafe fn make_ring_in(
    entries: c_uint,
    ring: *mut c_void,
    params: *mut c_void,
    memory: *mut c_void,
    len: size_t,
) -> c_int {
    process::keep_offsets_out();
    // SAFETY: as the caller promises.
    unsafe { next::io_uring_queue_init_mem(entries, ring, params, memory, len) }
}
