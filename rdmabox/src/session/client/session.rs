//! The client's end of a session: the public API for requests and calls.
//!
//! [`Session`] validates arguments, splits long transfers into work requests of the device's
//! maximum length, and passes requests to the [`Runtime`] and calls to the [`RpcClient`].
//!
//! # Concurrency
//! All methods may be called by any thread; this module takes no locks. Blocking methods return
//! an error inside a completion callback.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{connect, deferred_qp::DeferredReplyQp, options::SessionOptions, transfer::Transfer};
use crate::{
    error::RequestError,
    mapping::Memory,
    memory::{self, Buffer, Lent, RecvBuf, SendBuf},
    rpc::{Cancel, RpcClient},
    runtime::{GroupOp, Runtime, Started, Until, in_callback},
    session::{
        address::{Address, ProviderKind},
        error::ConnectError,
        lease::Renewal,
        stream::{self, Stream},
    },
    stats::{Stats, StatsSnapshot},
    verbs::{Access, DirectOp, RemoteAddr, SendOp, VerbsError},
};

/// Maximum number of data queue pairs of a session.
const MAX_QUEUE_PAIRS: usize = 16;

/// One step of an ordered list ([`Session::execute`]).
#[derive(Debug)]
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
}

/// A client's session with a host. Any number of threads may use it. Dropping it closes it.
///
/// A request can be made in three ways with the same effect. Blocking calls
/// ([`write`](Self::write), [`read`](Self::read)) return when the request is done, or after the
/// operation timeout. A [`Transfer`] ([`start_write`](Self::start_write),
/// [`start_read`](Self::start_read)) is awaited later, by a task or a thread. A callback
/// ([`write_then`](Self::write_then), [`read_then`](Self::read_then)) runs on completion. A
/// blocking call in a callback fails with [`RequestError::Invalid`].
///
/// A failed request breaks its queue pair. Requests posted behind it fail with
/// [`RequestError::Flushed`]. The other queue pairs continue, and the runtime replaces the broken
/// queue pair in the background.
#[derive(Debug)]
pub struct Session {
    pub(crate) address: Address,
    pub(crate) provider: ProviderKind,
    pub(crate) tls: bool,
    /// The reason for not using the preferred provider, if so.
    pub(crate) fallback: Option<String>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) rpc: RpcClient,
    pub(crate) deferred_qp: DeferredReplyQp,
    pub(crate) stats: Arc<Stats>,
    pub(crate) control: Arc<Stream>,
    pub(super) _renewal: Option<Renewal>,
}

impl Session {
    /// Connects to a host.
    ///
    /// If the options name no provider and a TCP address belongs to this machine, the session uses
    /// the host's Unix socket, so that memory can be mapped. If that fails the session stays on
    /// TCP, and [`description`](Self::description) gives the reason.
    ///
    /// # Errors
    /// After an error nothing is left behind, and a retry is safe. Fails at the latest after
    /// `connect_timeout`.
    pub fn connect(address: &Address, options: &SessionOptions) -> Result<Arc<Session>, ConnectError> {
        let refused = |reason: String| ConnectError::Refused { address: address.clone(), reason };
        if !(1..=MAX_QUEUE_PAIRS).contains(&options.queue_pairs) {
            return Err(refused(format!(
                "{} queue pairs: choose 1 to {MAX_QUEUE_PAIRS}",
                options.queue_pairs
            )));
        }
        if let Some(kind) = options.provider.filter(|kind| *kind != address.provider()) {
            let other = match kind {
                ProviderKind::Shm => "a Unix socket",
                ProviderKind::Tcp => "host:port",
                ProviderKind::Rdma => "rdma:host:port",
            };
            return Err(refused(format!("provider {kind} needs an address of another kind: give {other}")));
        }
        if options.tls.is_some() && address.provider() != ProviderKind::Tcp {
            return Err(stream::no_tls(address));
        }
        let options = &options.bounded();
        let deadline = Instant::now() + options.connect_timeout;
        let greeting = connect::greet_best(address, options, deadline)?;
        connect::establish(greeting, options, deadline).map(Arc::new)
    }

    /// Returns the provider of the session's requests.
    pub fn provider(&self) -> ProviderKind {
        self.provider
    }

