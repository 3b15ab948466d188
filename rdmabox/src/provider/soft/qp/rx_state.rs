//! The state of the receiving direction: the frame that arrives.
//!
//! # Concurrency
//! [`Rx`] has no lock of its own; the queue pair locks it.

mod landing;

pub(super) use self::landing::MAX_VECTORS;
pub(crate) use self::landing::{Landing, TakenRecv, Then};

use std::{io, os::fd::OwnedFd, sync::Arc};

use crate::{
    mapping::IoVec,
    provider::soft::{memory::Region, stream::RecvBuffer, wire::HEADER_LEN},
    verbs::WcStatus,
};

#[derive(Debug)]
// One per queue pair; a box would be an allocation per message.
#[allow(clippy::large_enum_variant)]
pub(super) enum State {
    /// Between frames, and before the connection.
    Header,
    Payload(Landing),
    /// A header is complete but cannot be handled yet.
    Waiting,
    /// This side has refused a request. Further input is discarded until the peer disconnects.
    Draining,
    Closed,
}

/// Action for a header.
#[derive(Debug)]
// Lives for one call; a box would be an allocation per message.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Action {
    /// The frame is complete.
    Next,
    /// Payload follows.
    Land(Landing),
    /// No receive is posted, or too many answers wait; retry later.
    NotReady,
    /// Refuse the peer's request with `status`, which is sent to the peer.
    Refuse { msn: u32, status: WcStatus },
    /// An own request failed.
    Fail,
    /// The peer violated the protocol.
    ProtocolError(&'static str),
}

#[derive(Debug)]
pub(crate) struct Rx {
    pub(super) header: [u8; HEADER_LEN],
    pub(super) have: usize,
    pub(super) buffer: RecvBuffer,
    pub(super) state: State,
    /// Request to acknowledge when the input is drained.
    pub(super) ack_due: Option<u32>,
    /// Sequence number of the peer's next request.
    pub expected_msn: u32,
    /// Descriptors that arrived with frames.
    pub descriptors: Vec<OwnedFd>,
}

impl Rx {
    pub(crate) fn new() -> Rx {
        Rx {
            header: [0; HEADER_LEN],
            have: 0,
            buffer: RecvBuffer::new(),
            state: State::Header,
            ack_due: None,
            expected_msn: 0,
            descriptors: Vec::new(),
        }
    }

    /// Stops all input. Returns the receive that an incomplete message had taken, if any.
    pub(crate) fn close(&mut self, draining: bool) -> Option<TakenRecv> {
        self.descriptors.clear();
        self.buffer.clear();
        let next = if draining { State::Draining } else { State::Closed };
        match std::mem::replace(&mut self.state, next) {
            State::Payload(Landing { then: Then::Executed { recv, .. }, .. }) => recv,
            _ => None,
        }
    }

    /// Returns true if payload is arriving in this region.
    pub(crate) fn uses(&self, region: &Arc<Region>) -> bool {
        let State::Payload(landing) = &self.state else { return false };
        landing.pieces.iter().any(|piece| piece.is_of(region))
    }

    /// Requests an acknowledgement of `msn` before the thread leaves this queue pair.
    pub(crate) fn ack(&mut self, msn: u32) {
        self.ack_due = Some(msn);
    }

    /// Returns true if buffered bytes exist that epoll does not report.
    pub(crate) fn holds_input(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Returns true while a complete header cannot be handled.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// Takes available header bytes from the buffer. Returns true if they complete the header.
    pub(super) fn header_from_buffer(&mut self) -> bool {
        let (bytes, missing) = (self.buffer.bytes(), HEADER_LEN - self.have);
        let count = bytes.len().min(missing);
        self.header[self.have..self.have + count].copy_from_slice(&bytes[..count]);
        self.have += count;
        self.buffer.take(count);
        count > 0 && count == missing
    }

    /// Records `count` bytes that were read behind a complete header, if the read had space for
    /// them.
    pub(super) fn buffer_filled(&mut self, count: usize, room: &[IoVec]) {
        if let [room] = room {
            self.buffer.filled(count, count < room.len());
        }
    }

    pub(super) fn next_frame(&mut self) -> Step {
        self.have = 0;
        self.state = State::Header;
        Step::Moved
    }
}

/// Result of a step.
pub(super) enum Step {
    Moved,
    /// Bytes moved, and the socket is now empty.
    Drained,
    Empty,
    /// The stream has ended.
    Ended,
}

impl Step {
    pub(super) fn from_error(error: &io::Error) -> Step {
        match error.kind() {
            io::ErrorKind::WouldBlock => Step::Empty,
            io::ErrorKind::Interrupted => Step::Moved,
            _ => Step::Ended,
        }
    }
}
