//! Blocking one-sided operations of a session: READ, WRITE, ordered lists and atomics.
//!
//! # Concurrency
//! Any thread may call these methods, except inside a completion callback. No locks.

mod session_lists;

pub use self::session_lists::across;
use super::{
    checks::{aligned, at, list_fits, refuse_in_callback, supported, wraps},
    session::Session,
};
use crate::{
    error::RequestError,
    memory::{self, Scope},
    runtime::GroupOp,
    verbs::{AtomicOp, DirectOp, RemoteAddr, SendOp},
};

/// One step of an ordered list ([`Session::execute`]).
#[derive(Debug)]
#[non_exhaustive]
pub enum Op<'a> {
    /// Writes `data` to `remote`.
    Write {
        /// Destination.
        remote: RemoteAddr,
        /// Bytes to write.
        data: &'a [u8],
    },
    /// Reads `out.len()` bytes from `remote`.
    Read {
        /// Source.
        remote: RemoteAddr,
        /// Destination buffer.
        out: &'a mut [u8],
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
        old: &'a mut u64,
    },
    /// Adds to the aligned 8-byte word at `remote`, wrapping.
    FetchAdd {
        /// Address of the word.
        remote: RemoteAddr,
        /// Addend.
        add: u64,
        /// Receives the old value.
        old: &'a mut u64,
    },
    /// Applies `op` to the aligned 8-byte word at `remote`. The list fails as a whole if the
    /// session does not [support](Session::supports) the operation.
    FetchOp {
        /// Address of the word.
        remote: RemoteAddr,
        /// Operation and operand.
        op: AtomicOp,
        /// Receives the old value.
        old: &'a mut u64,
    },
}

impl Op<'_> {
    /// Returns the remote range of the step.
    pub(super) fn range(&self) -> (RemoteAddr, usize) {
        match self {
            Op::Write { remote, data } => (*remote, data.len()),
            Op::Read { remote, out } => (*remote, out.len()),
            Op::CompareSwap { remote, .. } | Op::FetchAdd { remote, .. } | Op::FetchOp { remote, .. } => {
                (*remote, size_of::<u64>())
            }
        }
    }

    /// Returns the word of an atomic.
    fn word(&self) -> Option<RemoteAddr> {
        match self {
            Op::CompareSwap { remote, .. } | Op::FetchAdd { remote, .. } | Op::FetchOp { remote, .. } => {
                Some(*remote)
            }
            _ => None,
        }
    }

    /// Returns the operation of an atomic that not every provider has.
    fn atomic_op(&self) -> Option<AtomicOp> {
        match self {
            Op::FetchOp { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// Returns the step for execution on mapped memory.
    fn direct(&mut self) -> DirectOp<'_> {
        match self {
            Op::Write { remote, data } => DirectOp::Write { remote: *remote, data },
            Op::Read { remote, out } => DirectOp::Read { remote: *remote, out },
            Op::CompareSwap { remote, compare, swap, old } => {
                DirectOp::CompareSwap { remote: *remote, compare: *compare, swap: *swap, old }
            }
            Op::FetchAdd { remote, add, old } => DirectOp::FetchAdd { remote: *remote, add: *add, old },
            Op::FetchOp { remote, op, old } => DirectOp::FetchOp { remote: *remote, op: *op, old },
        }
    }

    /// Lends the local memory of the step. A failed atomic leaves an undefined old value.
    pub(super) fn lend<'b>(&'b mut self, scope: &Scope<'b>) -> GroupOp {
        let (op, loan) = match self {
            Op::Write { remote, data } => (SendOp::Write { remote: *remote, imm: None }, scope.lend(data)),
            Op::Read { remote, out } => (SendOp::Read { remote: *remote }, scope.lend_mut(out)),
            Op::CompareSwap { remote, compare, swap, old } => {
                let op = SendOp::CompareSwap { remote: *remote, compare: *compare, swap: *swap };
                (op, scope.lend_word(old))
            }
            Op::FetchAdd { remote, add, old } => {
                (SendOp::FetchAdd { remote: *remote, add: *add }, scope.lend_word(old))
            }
            Op::FetchOp { remote, op, old } => {
                (SendOp::FetchOp { remote: *remote, op: *op }, scope.lend_word(old))
            }
        };
        GroupOp { op, loan }
    }
}

