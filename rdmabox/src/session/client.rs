//! The client's end of a session.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    Address, ConnectError, ProviderKind, RequestError, SessionOptions, Transfer, connect,
    late::LatePlace,
    lease::Renewal,
    stream::{self, Stream},
};
use crate::{
    memory::{self, Buffer, Lent, Memory, RecvBuf, SendBuf},
    rpc::{Cancel, RpcClient},
    runtime::{GroupOp, Runtime, Started, Until, in_callback},
    stats::{Stats, StatsSnapshot},
    verbs::{Access, DirectOp, RemoteAddr, SendOp, VerbsError},
};

/// Most data queue pairs of a session.
const MAX_QUEUE_PAIRS: usize = 16;

/// One step of an ordered list ([`Session::execute`]).
#[derive(Debug)]
pub enum Op<'a> {
    /// Writes `data` to `remote`.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// What.
        data: &'a [u8],
    },
    /// Reads `out.len()` bytes from `remote`.
    Read {
        /// Where from.
        remote: RemoteAddr,
        /// Where to.
        out: &'a mut [u8],
    },
    /// Stores `swap` in the aligned 8-byte word at `remote` if it holds `compare`.
    CompareSwap {
        /// The word.
        remote: RemoteAddr,
        /// Expected there.
        compare: u64,
        /// Stored if it was.
        swap: u64,
        /// Gets what was there: the swap took place if it equals `compare`.
        old: &'a mut u64,
    },
    /// Adds to the aligned 8-byte word at `remote`, wrapping.
    FetchAdd {
        /// The word.
        remote: RemoteAddr,
        /// Added.
        add: u64,
        /// Gets what was there.
        old: &'a mut u64,
    },
}

/// A client's session with a host. Any number of threads may use it. Dropping it closes it.
///
/// There are three ways to make a request, with the same effect: calls that block until it is done, at most for the
/// operation timeout ([`write`](Self::write), [`read`](Self::read)); a [`Transfer`] to be awaited, or waited for, later
/// ([`start_write`](Self::start_write), [`start_read`](Self::start_read)); and a callback
/// ([`write_then`](Self::write_then), [`read_then`](Self::read_then)). A blocking call in a callback is refused with
/// [`RequestError::Invalid`].
///
/// A request that fails takes its queue pair with it: what was posted behind it fails with [`RequestError::Flushed`],
/// the other queue pairs carry on, and the broken one is replaced in the background.
#[derive(Debug)]
pub struct Session {
    pub(super) address: Address,
    pub(super) provider: ProviderKind,
    pub(super) tls: bool,
    /// Why the provider is not the one that would have been first choice.
    pub(super) fallback: Option<String>,
    pub(super) runtime: Arc<Runtime>,
    pub(super) rpc: RpcClient,
    pub(super) late: LatePlace,
    pub(super) stats: Arc<Stats>,
    pub(super) control: Arc<Stream>,
    pub(super) _renewal: Option<Renewal>,
}

impl Session {
    /// Connects to a host.
    ///
    /// Without a provider in the options, a TCP address that turns out to be on this host is left for the host's Unix
    /// socket, so that memory can be mapped; where that fails the session stays on TCP and says so
    /// ([`description`](Self::description)).
    ///
    /// # Errors
    /// Nothing is left behind; a retry is safe. It takes no longer than `connect_timeout`.
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

    /// What carries the requests.
    pub fn provider(&self) -> ProviderKind {
        self.provider
    }

    /// What carries the requests, for people.
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

    /// False once the session has failed or the host has gone. Costs no system call where memory is mapped: there the
    /// engine hears of the end.
    pub fn is_connected(&self) -> bool {
        let heard = self.provider == ProviderKind::Shm;
        self.runtime.is_alive() && !self.rpc.is_dead() && (heard || !self.control.is_over())
    }

    /// Writes `data` to `remote`.
    ///
    /// # Errors
    /// The write may have taken effect in part, and it is safe to repeat it: on this session, but for
    /// [`RequestError::Disconnected`], after which it takes another one. See [`RequestError`] for what each means.
    pub fn write(&self, remote: RemoteAddr, data: &[u8]) -> Result<(), RequestError> {
        self.check([(remote, data.len())].into_iter())?;
        let direct = self.runtime.carry_out(&mut DirectOp::Write { remote, data });
        direct.unwrap_or_else(|| self.write_vectored(&[(remote, data)]))
    }

