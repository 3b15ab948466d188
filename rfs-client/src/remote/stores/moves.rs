//! Moves of bytes, as steps of a session and as transfers.
//!
//! # Concurrency
//! Any thread. No locks.

use pool::Link;
use rdmabox::{Op as Step, RemoteAddr, RequestError};
use rfs_proto::DataPlace;

use crate::remote::{
    address::Place,
    operation::{Transfer, start_at},
};

/// A step on a place: bytes to write, or a buffer to fill.
#[derive(Debug)]
pub(crate) enum Move<'a> {
    Write(Place, &'a [u8]),
    Read(Place, &'a mut [u8]),
}

impl Move<'_> {
    #[inline]
    pub(super) fn place(&self) -> Place {
        match self {
            Move::Write(place, _) | Move::Read(place, _) => *place,
        }
    }
}

#[inline]
pub(super) fn own_step<'a>(step: &'a mut Move<'_>, remote: RemoteAddr) -> Step<'a> {
    match step {
        Move::Write(_, data) => Step::Write { remote, data },
        Move::Read(_, out) => Step::Read { remote, out },
    }
}

/// Returns the step at a store, or why the store has no such bytes.
#[inline]
pub(super) fn store_step<'a>(step: &'a mut Move<'_>, link: &Link) -> Result<Step<'a>, String> {
    let offset = DataPlace::from_number(step.place().offset).offset();
    let memory = link.memory();
    match step {
        Move::Write(_, data) => {
            let remote = memory.for_write(offset, data.len()).map_err(|error| error.to_string())?;
            Ok(Step::Write { remote, data })
        }
        Move::Read(_, out) => {
            let remote = memory.for_read(offset, out.len()).map_err(|error| error.to_string())?;
            Ok(Step::Read { remote, out })
        }
    }
}

/// Starts a transfer at a store. It fails if the store has no such bytes.
#[inline]
pub(super) fn start_stored(link: &Link, transfer: Transfer) {
    let place = transfer.place();
    let (memory, offset) = (link.memory(), DataPlace::from_number(place.offset).offset());
    let remote = match transfer.is_write() {
        false => memory.for_read(offset, transfer.byte_len()),
        true => memory.for_write(offset, transfer.byte_len()),
    };
    match remote {
        Ok(remote) => start_at(link.session(), &|_| remote, transfer),
        Err(error) => transfer.fail(invalid(place.store(), &error.to_string())),
    }
}

/// Returns the error of a request that a store, or the way to it, makes impossible.
pub(super) fn invalid(store: u16, reason: &str) -> RequestError {
    RequestError::Invalid(format!("store {store}: {reason}"))
}
