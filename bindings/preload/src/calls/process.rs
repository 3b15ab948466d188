//! Calls that start programs and processes, or hand descriptors to them.
//!
//! Offsets are in the kernel before another process may use them. `fork` is in the module `start`:
//! libc tells the library of each.
//!
//! # Concurrency
//! Any thread.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    mem::size_of,
};

use libc::{cmsghdr, mmsghdr, msghdr, pid_t, ssize_t};

use super::export;
use crate::{next, process};

type Args = *const *const c_char;

/// The most messages of one `sendmmsg` (the kernel's UIO_MAXIOV).
const MAX_MESSAGES: c_uint = 1024;

/// Exports functions that run a statement, and then are libc's.
macro_rules! after {
    ($before:stmt => $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        /// Runs the statement, then calls the function of libc with this name.
        ///
        /// # Safety
        /// As for the function of libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $out {
            $before
            // SAFETY: as the caller promises.
            unsafe { next::$name($($arg),*) }
        }
    )*};
}

after! { process::give_offsets_back() =>
    execve(path: *const c_char, args: Args, environment: Args) -> c_int;
    execv(path: *const c_char, args: Args) -> c_int;
    execvp(path: *const c_char, args: Args) -> c_int;
    execvpe(path: *const c_char, args: Args, environment: Args) -> c_int;
    fexecve(fd: c_int, args: Args, environment: Args) -> c_int;
    execveat(dir: c_int, path: *const c_char, args: Args, environment: Args, flags: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
}

after! { let _fork_lock = process::begin_process() =>
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Args,
        environment: Args
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Args,
        environment: Args
    ) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
}

export! { sendmsg: fn(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t => send; }
export! {
    sendmmsg: fn(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int => send_several;
}

/// Gives back the offsets of the descriptors that a message carries, and sends it.
///
/// # Safety
/// As for `sendmsg` of libc.
unsafe fn send(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { give_back_sent(message) };
    // SAFETY: as the caller promises.
    unsafe { next::sendmsg(socket, message, flags) }
}

/// Gives back the offsets of the descriptors that messages carry, and sends them.
///
/// # Safety
/// As for `sendmmsg` of libc.
unsafe fn send_several(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // The kernel reads no more of them, and answers EFAULT for NULL.
    let read = if messages.is_null() { 0 } else { count.min(MAX_MESSAGES) };
    if process::state().is_some() {
        for at in 0..read as usize {
            // SAFETY: as the caller promises.
            unsafe { give_back_sent(&raw const (*messages.add(at)).msg_hdr) };
        }
    }
    // SAFETY: as the caller promises.
    unsafe { next::sendmmsg(socket, messages, count, flags) }
}

/// Gives the offsets of descriptors back that a message hands to another process.
///
/// # Safety
/// The message is valid, or null.
unsafe fn give_back_sent(message: *const msghdr) {
    // SAFETY: as the caller promises.
    let has_control = !message.is_null() && unsafe { !(*message).msg_control.is_null() };
    if !has_control || process::state().is_none() {
        return;
    }
    // SAFETY: as the caller promises.
    let mut header: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the macros of libc stay inside the message.
        unsafe {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let len = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for at in 0..len / size_of::<c_int>() {
                    give_back(data.add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn give_back(fd: c_int) {
    if let Some(description) = process::get(fd) {
        process::give_offset_back(fd, &description);
    }
}
