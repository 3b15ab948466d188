//! Opens the files of descriptions when they are due, and leaves others to the kernel.
//!
//! # Concurrency
//! Any thread.

use std::{ffi::c_int, sync::Arc};

use crate::{
    counts::{COUNTS, Call},
    descriptor::description::{Description, Opened},
    guard::Inside,
    process,
};

/// Returns the file of a description if its calls are carried. Opens it if it is due.
#[inline]
pub(crate) fn opened<'d>(
    fd: c_int,
    description: &'d Arc<Description>,
    _inside: &Inside,
) -> Option<&'d Opened> {
    description.opened().or_else(|| open(fd, description))
}

#[cold]
fn open(fd: c_int, description: &Arc<Description>) -> Option<&Opened> {
    if !description.is_due(process::after()) || !process::is_owner() {
        return None;
    }
    match description.open(fd) {
        Ok(opened) => opened,
        Err(reason) => {
            process::hand_back(fd, description, reason);
            None
        }
    }
}

/// Handles a failed call: if the session has ended, the kernel has the description from now on.
#[cold]
pub(crate) fn failed(fd: c_int, description: &Arc<Description>, opened: &Opened) {
    if !opened.session.mount.is_connected() {
        process::hand_back(fd, description, crate::counts::Reason::Lost);
    }
}

/// Counts a call that the kernel does, and does it.
#[inline]
pub(crate) fn leave<R>(call: Call, kernel: impl FnOnce() -> R) -> R {
    COUNTS.left(call);
    kernel()
}