    /// Reads `out.len()` bytes from `remote`.
    ///
    /// # Errors
    /// As [`write`](Self::write); `out` then holds anything.
    pub fn read(&self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        self.check([(remote, out.len())].into_iter())?;
        let direct = self.runtime.carry_out(&mut DirectOp::Read { remote, out: &mut *out });
        direct.unwrap_or_else(|| self.read_vectored(&mut [(remote, out)]))
    }

    /// Makes several writes in one submission, so that they merge and chain with each other. Those that overlap take
    /// effect in the order given; otherwise there is no order.
    ///
    /// # Errors
    /// As [`write`](Self::write), with the first error.
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
    /// As [`read`](Self::read), with the first error.
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

    /// Starts a write, and gives the buffer back with the outcome. Overlapping writes of one thread take effect in the
    /// order in which they were started.
    pub fn start_write<B: SendBuf>(&self, remote: RemoteAddr, data: B) -> Transfer<B> {
        let (len, max) = (data.bytes().len(), self.max_part());
        if let Err(e) = wraps(remote, len) {
            return Transfer::over(Err(e), data);
        }
        // In a callback, one that starts the next would run inside of it, and so on.
        if !in_callback()
            && let Some(result) = self.runtime.carry_out(&mut DirectOp::Write { remote, data: data.bytes() })
        {
            return Transfer::over(result, data);
        }
        let count = len.div_ceil(max).max(1);
        let (ticket, loans) = self.runtime.take_idle(count);
        let lent = Lent::new(data, loans);
        let requests = lent.lend(max).enumerate().map(|(i, loan)| (at(remote, i * max), loan));
        self.runtime.begin(true, count, requests, &ticket);
        Transfer::new(Started::new(Arc::clone(&self.runtime), ticket, lent))
    }

    /// Starts a read that fills the whole buffer, and gives it back with the outcome. To see what a write has written,
    /// start it when that is done.
    pub fn start_read<B: RecvBuf>(&self, remote: RemoteAddr, mut out: B) -> Transfer<B> {
        let (len, max) = (out.bytes().len(), self.max_part());
        if let Err(e) = wraps(remote, len) {
            return Transfer::over(Err(e), out);
        }
        if !in_callback()
            && let Some(result) = self.runtime.carry_out(&mut DirectOp::Read { remote, out: out.bytes_mut() })
        {
            return Transfer::over(result, out);
        }
        let count = len.div_ceil(max).max(1);
        let (ticket, loans) = self.runtime.take_idle(count);
        let mut lent = Lent::new(out, loans);
        let requests = lent.lend_mut(max).enumerate().map(|(i, loan)| (at(remote, i * max), loan));
        self.runtime.begin(false, count, requests, &ticket);
        Transfer::new(Started::new(Arc::clone(&self.runtime), ticket, lent))
    }

    /// Starts a write and has `done` run with the outcome and the buffer, on whichever thread finds the completion: it
    /// must be quick and must not block. It may start requests.
    pub fn write_then<B: SendBuf>(
        &self,
        remote: RemoteAddr,
        data: B,
        done: impl FnOnce(Result<(), RequestError>, B) + Send + 'static,
    ) {
        self.start_write(remote, data).then(&self.runtime, done);
    }

    /// Starts a read and has `done` run with the outcome and the buffer; as [`write_then`](Self::write_then).
    pub fn read_then<B: RecvBuf>(
        &self,
        remote: RemoteAddr,
        out: B,
        done: impl FnOnce(Result<(), RequestError>, B) + Send + 'static,
    ) {
        self.start_read(remote, out).then(&self.runtime, done);
    }

    /// Runs `start`, and posts what this thread starts in it when it is over ([`start_read`](Self::start_read), [`start_write`](Self::start_write) and
    /// those with callbacks): adjacent requests merge, and others leave as one list, as if they had come from many threads at once
    /// (RDMAbox, section IV-A). What is waited for in `start` is posted at once, with all that was started before it.
    pub fn together<R>(&self, start: impl FnOnce() -> R) -> R {
        self.runtime.together(start)
    }

