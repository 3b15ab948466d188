//! Started atomics and loads, whose outcome is the old value of a word.
//!
//! # Concurrency
//! Any thread may call these methods, also inside a completion callback. No locks.

use std::sync::Arc;

use smallvec::smallvec;
use zerocopy::IntoBytes;

use super::super::{
    checks::{aligned, supported, wraps},
    session::Session,
    transfer::Transfer,
};
use crate::{
    error::Failed,
    memory::Lent,
    runtime::{GroupOp, Started, in_callback},
    verbs::{AtomicOp, DirectOp, RemoteAddr, SendOp},
};

impl Session {
    /// Starts a [`compare_swap`](Self::compare_swap). The transfer returns the old value.
    ///
    /// Atomics that one thread starts on the same word take effect in the order of their starts. So
    /// do an atomic and a write of one thread that overlap.
    ///
    /// # Errors
    /// The transfer fails without a buffer.
    /// [`outcome_unknown`](crate::RequestError::outcome_unknown) tells whether the swap may have
    /// taken place. [`RequestError::Invalid`](crate::RequestError::Invalid) if the address is not a
    /// multiple of 8.
    ///
    /// ```
    /// # use rdmabox::{MemoryServer, Session, SessionOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
    /// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
    /// # let base = MemoryServer::locate(&session)?.base();
    /// // Two words change at once: both requests are under way before the first wait.
    /// let (lock, count) = session.together(|| {
    ///     (session.start_compare_swap(base, 0, 1), session.start_fetch_add(base.at(8), 5))
    /// });
    /// assert_eq!((lock.wait()?, count.wait()?), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_compare_swap(&self, remote: RemoteAddr, compare: u64, swap: u64) -> Transfer<u64> {
        self.start_word(SendOp::CompareSwap { remote, compare, swap }, remote, |old| DirectOp::CompareSwap {
            remote,
            compare,
            swap,
            old,
        })
    }

    /// Starts a [`fetch_add`](Self::fetch_add). The transfer returns the old value.
    ///
    /// # Errors
    /// As for [`start_compare_swap`](Self::start_compare_swap).
    pub fn start_fetch_add(&self, remote: RemoteAddr, add: u64) -> Transfer<u64> {
        self.start_word(SendOp::FetchAdd { remote, add }, remote, |old| DirectOp::FetchAdd {
            remote,
            add,
            old,
        })
    }

    /// Starts a [`fetch_op`](Self::fetch_op). The transfer returns the old value.
    ///
    /// # Errors
    /// The transfer fails with [`RequestError::Unsupported`](crate::RequestError::Unsupported),
    /// without any effect, if the session does not [support](Self::supports) the operation.
    /// Otherwise as for [`start_compare_swap`](Self::start_compare_swap).
    pub fn start_fetch_op(&self, remote: RemoteAddr, op: AtomicOp) -> Transfer<u64> {
        if let Err(e) = supported([op].into_iter(), self.shared.atomic_ops) {
            return Transfer::failed(e, None);
        }
        self.start_word(SendOp::FetchOp { remote, op }, remote, |old| DirectOp::FetchOp { remote, op, old })
    }

    /// Starts a [`load_u64`](Self::load_u64). The transfer returns the word.
    ///
    /// A load sees a started write only if it starts after the write is done.
    ///
    /// # Errors
    /// As for [`load_u64`](Self::load_u64), without a buffer. A retry is safe.
    pub fn start_load_u64(&self, remote: RemoteAddr) -> Transfer<u64> {
        self.start_word(SendOp::Read { remote }, remote, |word| DirectOp::Read {
            remote,
            out: word.as_mut_bytes(),
        })
    }

    /// Starts a [`compare_swap`](Self::compare_swap) and runs `done` with the old value, as
    /// [`write_then`](Self::write_then). A panic of `done` is contained.
    pub fn compare_swap_then(
        &self,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
        done: impl FnOnce(Result<u64, Failed<u64>>) + Send + 'static,
    ) {
        self.start_compare_swap(remote, compare, swap).then(&self.shared.runtime, done);
    }

    /// Starts a [`fetch_add`](Self::fetch_add) and runs `done` with the old value, as
    /// [`write_then`](Self::write_then). A panic of `done` is contained.
    pub fn fetch_add_then(
        &self,
        remote: RemoteAddr,
        add: u64,
        done: impl FnOnce(Result<u64, Failed<u64>>) + Send + 'static,
    ) {
        self.start_fetch_add(remote, add).then(&self.shared.runtime, done);
    }

    /// Starts a [`fetch_op`](Self::fetch_op) and runs `done` with the old value, as
    /// [`write_then`](Self::write_then). A panic of `done` is contained.
    pub fn fetch_op_then(
        &self,
        remote: RemoteAddr,
        op: AtomicOp,
        done: impl FnOnce(Result<u64, Failed<u64>>) + Send + 'static,
    ) {
        self.start_fetch_op(remote, op).then(&self.shared.runtime, done);
    }

    /// Starts a [`load_u64`](Self::load_u64) and runs `done` with the word, as
    /// [`write_then`](Self::write_then). A panic of `done` is contained.
    pub fn load_u64_then(
        &self,
        remote: RemoteAddr,
        done: impl FnOnce(Result<u64, Failed<u64>>) + Send + 'static,
    ) {
        self.start_load_u64(remote).then(&self.shared.runtime, done);
    }

    /// Starts a request that fills a word.
    fn start_word(
        &self,
        op: SendOp,
        remote: RemoteAddr,
        direct: impl FnOnce(&mut u64) -> DirectOp<'_>,
    ) -> Transfer<u64> {
        if let Err(e) = aligned(remote).and_then(|()| wraps(remote, size_of::<u64>())) {
            return Transfer::failed(e, None);
        }
        let mut old = 0;
        // In a callback, inline execution could recurse: each callback could start the next
        // request.
        if !in_callback()
            && let Some(result) = self.shared.runtime.execute_one_mapped(&mut direct(&mut old))
        {
            return match result {
                Ok(()) => Transfer::done(old),
                Err(e) => Transfer::failed(e, None),
            };
        }
        let (ticket, loans) = self.shared.runtime.take_idle(1, self.timeout);
        let lent = Lent::word(loans);
        self.shared.runtime.begin_group(smallvec![GroupOp { op, loan: lent.lend_word() }], &ticket);
        Transfer::new(Started::new(Arc::clone(&self.shared.runtime), ticket, lent))
    }
}
