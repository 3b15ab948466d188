//! Steps of an ordered list that own their buffers.
//!
//! A list is lent step by step. Its buffers stay in place while the list moves, because they belong
//! to [`RecvBuf`] types or to the elements of a vector.
//!
//! # Concurrency
//! Plain values.

use super::{Lent, Loan, RecvBuf};
use crate::verbs::{AtomicOp, DirectOp, RemoteAddr, SendOp};

/// One step of a started ordered list
/// ([`Session::start_execute`](crate::Session::start_execute)), with its buffer.
///
/// A list that has only atomics names the type of its buffers: `Vec<OwnedOp>` stands for
/// `Vec<OwnedOp<Vec<u8>>>`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnedOp<B = Vec<u8>> {
    /// Writes the bytes of `data` to `remote`.
    Write {
        /// Destination.
        remote: RemoteAddr,
        /// Bytes to write.
        data: B,
    },
    /// Fills `out` with the bytes from `remote`.
    Read {
        /// Source.
        remote: RemoteAddr,
        /// Destination buffer.
        out: B,
    },
    /// Stores `swap` in the aligned 8-byte word at `remote` if it holds `compare`.
    CompareSwap {
        /// Address of the word.
        remote: RemoteAddr,
        /// Value that the word must have.
        compare: u64,
        /// New value.
        swap: u64,
        /// Receives the old value. The swap took place if it equals `compare`.
        old: u64,
    },
    /// Adds to the aligned 8-byte word at `remote`, wrapping.
    FetchAdd {
        /// Address of the word.
        remote: RemoteAddr,
        /// Addend.
        add: u64,
        /// Receives the old value.
        old: u64,
    },
    /// Applies `op` to the aligned 8-byte word at `remote`. The list fails as a whole if the
    /// session does not [support](crate::Session::supports) the operation.
    FetchOp {
        /// Address of the word.
        remote: RemoteAddr,
        /// Operation and operand.
        op: AtomicOp,
        /// Receives the old value.
        old: u64,
    },
}

impl<B: RecvBuf> OwnedOp<B> {
    /// Returns the remote range of the step.
    pub(crate) fn range(&self) -> (RemoteAddr, usize) {
        match self {
            OwnedOp::Write { remote, data: buf } | OwnedOp::Read { remote, out: buf } => {
                (*remote, buf.bytes().len())
            }
            OwnedOp::CompareSwap { remote, .. }
            | OwnedOp::FetchAdd { remote, .. }
            | OwnedOp::FetchOp { remote, .. } => (*remote, size_of::<u64>()),
        }
    }

    /// Returns the word of an atomic.
    pub(crate) fn word(&self) -> Option<RemoteAddr> {
        match self {
            OwnedOp::CompareSwap { remote, .. }
            | OwnedOp::FetchAdd { remote, .. }
            | OwnedOp::FetchOp { remote, .. } => Some(*remote),
            _ => None,
        }
    }

    /// Returns the operation of an atomic that not every provider has.
    pub(crate) fn atomic_op(&self) -> Option<AtomicOp> {
        match self {
            OwnedOp::FetchOp { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// Returns the step for execution on mapped memory.
    pub(crate) fn direct(&mut self) -> DirectOp<'_> {
        match self {
            OwnedOp::Write { remote, data } => DirectOp::Write { remote: *remote, data: data.bytes() },
            OwnedOp::Read { remote, out } => DirectOp::Read { remote: *remote, out: out.bytes_mut() },
            OwnedOp::CompareSwap { remote, compare, swap, old } => {
                DirectOp::CompareSwap { remote: *remote, compare: *compare, swap: *swap, old }
            }
            OwnedOp::FetchAdd { remote, add, old } => DirectOp::FetchAdd { remote: *remote, add: *add, old },
            OwnedOp::FetchOp { remote, op, old } => DirectOp::FetchOp { remote: *remote, op: *op, old },
        }
    }
}

impl<B: RecvBuf> Lent<Vec<OwnedOp<B>>> {
    /// Lends the steps from `first` on. No other loan may be outstanding.
    pub(crate) fn lend_steps(&mut self, first: usize) -> impl Iterator<Item = (SendOp, Loan)> {
        let (steps, issuer) = self.parts();
        steps.into_iter().flat_map(move |steps| &mut steps[first..]).map(move |step| match step {
            OwnedOp::Write { remote, data } => {
                (SendOp::Write { remote: *remote, imm: None }, issuer.lend(data.bytes()))
            }
            OwnedOp::Read { remote, out } => {
                (SendOp::Read { remote: *remote }, issuer.lend_mut(out.bytes_mut()))
            }
            OwnedOp::CompareSwap { remote, compare, swap, old } => {
                let op = SendOp::CompareSwap { remote: *remote, compare: *compare, swap: *swap };
                (op, issuer.lend_word(old))
            }
            OwnedOp::FetchAdd { remote, add, old } => {
                (SendOp::FetchAdd { remote: *remote, add: *add }, issuer.lend_word(old))
            }
            OwnedOp::FetchOp { remote, op, old } => {
                (SendOp::FetchOp { remote: *remote, op: *op }, issuer.lend_word(old))
            }
        })
    }
}
