//! Calls that do not use the offset of the description.
//!
//! # Concurrency
//! Any thread. No locks: the guard of the table keeps the description.

use std::ffi::c_int;

use rfs_native::File;

use super::{
    buffers::{Failed, Outcome},
    file::{failed, leave, opened},
};
use crate::{
    counts::{COUNTS, Call},
    descriptor::access::Access,
    descriptor::description::{Opened, catch},
    guard, next, process,
};

/// Reads or writes at an offset.
#[inline]
pub(crate) fn carry(
    fd: c_int,
    call: Call,
    kernel: impl FnOnce() -> isize,
    work: impl FnOnce(&File, Access) -> Outcome,
) -> isize {
    let Some(found) = process::find(fd) else { return kernel() };
    let (Some(description), Some(inside)) = (&*found, guard::enter()) else { return kernel() };
    let Some(opened) = opened(fd, description, &inside) else {
        drop(inside);
        return leave(call, kernel);
    };
    match catch(|| work(&opened.file, description.access)).unwrap_or(Err(Failed::AskKernel)) {
        Ok(len) => {
            COUNTS.carried(call, len);
            len as isize
        }
        Err(Failed::Errno(errno)) => next::fail(errno),
        Err(Failed::AskKernel) => {
            failed(fd, description, opened);
            drop(inside);
            leave(call, kernel)
        }
    }
}

/// Does another call on the open file. `work` returns `None` if the kernel has to do it.
pub(crate) fn carry_other<R>(
    fd: c_int,
    call: Call,
    kernel: impl FnOnce() -> R,
    work: impl FnOnce(&Opened) -> Option<R>,
) -> R {
    let Some(found) = process::find(fd) else { return kernel() };
    let (Some(description), Some(inside)) = (&*found, guard::enter()) else { return kernel() };
    let Some(opened) = description.opened() else {
        drop(inside);
        return leave(call, kernel);
    };
    match catch(|| work(opened)).flatten() {
        Some(out) => {
            COUNTS.carried(call, 0);
            out
        }
        None => {
            failed(fd, description, opened);
            drop(inside);
            leave(call, kernel)
        }
    }
}