    /// Describes the transport, for people.
    pub fn description(&self) -> String {
        let what = match self.provider {
            ProviderKind::Shm => "shared memory",
            ProviderKind::Tcp if self.tls => "TCP with TLS",
            ProviderKind::Tcp => "TCP",
            ProviderKind::Rdma => "RDMA",
        };
        match &self.fallback {
            None => format!("{what} via {}", self.address),
            Some(why) => format!("{what} via {} (not shared memory: {why})", self.address),
        }
    }

    /// Returns false once the session has failed or the host has gone. With mapped memory this
    /// makes no system call, because the engine notices the end of the stream.
    pub fn is_connected(&self) -> bool {
        let heard = self.provider == ProviderKind::Shm;
        self.runtime.is_alive() && !self.rpc.is_dead() && (heard || !self.control.is_over())
    }

    /// Writes `data` to `remote`.
    ///
    /// # Errors
    /// The write may have taken effect in part; repeating it is safe. After
    /// [`RequestError::Disconnected`] the repetition needs another session. [`RequestError`]
    /// explains each error.
    pub fn write(&self, remote: RemoteAddr, data: &[u8]) -> Result<(), RequestError> {
        self.check([(remote, data.len())].into_iter())?;
        let direct = self.runtime.carry_out(&mut DirectOp::Write { remote, data });
        direct.unwrap_or_else(|| self.write_vectored(&[(remote, data)]))
    }

    /// Reads `out.len()` bytes from `remote`.
    ///
    /// # Errors
    /// As for [`write`](Self::write). The content of `out` is then unspecified.
    pub fn read(&self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        self.check([(remote, out.len())].into_iter())?;
        let direct = self.runtime.carry_out(&mut DirectOp::Read { remote, out: &mut *out });
        direct.unwrap_or_else(|| self.read_vectored(&mut [(remote, out)]))
    }

