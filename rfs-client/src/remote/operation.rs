//! One-sided operations on the server's memory: steps of a list, and started reads and writes.

use rdmabox::{
    RemoteAddr, RequestError, Session,
    trace::{self, TracedRequest},
};
use smallvec::SmallVec;

use crate::remote::address::Place;

/// Steps that every session accepts in one list. Longer writes and reads place their bytes before
/// the list.
pub(crate) const LIST: usize = 32;

/// One list for the session.
pub(crate) type Ops<'a> = SmallVec<[Op<'a>; 8]>;

/// A step of a list, which a session executes in order.
#[derive(Debug)]
pub enum Op<'a> {
    /// Writes bytes.
    Write {
        /// Destination.
        place: Place,
        /// The bytes.
        data: &'a [u8],
    },
    /// Reads bytes.
    Read {
        /// Source.
        place: Place,
        /// Buffer, which is filled.
        out: &'a mut [u8],
    },
    /// Replaces a word of eight bytes if it has an expected value.
    CompareSwap {
        /// The word, aligned to eight bytes.
        place: Place,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
        /// Receives the value before the step.
        old: &'a mut u64,
    },
}

impl Op<'_> {
    /// Returns the place that the step reads or writes.
    pub fn place(&self) -> Place {
        match self {
            Op::Write { place, .. } | Op::Read { place, .. } | Op::CompareSwap { place, .. } => *place,
        }
    }
}

/// One-sided steps, for which the caller blocks.
#[derive(Debug)]
pub enum Access<'a, 'd> {
    /// Writes independent parts.
    Write(&'a [(Place, &'d [u8])]),
    /// Reads independent parts.
    Read(&'a mut [(Place, &'d mut [u8])]),
    /// Executes a list in order.
    List(&'a mut [Op<'d>]),
}

impl Access<'_, '_> {
    /// Returns true if all places meet a condition.
    pub(crate) fn all(&self, condition: impl FnMut(Place) -> bool) -> bool {
        match self {
            Access::Write(parts) => parts.iter().map(|(place, _)| *place).all(condition),
            Access::Read(parts) => parts.iter().map(|(place, _)| *place).all(condition),
            Access::List(ops) => ops.iter().map(Op::place).all(condition),
        }
    }
}

/// Callback that gets the bytes of a started read.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8], RequestError>) + Send>;

/// Callback that runs when a started write has ended, and gets the buffer back. After an error
/// the bytes may or may not be in place.
pub type WriteDone = Box<dyn FnOnce(Result<(), RequestError>, Vec<u8>) + Send>;

/// A read or a write to start.
pub enum Transfer {
    /// Reads so many bytes from a place. The thread that polls the completion runs the callback
    /// with the bytes, so the callback must be short and must not block.
    Read(Place, usize, ReadDone),
    /// Writes bytes to a place, and runs the callback when the write has ended, as for a read. A
    /// failed write may still take effect until the same write has been repeated.
    Write(Place, Vec<u8>, WriteDone),
    /// A transfer of a request that a trace reports.
    Traced(TracedRequest, Box<Transfer>),
}

impl Transfer {
    /// Returns the place that the transfer reads or writes.
    pub fn place(&self) -> Place {
        match self {
            Transfer::Read(place, ..) | Transfer::Write(place, ..) => *place,
            Transfer::Traced(_, transfer) => transfer.place(),
        }
    }

    /// Returns the number of bytes.
    pub(crate) fn byte_len(&self) -> usize {
        match self {
            Transfer::Read(_, len, _) => *len,
            Transfer::Write(_, data, _) => data.len(),
            Transfer::Traced(_, transfer) => transfer.byte_len(),
        }
    }

    /// Returns true for a write.
    pub(crate) fn is_write(&self) -> bool {
        match self {
            Transfer::Read(..) => false,
            Transfer::Write(..) => true,
            Transfer::Traced(_, transfer) => transfer.is_write(),
        }
    }

    /// Keeps the request of this thread with the transfer, for a trace.
    pub(crate) fn traced(self) -> Transfer {
        match trace::current() {
            Some(request) => Transfer::Traced(request, Box::new(self)),
            None => self,
        }
    }

    /// Ends the transfer with an error, without a start.
    pub fn fail(self, error: RequestError) {
        match self {
            Transfer::Read(_, _, done) => done(Err(error)),
            Transfer::Write(_, data, done) => done(Err(error), data),
            Transfer::Traced(_, transfer) => transfer.fail(error),
        }
    }
}

/// Starts a transfer at an address of a session.
pub(crate) fn start_at(session: &Session, remote: RemoteAddr, transfer: Transfer) {
    match transfer {
        // The session's own buffers come first; the heap serves when they are used up.
        Transfer::Read(_, len, done) => match session.buffer(len) {
            Some(out) => session.read_then(remote, out, |outcome| match outcome {
                Ok(out) => done(Ok(&out)),
                Err(failed) => done(Err(failed.error)),
            }),
            None => session.read_then(remote, vec![0; len], |outcome| match outcome {
                Ok(out) => done(Ok(&out)),
                Err(failed) => done(Err(failed.error)),
            }),
        },
        Transfer::Write(_, data, done) => {
            session.write_then(remote, data, |outcome| match outcome {
                Ok(data) => done(Ok(()), data),
                // The buffer always comes back to a callback.
                Err(failed) => done(Err(failed.error), failed.buffer.unwrap_or_default()),
            });
        }
        Transfer::Traced(request, transfer) => {
            let _scope = request.enter();
            start_at(session, remote, *transfer);
        }
    }
}