impl Session {
    /// Writes `data` to `remote`. A reader may see a part of it meanwhile: also an aligned word is
    /// whole only as a step of [`execute`](Self::execute).
    ///
    /// ```
    /// # use rdmabox::{MemoryServer, Session};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
    /// let session = Session::builder().connect(&host.addresses()[0])?;
    /// let memory = MemoryServer::locate(&session)?;
    /// session.write(memory.for_write(100, 5)?, b"hello")?;
    /// let mut back = [0; 5];
    /// session.read(memory.for_read(100, 5)?, &mut back)?;
    /// assert_eq!(&back, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A write of no bytes succeeds at any address: the host checks nothing.
    ///
    /// # Errors
    /// The write may have taken effect in part. Repeating it is safe if no other party changed the
    /// range since: see [the pattern](RequestError#repeating-a-write-that-publishes) for a write
    /// that publishes. After [`RequestError::Disconnected`] the repetition needs another session.
    /// [`RequestError`] explains each error.
    pub fn write(&self, remote: RemoteAddr, data: &[u8]) -> Result<(), RequestError> {
        self.check([(remote, data.len())].into_iter())?;
        let direct = self.shared.runtime.execute_one_mapped(&mut DirectOp::Write { remote, data });
        direct.unwrap_or_else(|| self.write_vectored(&[(remote, data)]))
    }

    /// Reads `out.len()` bytes from `remote`.
    ///
    /// # Errors
    /// As for [`write`](Self::write). The content of `out` is then unspecified.
    pub fn read(&self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        self.check([(remote, out.len())].into_iter())?;
        let direct = self.shared.runtime.execute_one_mapped(&mut DirectOp::Read { remote, out: &mut *out });
        direct.unwrap_or_else(|| self.read_vectored(&mut [(remote, out)]))
    }

    /// Makes several writes in one submission, so that they can merge and chain. Overlapping writes
    /// take effect in the given order. Other writes are unordered: the runtime sorts them by
    /// address. Without parts it succeeds.
    ///
    /// # Errors
    /// As for [`write`](Self::write). Returns the first error.
    pub fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError> {
        self.check(parts.iter().map(|(remote, data)| (*remote, data.len())))?;
        let max = self.max_part();
        let count = parts.iter().map(|(_, data)| data.len().div_ceil(max)).sum();
        memory::scope(|scope| {
            let requests = parts.iter().flat_map(|(remote, data)| {
                data.chunks(max).enumerate().map(|(i, chunk)| (at(*remote, i * max), scope.lend(chunk)))
            });
            self.shared.runtime.run(true, count, requests, self.timeout)
        })
    }

    /// Makes several reads in one submission. Without parts it succeeds.
    ///
    /// # Errors
    /// As for [`read`](Self::read). Returns the first error.
    pub fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError> {
        self.check(parts.iter().map(|(remote, out)| (*remote, out.len())))?;
        let max = self.max_part();
        let count = parts.iter().map(|(_, out)| out.len().div_ceil(max)).sum();
        memory::scope(|scope| {
            let requests = parts.iter_mut().flat_map(|(remote, out)| {
                let remote = *remote;
                out.chunks_mut(max)
                    .enumerate()
                    .map(move |(i, chunk)| (at(remote, i * max), scope.lend_mut(chunk)))
            });
            self.shared.runtime.run(false, count, requests, self.timeout)
        })
    }

    /// Stores `swap` in the aligned 8-byte word at `remote` if it holds `compare`. Returns the old
    /// value.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the address is not a multiple of 8. Otherwise as for
    /// [`write`](Self::write). A retry is safe only if the caller can tell whether the swap took
    /// place.
    pub fn compare_swap(&self, remote: RemoteAddr, compare: u64, swap: u64) -> Result<u64, RequestError> {
        let mut old = 0;
        self.execute(&mut [Op::CompareSwap { remote, compare, swap, old: &mut old }])?;
        Ok(old)
    }

    /// Adds to the aligned 8-byte word at `remote`, wrapping. Returns the old value.
    ///
    /// # Errors
    /// As for [`compare_swap`](Self::compare_swap).
    pub fn fetch_add(&self, remote: RemoteAddr, add: u64) -> Result<u64, RequestError> {
        let mut old = 0;
        self.execute(&mut [Op::FetchAdd { remote, add, old: &mut old }])?;
        Ok(old)
    }

    /// Applies `op` to the aligned 8-byte word at `remote`. Returns the old value.
    ///
    /// ```
    /// # use rdmabox::{AtomicOp, MemoryServer, Session, SessionOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
    /// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
    /// # let base = MemoryServer::locate(&session)?.base();
    /// assert_eq!(session.fetch_op(base, AtomicOp::Or(0b101))?, 0);
    /// assert_eq!(session.fetch_op(base, AtomicOp::And(0b100))?, 0b101);
    /// assert_eq!(session.fetch_op(base, AtomicOp::Swap(7))?, 0b100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RequestError::Unsupported`], without any effect, if the session does not
    /// [support](Self::supports) the operation. Otherwise as for
    /// [`compare_swap`](Self::compare_swap). After an error with an [unknown
    /// outcome](RequestError::outcome_unknown), an [`And`](AtomicOp::And), [`Or`](AtomicOp::Or),
    /// [`Min`](AtomicOp::Min) or [`Max`](AtomicOp::Max) can be repeated. The word is then as after
    /// one request, if no other party changes it between the two. The old value of the first
    /// request is lost.
    pub fn fetch_op(&self, remote: RemoteAddr, op: AtomicOp) -> Result<u64, RequestError> {
        let mut old = 0;
        self.execute(&mut [Op::FetchOp { remote, op, old: &mut old }])?;
        Ok(old)
    }

