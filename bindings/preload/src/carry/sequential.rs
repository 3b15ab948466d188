//! Calls that use and move the offset of the description.
//!
//! # Concurrency
//! Any thread. The lock of the position is held over the call, as the kernel's lock is.

use std::{ffi::c_int, sync::Arc};

use rfs_native::File;

use super::{
    buffers::Failed,
    file::{failed, leave},
};
use crate::{
    counts::{COUNTS, Call},
    descriptor::description::{Description, Opened, catch},
    descriptor::position::{Held, Place},
    guard::{self, Inside},
    next, process,
};

/// Reads or writes at the description's offset. `work` returns the number of bytes, and the offset
/// behind them. A write reserves its length first, so that a write of a signal handler comes
/// behind it.
pub(crate) fn carry(
    fd: c_int,
    call: Call,
    mut kernel: impl FnMut() -> isize,
    work: impl FnOnce(&File, &Description, u64) -> Result<(usize, u64), Failed>,
    reserve: usize,
) -> isize {
    let Some(found) = process::find(fd) else { return kernel() };
    let Some(description) = &*found else { return kernel() };
    let Some(inside) = guard::enter() else { return interrupted(fd, description, kernel) };
    let held = description.position.hold();
    let opened = match take_over(fd, description, &held, &inside) {
        Taken::Library(opened) => opened,
        Taken::Kernel => return leave(call, kernel),
        Taken::Refused(reason) => {
            drop(held);
            process::hand_back(fd, description, reason);
            return leave(call, kernel);
        }
    };
    let Some(at) = held.reserve(reserve as u64) else { return leave(call, kernel) };
    let from = at.saturating_add(reserve as u64).min(i64::MAX as u64);
    match catch(|| work(&opened.file, description, at)).unwrap_or(Err(Failed::AskKernel)) {
        Ok((len, behind)) => {
            if let Some(distance) = held.advance(from, behind) {
                // SAFETY: the descriptor is open, or the call fails.
                unsafe { next::lseek64(fd, distance, libc::SEEK_CUR) };
            }
            COUNTS.carried(call, len);
            len as isize
        }
        Err(Failed::Errno(errno)) => {
            held.advance(from, at);
            next::fail(errno)
        }
        Err(Failed::AskKernel) => {
            held.advance(from, at);
            let out = leave(call, || by_kernel(fd, &held, &mut kernel));
            drop(held);
            failed(fd, description, opened);
            out
        }
    }
}

/// Whether the library does a call at the offset.
enum Taken<'d> {
    Library(&'d Opened),
    Kernel,
    Refused(crate::counts::Reason),
}

/// Takes the offset over from the kernel, if the call is to be carried.
fn take_over<'d>(
    fd: c_int,
    description: &'d Arc<Description>,
    held: &Held<'_>,
    _inside: &Inside,
) -> Taken<'d> {
    match held.place() {
        Place::Kernel => Taken::Kernel,
        // The offset was taken over after the file was opened.
        Place::Library(_) => description.opened().map_or(Taken::Kernel, Taken::Library),
        Place::Fresh => {
            let opened = match description.opened() {
                Some(opened) => opened,
                None if !description.is_due(process::after()) || !process::is_owner() => {
                    return Taken::Kernel;
                }
                None => match description.open(fd) {
                    Ok(Some(opened)) => opened,
                    Ok(None) => return Taken::Kernel,
                    Err(reason) => return Taken::Refused(reason),
                },
            };
            let Some(_fork_lock) = process::try_fork_lock() else { return Taken::Kernel };
            // SAFETY: the descriptor is open, or the call fails.
            let at = unsafe { next::lseek64(fd, 0, libc::SEEK_CUR) };
            let Ok(at) = u64::try_from(at) else { return Taken::Kernel };
            held.set(at);
            // A signal handler may have moved the kernel's offset before it saw the library's.
            // SAFETY: the descriptor is open, or the call fails.
            let again = unsafe { next::lseek64(fd, 0, libc::SEEK_CUR) };
            if let (Ok(again), Place::Library(now)) = (u64::try_from(again), held.place())
                && again != now
            {
                held.set(again);
            }
            Taken::Library(opened)
        }
    }
}

/// Does one call by the kernel at the library's offset, and takes the offset back.
fn by_kernel<R>(fd: c_int, held: &Held<'_>, kernel: &mut impl FnMut() -> R) -> R {
    let Place::Library(at) = held.place() else { return kernel() };
    // SAFETY: the descriptor is open, or the call fails.
    unsafe { next::lseek64(fd, at as i64, libc::SEEK_SET) };
    let out = kernel();
    let errno = next::errno();
    // SAFETY: the descriptor is open, or the call fails.
    let behind = unsafe { next::lseek64(fd, 0, libc::SEEK_CUR) };
    if let Ok(behind) = u64::try_from(behind) {
        held.set(behind);
    }
    next::fail::<()>(errno);
    out
}

/// Does a call of a signal handler that has interrupted this thread in the library.
#[cold]
fn interrupted(fd: c_int, description: &Description, mut kernel: impl FnMut() -> isize) -> isize {
    let held = description.position.hold();
    by_kernel(fd, &held, &mut kernel)
}

/// Does a call by the kernel that uses the kernel's offset of a descriptor.
pub(crate) fn synchronized<R>(fd: c_int, mut kernel: impl FnMut() -> R) -> R {
    let Some(found) = process::find(fd) else { return kernel() };
    let Some(description) = &*found else { return kernel() };
    let _inside = guard::enter();
    let held = description.position.hold();
    by_kernel(fd, &held, &mut kernel)
}

/// Moves the offset.
pub(crate) fn seek(fd: c_int, offset: i64, whence: c_int, mut kernel: impl FnMut() -> i64) -> i64 {
    let Some(found) = process::find(fd) else { return kernel() };
    let Some(description) = &*found else { return kernel() };
    let inside = guard::enter();
    let held = description.position.hold();
    let (Place::Library(at), Some(opened)) = (held.place(), description.opened()) else {
        return leave(Call::Lseek, kernel);
    };
    let base = match whence {
        libc::SEEK_SET => Some(0),
        libc::SEEK_CUR => Some(at),
        // A signal handler must not use the session.
        libc::SEEK_END if inside.is_some() => {
            catch(|| opened.file.stat()).and_then(Result::ok).map(|stat| stat.size)
        }
        _ => None,
    };
    let to = base.and_then(|base| i64::try_from(base).ok()?.checked_add(offset)).filter(|to| *to >= 0);
    let Some(to) = to else { return leave(Call::Lseek, || by_kernel(fd, &held, &mut kernel)) };
    held.set(to as u64);
    COUNTS.carried(Call::Lseek, 0);
    to
}
