//! One-sided operations on the server's memory: steps of a list, and started reads and writes.

use rdmabox::{
    OwnedOp, RemoteAddr, RequestError, Session,
    trace::{self, TracedRequest},
};
use rfs_proto::record;
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

/// Callback that runs when a started [`Extend`] has ended, and gets the data back. It learns the
/// size before the list, and the record behind the list.
pub type ExtendDone = Box<dyn FnOnce(Result<(u64, [u8; record::LEN]), RequestError>, Vec<u8>) + Send>;

/// A list that places bytes, raises the size of their file, and reads the record of the file. All
/// places are at the server, and of one epoch.
#[derive(Debug)]
pub struct Extend {
    /// Destination of the data. `None` if the data are in place.
    pub target: Option<Place>,
    /// The bytes.
    pub data: Vec<u8>,
    /// The word with the size.
    pub size_word: Place,
    /// Size from which alone the list raises it.
    pub from: u64,
    /// New size.
    pub to: u64,
    /// The record.
    pub record: Place,
}

impl Extend {
    /// Returns the list as steps for a session, whose steps own their buffers.
    fn into_steps(self, address: &dyn Fn(Place) -> RemoteAddr) -> (Vec<OwnedOp>, Vec<u8>) {
        let Extend { target, data, size_word, from, to, record } = self;
        let (mut steps, mut kept) = (Vec::with_capacity(3), Vec::new());
        match target {
            Some(target) => steps.push(OwnedOp::Write { remote: address(target), data }),
            None => kept = data,
        }
        let remote = address(size_word);
        steps.push(OwnedOp::CompareSwap { remote, compare: from, swap: to, old: 0 });
        steps.push(OwnedOp::Read { remote: address(record), out: vec![0; record::LEN] });
        (steps, kept)
    }
}

/// Returns the results of the steps of an [`Extend`]: the old size and the record, and the data.
fn take_results(steps: Vec<OwnedOp>, mut data: Vec<u8>) -> ((u64, [u8; record::LEN]), Vec<u8>) {
    let (mut size, mut raw) = (0, [0; record::LEN]);
    for step in steps {
        match step {
            OwnedOp::Write { data: written, .. } => data = written,
            OwnedOp::CompareSwap { old, .. } => size = old,
            OwnedOp::Read { out, .. } => raw.copy_from_slice(&out),
            _ => {}
        }
    }
    ((size, raw), data)
}

/// A read, a write or a list to start.
pub enum Transfer {
    /// Reads so many bytes from a place. The thread that polls the completion runs the callback
    /// with the bytes, so the callback must be short and must not block.
    Read(Place, usize, ReadDone),
    /// Writes bytes to a place, and runs the callback when the write has ended, as for a read. A
    /// failed write may still take effect until the same write has been repeated.
    Write(Place, Vec<u8>, WriteDone),
    /// Executes a list in order. If a step fails, the later ones have no effect.
    Extend(Extend, ExtendDone),
    /// A transfer of a request that a trace reports.
    Traced(TracedRequest, Box<Transfer>),
}

impl Transfer {
    /// Returns the place that the transfer reads or writes. For a list it is the word of the size.
    pub fn place(&self) -> Place {
        match self {
            Transfer::Read(place, ..) | Transfer::Write(place, ..) => *place,
            Transfer::Extend(list, _) => list.size_word,
            Transfer::Traced(_, transfer) => transfer.place(),
        }
    }

    /// Returns the number of bytes.
    pub(crate) fn byte_len(&self) -> usize {
        match self {
            Transfer::Read(_, len, _) => *len,
            Transfer::Write(_, data, _) => data.len(),
            Transfer::Extend(list, _) => list.data.len(),
            Transfer::Traced(_, transfer) => transfer.byte_len(),
        }
    }

    /// Returns true for a write.
    pub(crate) fn is_write(&self) -> bool {
        match self {
            Transfer::Read(..) => false,
            Transfer::Write(..) | Transfer::Extend(..) => true,
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
            Transfer::Extend(list, done) => done(Err(error), list.data),
            Transfer::Traced(_, transfer) => transfer.fail(error),
        }
    }
}

/// Starts a transfer in a session, which has its places at the addresses that `address` returns.
pub(crate) fn start_at(session: &Session, address: &dyn Fn(Place) -> RemoteAddr, transfer: Transfer) {
    match transfer {
        // The session's own buffers come first; the heap serves when they are used up.
        Transfer::Read(place, len, done) => match session.buffer(len) {
            Some(out) => session.read_then(address(place), out, |outcome| match outcome {
                Ok(out) => done(Ok(&out)),
                Err(failed) => done(Err(failed.error)),
            }),
            None => session.read_then(address(place), vec![0; len], |outcome| match outcome {
                Ok(out) => done(Ok(&out)),
                Err(failed) => done(Err(failed.error)),
            }),
        },
        Transfer::Write(place, data, done) => {
            session.write_then(address(place), data, |outcome| match outcome {
                Ok(data) => done(Ok(()), data),
                // The buffer always comes back to a callback.
                Err(failed) => done(Err(failed.error), failed.buffer.unwrap_or_default()),
            });
        }
        Transfer::Extend(list, done) => {
            let (steps, kept) = list.into_steps(address);
            session.execute_then(steps, |outcome| match outcome {
                Ok(steps) => {
                    let (results, data) = take_results(steps, kept);
                    done(Ok(results), data);
                }
                Err(failed) => {
                    let (_, data) = take_results(failed.buffer.unwrap_or_default(), kept);
                    done(Err(failed.error), data);
                }
            });
        }
        Transfer::Traced(request, transfer) => {
            let _scope = request.enter();
            start_at(session, address, *transfer);
        }
    }
}
