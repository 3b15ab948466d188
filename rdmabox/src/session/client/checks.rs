//! Checks of a request's arguments, which all front doors of a session share.
//!
//! # Concurrency
//! Pure functions.

use crate::{error::RequestError, runtime::in_callback, verbs::RemoteAddr};

pub(super) fn wraps(remote: RemoteAddr, len: usize) -> Result<(), RequestError> {
    match remote.addr.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => Err(wrapped(remote, len)),
    }
}

#[cold]
fn wrapped(remote: RemoteAddr, len: usize) -> RequestError {
    RequestError::Invalid(format!("range {:#x}+{len} wraps around", remote.addr))
}

/// Checks that the address of a word is a multiple of 8.
pub(super) fn aligned(remote: RemoteAddr) -> Result<(), RequestError> {
    match remote.addr.is_multiple_of(8) {
        true => Ok(()),
        false => Err(unaligned(remote)),
    }
}

#[cold]
fn unaligned(remote: RemoteAddr) -> RequestError {
    RequestError::Invalid(format!("a word at {:#x}, which is not a multiple of 8", remote.addr))
}

/// Error text for a blocking request in a callback.
pub(crate) const NO_WAIT_IN_A_CALLBACK: &str = "a callback must not wait: start a request instead";

pub(super) fn refuse_in_callback() -> Result<(), RequestError> {
    match in_callback() {
        false => Ok(()),
        true => Err(RequestError::Invalid(NO_WAIT_IN_A_CALLBACK.into())),
    }
}

pub(super) fn at(remote: RemoteAddr, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: remote.addr + offset as u64, rkey: remote.rkey }
}
