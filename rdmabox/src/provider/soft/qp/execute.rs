//! Executes requests on the peer's mapped memory.
//!
//! # Concurrency
//! Runs on the posting thread, which holds the peer's memory shared.

use super::request::{Checked, Payload};
use crate::{
    provider::soft::memory::{Atomic, Executing, PeerMemory, Piece, Refused, peer_memory as direct},
    verbs::{Access, DirectOp, RemoteAddr, SendOp, WcStatus},
};

pub(super) enum Failed {
    Status(WcStatus),
    NotMapped,
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Failed {
        match refused {
            Refused::Access => Failed::Status(WcStatus::RemAccessErr),
            Refused::NotMapped => Failed::NotMapped,
        }
    }
}

/// Runs a one-sided request on the peer's mapped memory.
pub(super) fn execute(peer: &PeerMemory, wr: &Checked<'_>) -> Result<(), Failed> {
    let pieces: &[Piece] = match &wr.payload {
        Payload::Pieces(pieces) => pieces,
        Payload::Inline(_) => &[],
    };
    let executing = peer.execute();
    let old = match wr.op {
        SendOp::Write { .. } | SendOp::Read { .. } if wr.len == 0 => return Ok(()),
        SendOp::Write { remote, .. } => {
            let (memory, offset) = executing.locate(remote, wr.len, Access::REMOTE_WRITE)?;
            match &wr.payload {
                Payload::Inline(bytes) => direct::write_bytes(memory, offset, bytes),
                Payload::Pieces(pieces) => direct::write(memory, offset, pieces),
            }
            return Ok(());
        }
        SendOp::Read { remote } => {
            let (memory, offset) = executing.locate(remote, wr.len, Access::REMOTE_READ)?;
            direct::read(memory, offset, pieces);
            return Ok(());
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            atomic(&executing, remote, Atomic::CompareSwap { compare, swap })?
        }
        SendOp::FetchAdd { remote, add } => atomic(&executing, remote, Atomic::FetchAdd { add })?,
        SendOp::FetchOp { remote, op } => atomic(&executing, remote, Atomic::FetchOp(op))?,
        // Sends are never executed directly.
        SendOp::Send { .. } => return Err(Failed::Status(WcStatus::LocQpOpErr)),
    };
    if let Some(piece) = pieces.first() {
        direct::store_word(piece, old);
    }
    Ok(())
}

/// Runs a one-sided request between the caller's memory and the peer's mapped memory.
#[inline(always)] // Called from one place.
pub(super) fn execute_op(executing: &Executing<'_>, op: &mut DirectOp<'_>) -> Result<(), Failed> {
    match op {
        DirectOp::Write { data: [], .. } | DirectOp::Read { out: [], .. } => {}
        DirectOp::Write { remote, data } => {
            let (memory, offset) = executing.locate(*remote, data.len() as u64, Access::REMOTE_WRITE)?;
            direct::write_bytes(memory, offset, data);
        }
        DirectOp::Read { remote, out } => {
            let (memory, offset) = executing.locate(*remote, out.len() as u64, Access::REMOTE_READ)?;
            direct::read_bytes(memory, offset, out);
        }
        DirectOp::CompareSwap { remote, compare, swap, old } => {
            **old = atomic(executing, *remote, Atomic::CompareSwap { compare: *compare, swap: *swap })?;
        }
        DirectOp::FetchAdd { remote, add, old } => {
            **old = atomic(executing, *remote, Atomic::FetchAdd { add: *add })?;
        }
        DirectOp::FetchOp { remote, op, old } => {
            **old = atomic(executing, *remote, Atomic::FetchOp(*op))?;
        }
    }
    Ok(())
}

/// Runs an atomic on the peer's mapped memory and returns the old value.
fn atomic(executing: &Executing<'_>, remote: RemoteAddr, op: Atomic) -> Result<u64, Failed> {
    if !remote.addr.is_multiple_of(8) {
        return Err(Failed::Status(WcStatus::RemInvReqErr));
    }
    let (memory, offset) = executing.locate(remote, 8, Access::REMOTE_ATOMIC)?;
    direct::atomic(memory, offset, op).map_err(Failed::Status)
}
