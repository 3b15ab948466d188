//! Checks of a request's arguments, which all front doors of a session share.
//!
//! # Concurrency
//! Pure functions.

use crate::{
    error::RequestError,
    runtime::{Runtime, in_callback},
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

/// Maximum number of steps of an ordered list. A device with a short send queue takes fewer.
const MAX_STEPS: usize = 64;

/// Checks an ordered list by the remote ranges of its steps.
pub(super) fn list_fits(
    ranges: impl ExactSizeIterator<Item = (RemoteAddr, usize)>,
    runtime: &Runtime,
) -> Result<(), RequestError> {
    let (steps, limit) = (ranges.len(), MAX_STEPS.min(runtime.places()));
    if steps > limit {
        return Err(RequestError::ListTooLong { steps, limit });
    }
    let max = runtime.max_message();
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