    /// Reads the aligned 8-byte word at `remote` as a whole, in the host's byte order. It needs the
    /// right to read only, and costs as much as a READ: use it to poll a word that another party
    /// changes.
    ///
    /// The result is a value that the word had, if each party stores it as a whole. Atomics do so
    /// ([`compare_swap`](Self::compare_swap), [`fetch_add`](Self::fetch_add),
    /// [`fetch_op`](Self::fetch_op)). So do an aligned 8-byte [`Op::Write`] of
    /// [`execute`](Self::execute), and an aligned store of a processor of the host. A request that
    /// is issued after the return sees all that the writer made visible before it stored the word.
    ///
    /// | provider | why the word is whole |
    /// |-|-|
    /// | shared memory | the calling thread loads it with one atomic instruction |
    /// | TCP | the host loads it with one atomic instruction, before it answers |
    /// | RDMA | devices read memory in aligned cache lines, and a word never crosses one |
    ///
    /// Devices do this over RDMA. The specification promises nothing for READs.
    ///
    /// The request does not merge with others.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the address is not a multiple of 8. Otherwise as for
    /// [`read`](Self::read); a retry is safe.
    pub fn load_u64(&self, remote: RemoteAddr) -> Result<u64, RequestError> {
        aligned(remote)?;
        let mut word = [0; 8];
        self.execute(&mut [Op::Read { remote, out: &mut word }])?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Runs the list in order, on one queue pair and with one doorbell. Each step executes after
    /// the previous step has taken effect at the host. A READ returns the content from before any
    /// later step of the list changed it. A READ may however execute after a later step has changed
    /// other bytes. A list must therefore not release a lock behind a READ that the lock protects.
    ///
    /// No step depends on the value that another one returns. The steps behind a compare-and-swap
    /// run also if it finds another value than `compare`. An empty list succeeds.
    ///
    /// A READ or WRITE of an aligned 8-byte word is one whole access, as in
    /// [`load_u64`](Self::load_u64). So a list can publish data:
    ///
    /// ```
    /// # use rdmabox::{MemoryServer, Op, Session};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
    /// # let session = Session::builder().connect(&host.addresses()[0])?;
    /// # let memory = MemoryServer::locate(&session)?;
    /// let version = memory.for_load(0)?;
    /// session.execute(&mut [
    ///     Op::Write { remote: memory.for_write(64, 4)?, data: b"data" },
    ///     // A reader that finds 1 here finds the data.
    ///     Op::Write { remote: memory.for_write(0, 8)?, data: &1u64.to_ne_bytes() },
    /// ])?;
    /// assert_eq!(session.load_u64(version)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`write`](Self::write). [`RequestError::Unsupported`],
    /// [`RequestError::ListTooLong`] and [`RequestError::Invalid`] refuse the whole list, without
    /// any effect. The error names no step:
    ///
    /// | error | steps before the failed one | the failed step | later steps |
    /// |-|-|-|-|
    /// | `Completion` of `RemAccessErr`: a refusal | took effect, their outputs are filled | no effect | did not run |
    /// | another one | unknown | unknown | unknown |
    pub fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        refuse_in_callback()?;
        self.check_list(ops)?;
        let over = self.execute_mapped(ops.iter_mut().map(Op::direct))?;
        let ops = &mut ops[over..];
        if ops.is_empty() {
            return Ok(());
        }
        memory::scope(|scope| {
            let steps = ops.iter_mut().map(|op| op.lend(scope)).collect();
            self.shared.runtime.run_group(steps, self.timeout)
        })
    }

    /// Executes the leading steps of a list that need no posting. Returns their number.
    pub(super) fn execute_mapped<'a>(
        &self,
        steps: impl Iterator<Item = DirectOp<'a>>,
    ) -> Result<usize, RequestError> {
        let mut over = 0;
        for mut step in steps {
            match self.shared.runtime.execute_one_mapped(&mut step) {
                Some(Ok(())) => over += 1,
                Some(Err(e)) => return Err(e),
                None => break,
            }
        }
        Ok(over)
    }

    /// Validates an ordered list.
    fn check_list(&self, ops: &[Op<'_>]) -> Result<(), RequestError> {
        list_fits(ops.iter().map(Op::range), &self.shared.runtime)?;
        ops.iter().filter_map(Op::word).try_for_each(aligned)?;
        supported(ops.iter().filter_map(Op::atomic_op), self.shared.atomic_ops)
    }

    pub(super) fn max_part(&self) -> usize {
        usize::try_from(self.shared.runtime.max_message()).unwrap_or(usize::MAX)
    }

    /// Validates a blocking request.
    #[inline]
    fn check(&self, mut ranges: impl Iterator<Item = (RemoteAddr, usize)>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        ranges.try_for_each(|(remote, len)| wraps(remote, len))
    }
}
