//! One-sided transfers of pieces on several stores, with one wait for all.
//!
//! Pieces of one session leave as ordered lists of limited length, and the lists of all sessions
//! are under way at once ([`rdmabox::across`]). One piece alone is one request without an
//! allocation.
//!
//! # Concurrency
//! The calling thread moves the bytes. No locks.

use std::sync::Arc;

use rdmabox::{Op, RequestError, Session, across};

use super::sessions::Link;
use crate::ids::StoreId;

/// Most steps of a list, below the depth of every queue pair.
const MAX_STEPS: usize = 16;
/// Longest step. Longer pieces are cut, so that lists of several stores share the window fairly.
const MAX_STEP_BYTES: usize = 1 << 20;

/// A part of a transfer, inside one chunk.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The chunk.
    pub link: &'a Link,
    /// Offset in the chunk.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
}

/// A transfer failed. Pieces of other stores may have been moved. READs and WRITEs can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{store}: {error}")]
pub struct TransferError {
    /// The store.
    pub store: StoreId,
    /// The reason.
    pub error: RequestError,
}

/// Reads pieces into consecutive parts of `out`.
///
/// # Errors
/// [`TransferError`] of the first store that failed. A retry is safe.
///
/// # Panics
/// If the pieces together are longer than `out`.
pub fn read(pieces: &[Piece<'_>], out: &mut [u8]) -> Result<(), TransferError> {
    if let [piece] = pieces {
        let remote = piece.link.memory.for_read(piece.offset, piece.len);
        let outcome = remote.map_err(RequestError::from);
        let outcome = outcome.and_then(|remote| piece.link.session.read(remote, &mut out[..piece.len]));
        return outcome.map_err(|error| TransferError { store: piece.link.store, error });
    }
    let mut rest = out;
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (out, later) = rest.split_at_mut(piece.len);
        rest = later;
        parts.push((*piece, out));
    }
    read_parts(parts)
}

/// Reads each piece into a buffer of its own.
///
/// # Errors
/// [`TransferError`] of the first store that failed. A retry is safe.
///
/// # Panics
/// If a buffer is shorter than its piece.
pub fn read_parts<'a>(parts: Vec<(Piece<'a>, &'a mut [u8])>) -> Result<(), TransferError> {
    let mut lists = Lists::default();
    for (piece, out) in parts {
        let mut rest = out;
        for (offset, len) in steps(&piece) {
            let (out, later) = rest.split_at_mut(len);
            rest = later;
            let remote = address(&piece, offset, len, false)?;
            lists.push(piece.link, Op::Read { remote, out });
        }
    }
    lists.run()
}

/// Writes consecutive parts of `data` to pieces.
///
/// # Errors
/// [`TransferError`] of the first store that failed. A retry is safe.
///
/// # Panics
/// If the pieces together are longer than `data`.
pub fn write(pieces: &[Piece<'_>], data: &[u8]) -> Result<(), TransferError> {
    if let [piece] = pieces {
        let remote = piece.link.memory.for_write(piece.offset, piece.len);
        let outcome = remote.map_err(RequestError::from);
        let outcome = outcome.and_then(|remote| piece.link.session.write(remote, &data[..piece.len]));
        return outcome.map_err(|error| TransferError { store: piece.link.store, error });
    }
    let mut lists = Lists::default();
    let mut rest = data;
    for piece in pieces {
        for (offset, len) in steps(piece) {
            let (data, later) = rest.split_at(len);
            rest = later;
            let remote = address(piece, offset, len, true)?;
            lists.push(piece.link, Op::Write { remote, data });
        }
    }
    lists.run()
}

/// Returns the offsets and lengths of the steps of a piece. A step has at most [`MAX_STEP_BYTES`].
fn steps(piece: &Piece<'_>) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (start, len) = (piece.offset, piece.len);
    (0..len).step_by(MAX_STEP_BYTES).map(move |at| (start + at as u64, MAX_STEP_BYTES.min(len - at)))
}

fn address(
    piece: &Piece<'_>,
    offset: u64,
    len: usize,
    to_write: bool,
) -> Result<rdmabox::RemoteAddr, TransferError> {
    let memory = &piece.link.memory;
    let remote = if to_write { memory.for_write(offset, len) } else { memory.for_read(offset, len) };
    remote.map_err(|error| TransferError { store: piece.link.store, error: error.into() })
}

/// The steps of each session.
#[derive(Default)]
struct Lists<'a> {
    lists: Vec<(StoreId, &'a Arc<Session>, Vec<Op<'a>>)>,
}

impl<'a> Lists<'a> {
    fn push(&mut self, link: &'a Link, step: Op<'a>) {
        let same = |list: &&mut (StoreId, &Arc<Session>, _)| Arc::ptr_eq(list.1, &link.session);
        match self.lists.iter_mut().find(same) {
            Some((.., steps)) => steps.push(step),
            None => self.lists.push((link.store, &link.session, vec![step])),
        }
    }

    /// Runs the lists of all sessions, in rounds of up to [`MAX_STEPS`] steps for each.
    fn run(mut self) -> Result<(), TransferError> {
        let longest = self.lists.iter().map(|(.., steps)| steps.len()).max().unwrap_or(0);
        for round in 0..longest.div_ceil(MAX_STEPS) {
            let (mut stores, mut parts) = (Vec::new(), Vec::new());
            for (store, session, steps) in &mut self.lists {
                let end = steps.len().min((round + 1) * MAX_STEPS);
                if let Some(part) = steps.get_mut(round * MAX_STEPS..end).filter(|part| !part.is_empty()) {
                    stores.push(*store);
                    parts.push((&***session, part));
                }
            }
            for (store, outcome) in stores.into_iter().zip(across(&mut parts)) {
                outcome.map_err(|error| TransferError { store, error })?;
            }
        }
        Ok(())
    }
}