    /// Runs `start`, which starts requests with callbacks, and then serves on this thread all that were started, by whomever, until they are done (with
    /// [`Until::AnyDone`] until any is), nothing comes for 100 microseconds, or 5 milliseconds are over. Their callbacks run here, without a thread being woken for them. To be called where there is
    /// nothing better to do: others may start more meanwhile.
    ///
    /// One thread serves at a time. On another one, in a callback, where completions are waited for by events, and for a while where serving has found nothing, it
    /// only runs `start`.
    pub fn serve<R>(&self, until: Until, start: impl FnOnce() -> R) -> R {
        self.runtime.serve(until, start)
    }

    /// A buffer in registered memory; None if the session's pool has none of that length to give (at most 1 MiB).
    pub fn buffer(&self, len: usize) -> Option<Buffer> {
        self.runtime.pooled(len)
    }

    /// A buffer of zeros in memory of its own, of any length. It is registered once, now, and requests find that in a
    /// cache (`cache_hits`) for as long as it exists.
    ///
    /// # Errors
    /// Without memory, or without room for another registration at the device; a retry is safe.
    pub fn allocate(&self, len: usize) -> Result<Buffer, VerbsError> {
        self.runtime.allocate(len)
    }

    /// Stores `swap` in the aligned 8-byte word at `remote` if it holds `compare`, and gives what it held.
    ///
    /// # Errors
    /// As [`write`](Self::write), but that a retry is safe only for a caller who can tell whether the swap took place.
    pub fn compare_swap(&self, remote: RemoteAddr, compare: u64, swap: u64) -> Result<u64, RequestError> {
        let mut old = 0;
        self.execute(&mut [Op::CompareSwap { remote, compare, swap, old: &mut old }])?;
        Ok(old)
    }

    /// Adds to the aligned 8-byte word at `remote`, wrapping, and gives what it held.
    ///
    /// # Errors
    /// As [`compare_swap`](Self::compare_swap).
    pub fn fetch_add(&self, remote: RemoteAddr, add: u64) -> Result<u64, RequestError> {
        let mut old = 0;
        self.execute(&mut [Op::FetchAdd { remote, add, old: &mut old }])?;
        Ok(old)
    }

    /// Runs the list in order, on one queue pair and with one doorbell: each step is executed after the one before it
    /// has taken effect at the host. A READ gives what was there before any later step of the list changed it; it
    /// may however be read after a later step has changed other bytes, so that a list must not give up a lock behind a READ
    /// that the lock protects.
    ///
    /// # Errors
    /// As [`write`](Self::write); steps before the one that failed have taken effect.
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
        let ops = self.carry_out_first(ops)?;
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