    /// Makes several writes in one submission, so that they can merge and chain. Overlapping writes
    /// take effect in the given order. Other writes are unordered.
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
            self.runtime.run(true, count, requests)
        })
    }

    /// Makes several reads in one submission.
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
            self.runtime.run(false, count, requests)
        })
    }

    /// Starts a write. The transfer returns the buffer with the outcome. Overlapping writes of one
    /// thread take effect in the order of their starts.
    pub fn start_write<B: SendBuf>(&self, remote: RemoteAddr, data: B) -> Transfer<B> {
        let (len, max) = (data.bytes().len(), self.max_part());
        if let Err(e) = wraps(remote, len) {
            return Transfer::finished(Err(e), data);
        }
        // In a callback, inline execution could recurse: each callback could start the next
        // request.
        if !in_callback()
            && let Some(result) = self.runtime.carry_out(&mut DirectOp::Write { remote, data: data.bytes() })
        {
            return Transfer::finished(result, data);
        }
        let count = len.div_ceil(max).max(1);
        let (ticket, loans) = self.runtime.take_idle(count);
        let lent = Lent::new(data, loans);
        let requests = lent.lend(max).enumerate().map(|(i, loan)| (at(remote, i * max), loan));
        self.runtime.begin(true, count, requests, &ticket);
        Transfer::new(Started::new(Arc::clone(&self.runtime), ticket, lent))
    }

    /// Starts a read that fills the whole buffer. The transfer returns the buffer with the outcome.
    /// A read sees a started write only if it starts after the write is done.
    pub fn start_read<B: RecvBuf>(&self, remote: RemoteAddr, mut out: B) -> Transfer<B> {
        let (len, max) = (out.bytes().len(), self.max_part());
        if let Err(e) = wraps(remote, len) {
            return Transfer::finished(Err(e), out);
        }
        if !in_callback()
            && let Some(result) = self.runtime.carry_out(&mut DirectOp::Read { remote, out: out.bytes_mut() })
        {
            return Transfer::finished(result, out);
        }
        let count = len.div_ceil(max).max(1);
        let (ticket, loans) = self.runtime.take_idle(count);
        let mut lent = Lent::new(out, loans);
        let requests = lent.lend_mut(max).enumerate().map(|(i, loan)| (at(remote, i * max), loan));
        self.runtime.begin(false, count, requests, &ticket);
        Transfer::new(Started::new(Arc::clone(&self.runtime), ticket, lent))
    }

    /// Starts a write. The thread that finds the completion runs `done` with the outcome and the
    /// buffer. `done` must be quick and must not block. It may start requests.
    pub fn write_then<B: SendBuf>(
        &self,
        remote: RemoteAddr,
        data: B,
        done: impl FnOnce(Result<(), RequestError>, B) + Send + 'static,
    ) {
        self.start_write(remote, data).then(&self.runtime, done);
    }

    /// Starts a read and runs `done` with the outcome and the buffer, as
    /// [`write_then`](Self::write_then).
    pub fn read_then<B: RecvBuf>(
        &self,
        remote: RemoteAddr,
        out: B,
        done: impl FnOnce(Result<(), RequestError>, B) + Send + 'static,
    ) {
        self.start_read(remote, out).then(&self.runtime, done);
    }

    /// Runs `start`, and posts the requests that this thread starts in it afterwards as one batch.
    /// Adjacent requests merge, and the others leave as one list, as if many threads had issued
    /// them at once (RDMAbox, section IV-A). A blocking request in `start` is posted at once,
    /// together with all requests started before it.
    pub fn together<R>(&self, start: impl FnOnce() -> R) -> R {
        self.runtime.together(start)
    }

    /// Runs `start`, which starts requests with callbacks, then polls completions on this thread
    /// for the requests of all threads. Polling ends when all requests are done (any one with
    /// [`Until::AnyDone`]), after 100 microseconds without a completion, or after 5 milliseconds.
    /// Callbacks run on this thread, so no other thread is woken for them. Call it on a thread
    /// without other work.
    ///
    /// Only one thread polls at a time. `serve` just runs `start` on a further thread, in a
    /// callback, with event-driven completions, and for some time after polling found nothing.
    pub fn serve<R>(&self, until: Until, start: impl FnOnce() -> R) -> R {
        self.runtime.serve(until, start)
    }

    /// Returns a buffer in registered memory, at most 1 MiB. `None` if the session's pool has no
    /// free block of that length.
    pub fn buffer(&self, len: usize) -> Option<Buffer> {
        self.runtime.pooled(len)
    }

    /// Allocates a zeroed buffer of any length in memory of its own. The buffer is registered once,
    /// now. While it exists its requests find the registration in a cache (`cache_hits`).
    ///
    /// # Errors
    /// No memory, or no room for another registration at the device. A retry is safe.
    pub fn allocate(&self, len: usize) -> Result<Buffer, VerbsError> {
        self.runtime.allocate(len)
    }

    /// Stores `swap` in the aligned 8-byte word at `remote` if it holds `compare`. Returns the old
    /// value.
    ///
    /// # Errors
    /// As for [`write`](Self::write). A retry is safe only if the caller can tell whether the swap
    /// took place.
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

    /// Runs the list in order, on one queue pair and with one doorbell. Each step executes after
    /// the previous step has taken effect at the host. A READ returns the content from before any
    /// later step of the list changed it. A READ may however execute after a later step has changed
    /// other bytes. A list must therefore not release a lock behind a READ that the lock protects.
    ///
    /// # Errors
    /// As for [`write`](Self::write). Steps before the failed step have taken effect.
    pub fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        const MAX_STEPS: usize = 64;
        if ops.len() > MAX_STEPS {
            return Err(RequestError::Invalid(format!(
                "{} steps in a list, the limit is {MAX_STEPS}",
                ops.len()
            )));
        }
        self.check(ops.iter().map(|op| match op {
            Op::Write { remote, data } => (*remote, data.len()),
            Op::Read { remote, out } => (*remote, out.len()),
            Op::CompareSwap { remote, .. } | Op::FetchAdd { remote, .. } => (*remote, 8),
        }))?;
        let max = self.runtime.max_message();
        let longest = ops.iter().map(|op| match op {
            Op::Write { data, .. } => data.len() as u64,
            Op::Read { out, .. } => out.len() as u64,
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => 8,
        });
        if let Some(len) = longest.max().filter(|len| *len > max) {
            return Err(RequestError::Invalid(format!("a step of {len} bytes, the limit is {max}")));
        }
        let ops = self.execute_mapped(ops)?;
        if ops.is_empty() {
            return Ok(());
        }
        let mut old_values: SmallVec<[[u8; 8]; 4]> = SmallVec::from_elem([0; 8], ops.len());
        let result = memory::scope(|scope| {
            let steps = ops.iter_mut().zip(old_values.iter_mut()).map(|(op, old)| match op {
                Op::Write { remote, data } => {
                    GroupOp { op: SendOp::Write { remote: *remote, imm: None }, loan: scope.lend(data) }
                }
                Op::Read { remote, out } => {
                    GroupOp { op: SendOp::Read { remote: *remote }, loan: scope.lend_mut(out) }
                }
                Op::CompareSwap { remote, compare, swap, .. } => GroupOp {
                    op: SendOp::CompareSwap { remote: *remote, compare: *compare, swap: *swap },
                    loan: scope.lend_mut(old),
                },
                Op::FetchAdd { remote, add, .. } => {
                    GroupOp { op: SendOp::FetchAdd { remote: *remote, add: *add }, loan: scope.lend_mut(old) }
                }
            });
            self.runtime.run_group(steps.collect())
        });
        for (op, value) in ops.iter_mut().zip(&old_values) {
            if let Op::CompareSwap { old, .. } | Op::FetchAdd { old, .. } = op {
                **old = u64::from_ne_bytes(*value);
            }
        }
        result
    }

    /// Returns the host's memory in place, if the provider maps it and it is readable: the mapping,
    /// and the offset of `remote` in it. Other parties may write there at any time.
    pub fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        self.runtime.map(remote, len, Access::REMOTE_READ)
    }

    /// Calls the host's service and waits for its reply, which replaces the content of `reply`.
    /// Request and reply have at most [`MAX_CALL`](crate::MAX_CALL) bytes each. A
    /// [deferred](crate::Reply::later) reply must also arrive within the operation timeout, and the
    /// call keeps its call slot until then.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a request that is too long. [`RequestError::Unanswered`] if
    /// the service gives up the call. After any other error the session is closed, and it is
    /// unknown whether the call was executed.
    pub fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        // A call through mapped memory needs no queue pair: the host could answer it for a moment
        // after the session has ended.
        if !self.runtime.is_alive() {
            return Err(RequestError::Disconnected);
        }
        let result = self.rpc.call(request, reply);
        self.after_call(result)
    }

    /// Makes several calls concurrently and waits for all replies, which replace the content of
    /// `replies`.
    ///
    /// Concurrent `call_all` calls together use at most half of the session's call slots, so a
    /// single call always finds a slot. The host executes the calls in any order.
    ///
    /// # Errors
    /// As for [`call`](Self::call). It is unknown which of the calls were executed.
    pub fn call_all(&self, requests: &[Vec<u8>], replies: &mut Vec<Vec<u8>>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        if !self.runtime.is_alive() {
            return Err(RequestError::Disconnected);
        }
        replies.resize_with(requests.len(), Vec::new);
        let result = self.rpc.call_all(requests, replies);
        self.after_call(result)
    }

    /// Calls the host's service and waits for its reply, without a timeout, until the session ends
    /// or `cancel` ends the wait.
    ///
    /// The service must answer or [defer](crate::Reply::later) its reply within the operation
    /// timeout. A deferred call frees its call slot, uses no processor time, and lasts as long as
    /// the peer is there. Up to 4096 calls can wait. The first one connects a queue pair for
    /// deferred replies.
    ///
    /// The service is not notified of a cancelled call. If it has to know, the client must make
    /// another call.
    ///
    /// # Errors
    /// As for [`call`](Self::call). After [`RequestError::Cancelled`] the session goes on.
    pub fn call_waiting(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.rpc.call_waiting(request, reply, cancel, &|| self.deferred_qp.connect());
        self.after_call(result)
    }

    /// Starts a call of the host's service and returns. Only [`SessionOptions::started_reply`] gets
    /// the reply.
    ///
    /// The next thread that polls for a reply, in [`call`](Self::call) or
    /// [`finish_calls`](Self::finish_calls), takes the reply. Without such a thread the reply stays
    /// unread. At most eight started calls can be outstanding; `start_call` waits for one of them
    /// if there are more. If a started call stays unanswered for the operation timeout the session
    /// ends. The next call reports that.
    ///
    /// The host executes calls in any order, even calls of one thread. If a call has to come after
    /// a started call, wait for [`finish_calls`](Self::finish_calls) in between.
    ///
    /// # Errors
    /// The call was not made, and `started_reply` does not run: [`RequestError::Invalid`] for a
    /// request that is too long. Otherwise the session is closed, possibly just now, because no
    /// outstanding call was answered within the operation timeout.
    pub fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.rpc.start_call(request);
        self.after_call(result)
    }

    /// Waits until all previously [started](Self::start_call) calls are answered and
    /// `started_reply` has run for each. Waits at most for the operation timeout.
    ///
    /// # Errors
    /// The session is closed, and it is unknown whether its last started calls were executed.
    pub fn finish_calls(&self) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.rpc.finish_calls();
        self.after_call(result)
    }

    fn after_call(&self, result: Result<(), RequestError>) -> Result<(), RequestError> {
        use RequestError::{Cancelled, Invalid, Unanswered};
        if self.rpc.is_dead() || !matches!(result, Ok(()) | Err(Invalid(_) | Unanswered | Cancelled)) {
            // It is unknown whether the host executed the call, so the session cannot go on. The
            // host notices the closed stream.
            self.close();
        }
        result
    }

    /// Returns the session's counters.
    pub fn stats(&self) -> StatsSnapshot {
        self.stats.snapshot()
    }

    /// Returns the bytes in flight, in whole pages: the current and the maximum value.
    pub fn in_flight(&self) -> (u64, u64) {
        self.runtime.in_flight()
    }

    /// Returns the size in bytes of the largest work request that is copied through the
    /// pre-registered pool.
    pub fn pre_mr_threshold(&self) -> u64 {
        self.runtime.stage_threshold()
    }

    /// Ends the session. Outstanding and later requests fail with [`RequestError::Disconnected`].
    /// Outside of a callback, this first waits for [started](Self::start_call) calls, at most for
    /// the operation timeout.
    pub fn close(&self) {
        if !in_callback() && !self.rpc.is_dead() {
            // Callers that need the outcome have called `finish_calls` themselves.
            let _ = self.rpc.finish_calls();
        }
        // The host may reuse its memory when it notices the end, so all writes must have stopped
        // before.
        self.runtime.fail();
        self.rpc.fail();
        self.control.shutdown();
    }

    /// Executes the leading steps of a list that need no posting. Returns the remaining steps.
    fn execute_mapped<'a, 'b>(&self, ops: &'a mut [Op<'b>]) -> Result<&'a mut [Op<'b>], RequestError> {
        let mut over = 0;
        while let Some(op) = ops.get_mut(over) {
            let mut direct = match op {
                Op::Write { remote, data } => DirectOp::Write { remote: *remote, data },
                Op::Read { remote, out } => DirectOp::Read { remote: *remote, out },
                Op::CompareSwap { remote, compare, swap, old } => {
                    DirectOp::CompareSwap { remote: *remote, compare: *compare, swap: *swap, old }
                }
                Op::FetchAdd { remote, add, old } => DirectOp::FetchAdd { remote: *remote, add: *add, old },
            };
            match self.runtime.carry_out(&mut direct) {
                Some(Ok(())) => over += 1,
                Some(Err(e)) => return Err(e),
                None => break,
            }
        }
        Ok(&mut ops[over..])
    }

    fn max_part(&self) -> usize {
        usize::try_from(self.runtime.max_message()).unwrap_or(usize::MAX)
    }

    /// Validates a blocking request.
    #[inline]
    fn check(&self, mut ranges: impl Iterator<Item = (RemoteAddr, usize)>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        ranges.try_for_each(|(remote, len)| wraps(remote, len))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
        self.runtime.join_pollers();
    }
}

fn wraps(remote: RemoteAddr, len: usize) -> Result<(), RequestError> {
    match remote.addr.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => Err(wrapped(remote, len)),
    }
}

#[cold]
fn wrapped(remote: RemoteAddr, len: usize) -> RequestError {
    RequestError::Invalid(format!("range {:#x}+{len} wraps around", remote.addr))
}

/// Error text for a blocking request in a callback.
pub(crate) const NO_WAIT_IN_A_CALLBACK: &str = "a callback must not wait: start a request instead";

fn refuse_in_callback() -> Result<(), RequestError> {
    match in_callback() {
        false => Ok(()),
        true => Err(RequestError::Invalid(NO_WAIT_IN_A_CALLBACK.into())),
    }
}

fn at(remote: RemoteAddr, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: remote.addr + offset as u64, rkey: remote.rkey }
}
