//! Checks of a request's arguments, which all front doors of a session share.
//!
//! # Concurrency
//! Pure functions.

use crate::{
    error::RequestError,
    runtime::in_callback,
    verbs::{AtomicOp, AtomicOps, RemoteAddr},
};

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

/// Checks the remote ranges of an ordered list. `max` is the maximum length of a step.
pub(super) fn list_fits(
    ranges: impl ExactSizeIterator<Item = (RemoteAddr, usize)>,
    max: u64,
) -> Result<(), RequestError> {
    const MAX_STEPS: usize = 64;
    let steps = ranges.len();
    if steps > MAX_STEPS {
        return Err(RequestError::Invalid(format!("{steps} steps in a list, the limit is {MAX_STEPS}")));
    }
    for (remote, len) in ranges {
        wraps(remote, len)?;
        if len as u64 > max {
            return Err(RequestError::Invalid(format!("a step of {len} bytes, the limit is {max}")));
        }
    }
    Ok(())
}

/// Checks that a provider with the atomics `has` can execute `ops`.
pub(super) fn supported(mut ops: impl Iterator<Item = AtomicOp>, has: AtomicOps) -> Result<(), RequestError> {
    match ops.find(|op| !has.contains(op.kind())) {
        None => Ok(()),
        Some(op) => Err(RequestError::Unsupported(op)),
    }
}

/// Checks that the address of a word, of a load or an atomic, is a multiple of 8.
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
