//! Requests of a queue pair: checked, held, posted, and in flight.
//!
//! # Concurrency
//! Plain values.

use smallvec::SmallVec;

use crate::{
    provider::soft::memory::Piece,
    verbs::{PostErrorReason, SendFlags, SendOp, Sge, WcOpcode, WcStatus},
};

/// Local memory of a request.
pub(crate) type Pieces = SmallVec<[Piece; 4]>;

/// A request that is incomplete or waits for an earlier request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub wr_id: u64,
    pub msn: u32,
    pub opcode: WcOpcode,
    pub signaled: bool,
    pub byte_len: u32,
    /// Destination of the response.
    pub landing: Pieces,
    /// Status of a request that was executed locally and waits for earlier requests.
    pub done: Option<WcStatus>,
}

/// Payload that is copied at the post, or memory that is used until the completion.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Pieces(Pieces),
    Inline(&'a [u8]),
}

/// A request whose local elements have been checked.
#[derive(Debug)]
pub(super) struct Checked<'a> {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) len: u64,
    pub(super) payload: Payload<'a>,
    /// Status with which the request fails when its turn comes.
    pub(super) fault: Option<WcStatus>,
}

/// A request that waits for earlier requests.
#[derive(Debug)]
pub(crate) struct Held {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    len: u64,
    pieces: Pieces,
    inline: Option<Box<[u8]>>,
    fault: Option<WcStatus>,
}

impl Held {
    pub(crate) fn wr_id(&self) -> u64 {
        self.wr_id
    }

    pub(crate) fn opcode(&self) -> WcOpcode {
        opcode_of(&self.op)
    }

    pub(super) fn as_checked(&self) -> Checked<'_> {
        let payload = match &self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Pieces(self.pieces.clone()),
        };
        Checked {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            len: self.len,
            payload,
            fault: self.fault,
        }
    }
}

impl Checked<'_> {
    pub(super) fn hold(self) -> Held {
        let (pieces, inline) = match self.payload {
            Payload::Pieces(pieces) => (pieces, None),
            Payload::Inline(bytes) => (Pieces::new(), Some(Box::from(bytes))),
        };
        Held {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            len: self.len,
            pieces,
            inline,
            fault: self.fault,
        }
    }

    pub(super) fn failed(&self, status: WcStatus) -> Entry {
        self.entry(0, Pieces::new(), Some(status))
    }

    pub(super) fn entry(&self, msn: u32, landing: Pieces, done: Option<WcStatus>) -> Entry {
        Entry {
            wr_id: self.wr_id,
            msn,
            opcode: opcode_of(&self.op),
            signaled: self.flags.contains(SendFlags::SIGNALED),
            byte_len: self.len as u32,
            landing,
            done,
        }
    }
}

/// Result of a post.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Number of requests on the queue.
    pub count: usize,
    /// Reason why the next request was refused.
    pub refused: Option<PostErrorReason>,
    /// True if there are frames to send.
    pub framed: bool,
    /// True if a request has failed, so that the queue pair must go to Err.
    pub failed: bool,
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct PostedRecv {
    pub wr_id: u64,
    pub sges: SmallVec<[Sge; 2]>,
}

/// Returns the opcode of a request's completion.
pub(super) fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send { .. } => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::FetchOp { .. } => WcOpcode::FetchOp,
    }
}
