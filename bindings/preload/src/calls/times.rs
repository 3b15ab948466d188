//! Times that the program sets. The time of the last carried write comes to the server first, so
//! that it does not replace them later.
//!
//! # Concurrency
//! Any thread.

use std::ffi::{c_char, c_int, c_void};

use libc::{timespec, timeval};

use super::export;
use crate::{descriptor::description::catch, guard, next, process};

export! { futimens: fn(fd: c_int, times: *const timespec) -> c_int => set_times; }
export! { futimes: fn(fd: c_int, times: *const timeval) -> c_int => set_coarse_times; }
export! {
    utimensat:
    fn(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int => set_times_at;
}
export! {
    futimesat: fn(dir: c_int, path: *const c_char, times: *const timeval) -> c_int => set_coarse_times_at;
}
export! { utimes: fn(path: *const c_char, times: *const timeval) -> c_int => set_path_times; }
export! { lutimes: fn(path: *const c_char, times: *const timeval) -> c_int => set_link_times; }
export! { utime: fn(path: *const c_char, times: *const c_void) -> c_int => set_old_times; }

/// Publishes the times of carried writes.
pub(crate) fn publish() {
    let Some(state) = process::state().filter(|_| process::is_owner()) else { return };
    let Some(_inside) = guard::enter() else { return };
    for (_, description) in state.table.all() {
        if let Some(opened) = description.opened().filter(|_| description.access.writes) {
            // A lost session has no times.
            catch(|| opened.file.sync().ok());
        }
    }
}

macro_rules! after_publishing {
    ($($name:ident = $next:ident($($arg:ident: $type:ty),*);)*) => {$(
        /// Publishes the times of open files, then sets times by libc.
        ///
        /// # Safety
        /// As for the function of libc.
        unsafe fn $name($($arg: $type),*) -> c_int {
            publish();
            // SAFETY: as the caller promises.
            unsafe { next::$next($($arg),*) }
        }
    )*};
}

after_publishing! {
    set_times = futimens(fd: c_int, times: *const timespec);
    set_coarse_times = futimes(fd: c_int, times: *const timeval);
    set_times_at = utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int);
    set_coarse_times_at = futimesat(dir: c_int, path: *const c_char, times: *const timeval);
    set_path_times = utimes(path: *const c_char, times: *const timeval);
    set_link_times = lutimes(path: *const c_char, times: *const timeval);
    set_old_times = utime(path: *const c_char, times: *const c_void);
}