    /// The host's memory in place, where the provider maps it and it may be read: the mapping, and the offset of
    /// `remote` in it. Others may be writing there at any time.
    pub fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        self.runtime.map(remote, len, Access::REMOTE_READ)
    }

    /// Calls the host's service and waits for its reply, which replaces what `reply` held. Request and reply are at
    /// most [`MAX_CALL`](crate::MAX_CALL) bytes long. A service that answers [later](crate::Reply::later) has until the
    /// operation timeout, as any other, and the call keeps one of the session's places for calls under way.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a request that is too long, and [`RequestError::Unanswered`] where the service gives
    /// the call up; otherwise the session is closed, and whether the call was carried out is unknown.
    pub fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        // A call in mapped memory needs no queue pair: it could be answered for a moment after the session has ended.
        if !self.runtime.is_alive() {
            return Err(RequestError::Disconnected);
        }
        let result = self.rpc.call(request, reply);
        self.after_call(result)
    }

    /// Makes several calls, as many at once as there is room for, and waits for the replies to all, which replace what `replies` held.
    ///
    /// No more than half of the session's places for calls are taken by this and others like it: one call always finds one. The host
    /// carries them out in any order.
    ///
    /// # Errors
    /// As [`call`](Self::call); which of them were carried out is unknown.
    pub fn call_all(&self, requests: &[Vec<u8>], replies: &mut Vec<Vec<u8>>) -> Result<(), RequestError> {
        refuse_in_callback()?;
        if !self.runtime.is_alive() {
            return Err(RequestError::Disconnected);
        }
        replies.resize_with(requests.len(), Vec::new);
        let result = self.rpc.call_all(requests, replies);
        self.after_call(result)
    }

    /// Calls the host's service and waits for its reply for as long as the session lives, or until `cancel` ends the wait.
    ///
    /// The service has the operation timeout to answer, or to say that it will [later](crate::Reply::later). From then on
    /// the call takes none of the places for calls under way, needs no processor until its reply comes, and stays while the
    /// peer is there. Up to 4096 calls can wait like that; the first one connects a queue pair for their replies.
    ///
    /// A service is not told of a call that is cancelled: where it matters the client says so in a call of its own.
    ///
    /// # Errors
    /// As [`call`](Self::call); and [`RequestError::Cancelled`], after which the session goes on.
    pub fn call_waiting(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.rpc.call_waiting(request, reply, cancel, &|| self.late.join());
        self.after_call(result)
    }

    /// Puts a call of the host's service under way and returns; its reply goes to
    /// [`SessionOptions::started_reply`] and to nobody else.
    ///
    /// The reply is taken by whichever thread next polls for one, in [`call`](Self::call) or
    /// [`finish_calls`](Self::finish_calls): while nobody calls, nobody looks. Eight calls can be under way like this; with
    /// more, this waits for one of them to be answered. A session of which a started call is not answered within the operation
    /// timeout is over, as with any call, and is found to be by the next call.
    ///
    /// The host carries out calls in any order. A started call may be carried out after a later one, of this thread, too:
    /// what has to come after it waits for [`finish_calls`](Self::finish_calls).
    ///
    /// # Errors
    /// The call has not been made, and `started_reply` does not hear of it: [`RequestError::Invalid`] for a request that is too
    /// long, otherwise because the session is closed, or is now, as nothing was answered for the operation timeout.
    pub fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.rpc.start_call(request);
        self.after_call(result)
    }

    /// Waits until all calls that were [started](Self::start_call) before have been answered, and `started_reply` has heard of
    /// each; for the operation timeout at most.
    ///
    /// # Errors
    /// The session is closed, and whether its last started calls were carried out is unknown.
    pub fn finish_calls(&self) -> Result<(), RequestError> {
        refuse_in_callback()?;
        let result = self.rpc.finish_calls();
        self.after_call(result)
    }

    fn after_call(&self, result: Result<(), RequestError>) -> Result<(), RequestError> {
        use RequestError::{Cancelled, Invalid, Unanswered};
        if self.rpc.is_dead() || !matches!(result, Ok(()) | Err(Invalid(_) | Unanswered | Cancelled)) {
            // Whether the host carried it out is unknown: a session does not go on with that. The host is to know.
            self.close();
        }
        result
    }

    /// The counters.
    pub fn stats(&self) -> StatsSnapshot {
        self.stats.snapshot()
    }

    /// Bytes in flight, in whole pages: now, and the most that there ever were at once.
    pub fn in_flight(&self) -> (u64, u64) {
        self.runtime.in_flight()
    }

    /// The largest work request, in bytes, that is copied through the pre-registered pool.
    pub fn pre_mr_threshold(&self) -> u64 {
        self.runtime.stage_threshold()
    }

    /// Ends the session: requests under way fail with [`RequestError::Disconnected`], and so do later ones. Calls that were
    /// [started](Self::start_call) are waited for first, for the operation timeout at most, unless this is a callback.
    pub fn close(&self) {
        if !in_callback() && !self.rpc.is_dead() {
            // Who has to know has asked before.
            let _ = self.rpc.finish_calls();
        }
        // The host may reuse its memory as soon as it hears of the end: first nothing is written there any more.
        self.runtime.fail();
        self.rpc.fail();
        self.control.shutdown();
    }

    /// Carries out as many steps of a list as go without posting, and gives the others.
    fn carry_out_first<'a, 'b>(&self, ops: &'a mut [Op<'b>]) -> Result<&'a mut [Op<'b>], RequestError> {
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

    /// What every blocking request is checked for.
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

/// What a callback is told that would wait.
pub(super) const NO_WAIT_IN_A_CALLBACK: &str = "a callback must not wait: start a request instead";

fn refuse_in_callback() -> Result<(), RequestError> {
    match in_callback() {
        false => Ok(()),
        true => Err(RequestError::Invalid(NO_WAIT_IN_A_CALLBACK.into())),
    }
}

fn at(remote: RemoteAddr, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: remote.addr + offset as u64, rkey: remote.rkey }
}
