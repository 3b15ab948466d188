//! The client's end of a session: the public API for requests and calls.
//!
//! [`Session`] validates arguments, splits long transfers into work requests of the device's
//! maximum length, and passes requests to the [`Runtime`] and calls to the [`RpcClient`]. The
//! methods of each front door stand in a file of their own: `one_sided`,
//! `async_one_sided`, `calls`.
//!
//! # Concurrency
//! All methods may be called by any thread; this module takes no locks. Blocking methods return
//! an error inside a completion callback.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    connect,
    deferred_qp::DeferredReplyQp,
    options::{MAX_TIMEOUT, SessionBuilder, SessionOptions},
};
use crate::{
    mapping::Memory,
    memory::{Buffer, CallerMr},
    rpc::RpcClient,
    runtime::{Runtime, in_callback},
    session::{
        address::{Address, ProviderKind},
        error::ConnectError,
        lease::Renewal,
        stream::{self, Stream},
    },
    stats::{LaneStats, Stats, StatsSnapshot},
    verbs::{Access, AtomicOps, AtomicScope, RemoteAddr, VerbsError},
};

/// A client's session with a host. Any number of threads may use it.
///
/// Dropping the last handle ends the session without blocking: unanswered
/// [started](Self::start_call) calls may not be executed. [`close`](Self::close) waits for them
/// first. A transfer under way ends with
/// [`RequestError::Disconnected`](crate::RequestError::Disconnected), and its buffer comes back.
///
/// A request can be made in three ways with the same effect. Blocking calls
/// ([`write`](Self::write), [`read`](Self::read)) return when the request is done, or after the
/// operation timeout. A [`Transfer`](crate::Transfer) ([`start_write`](Self::start_write),
/// [`start_read`](Self::start_read)) is awaited later, by a task or a thread. A callback
/// ([`write_then`](Self::write_then), [`read_then`](Self::read_then)) runs on completion. A
/// blocking call in a callback fails with [`RequestError::Invalid`](crate::RequestError::Invalid).
///
/// A failed request breaks its queue pair. Requests posted behind it fail with
/// [`RequestError::Flushed`](crate::RequestError::Flushed). The other queue pairs continue, and the
/// runtime replaces the broken queue pair in the background. If that fails for
/// [`connect_timeout`](SessionOptions::connect_timeout), the session ends.
///
/// A session can have several handles with different operation timeouts
/// ([`with_timeout`](Self::with_timeout)). It ends when the last handle is dropped.
#[derive(Debug)]
pub struct Session {
    pub(super) shared: Arc<Shared>,
    /// Operation timeout of this handle's requests.
    pub(super) timeout: Duration,
}

/// The parts that the handles of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) address: Address,
    pub(crate) provider: ProviderKind,
    pub(crate) tls: bool,
    /// The reason for not using the preferred provider, if so.
    pub(crate) fallback: Option<String>,
    pub(crate) atomics: AtomicScope,
    pub(crate) atomic_ops: AtomicOps,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) rpc: Arc<RpcClient>,
    pub(crate) deferred_qp: DeferredReplyQp,
    pub(crate) stats: Arc<Stats>,
    pub(crate) control: Arc<Stream>,
    pub(super) _renewal: Option<Renewal>,
    /// The address that the caller gave. `address` may be a Unix socket of the same host.
    pub(super) requested: Address,
    pub(super) options: SessionOptions,
}

impl Shared {
    /// Ends the session without waiting for the host or for another thread.
    pub(super) fn end(&self) {
        // The host may reuse its memory when it notices the end, so all writes must have stopped
        // before.
        self.runtime.fail();
        self.rpc.fail();
        self.control.shutdown();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The pollers end by themselves: one of them may run a callback that takes long.
        self.end();
    }
}

impl Session {
    /// Returns a builder with a method for each option.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Connects to a host.
    ///
    /// If the options name no provider and a TCP address belongs to this machine, the session uses
    /// the host's Unix socket. So it can map memory. If that fails the session stays on TCP, and
    /// [`description`](Self::description) gives the reason.
    ///
    /// # Errors
    /// After an error nothing is left behind, and a retry is safe. Fails at the latest after
    /// `connect_timeout`. [`ConnectError::InvalidOption`] names an option with an invalid value.
    pub fn connect(address: &Address, options: &SessionOptions) -> Result<Arc<Session>, ConnectError> {
        options.check()?;
        if let Some(kind) = options.provider.filter(|kind| *kind != address.provider()) {
            let other = match kind {
                ProviderKind::Shm => "a Unix socket",
                ProviderKind::Tcp => "host:port",
                ProviderKind::Rdma => "rdma:host:port",
            };
            let expected = format!("it needs an address of another kind than {address}: give {other}");
            return Err(ConnectError::option("provider", kind, expected));
        }
        if options.tls.is_some() && address.provider() != ProviderKind::Tcp {
            return Err(stream::no_tls(address));
        }
        let options = &options.bounded();
        let deadline = Instant::now() + options.connect_timeout;
        let greeting = connect::greet_best(address, options, deadline)?;
        let shared = Arc::new(connect::establish(greeting, (address, options), deadline)?);
        Ok(Arc::new(Session { shared, timeout: options.operation_timeout }))
    }

    /// Connects a new session to the same address with the same options. This session stays as it
    /// is, usually closed. The new session has the operation timeout of the options, also if this
    /// is a handle with another one ([`with_timeout`](Self::with_timeout)).
    ///
    /// The host may have been restarted. Every [`RemoteAddr`] that this session used is void: the
    /// program has to ask for the addresses again, in a call of the new session. A request with an
    /// old address fails, or reaches other memory.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect). A retry is safe.
    pub fn reconnect(&self) -> Result<Arc<Session>, ConnectError> {
        Session::connect(&self.shared.requested, &self.shared.options)
    }

    /// Returns the options of the session.
    pub fn options(&self) -> &SessionOptions {
        &self.shared.options
    }

    /// Returns another handle of the session, whose requests have the operation timeout `timeout`.
    /// Use it for a deadline per request. The handle costs no connection and no thread.
    ///
    /// Any timeout is valid: more than a day counts as a day. With zero, a request is made all the
    /// same. It succeeds if its completion is found before the first look at the clock, as on
    /// mapped memory, and fails with [`RequestError::Timeout`](crate::RequestError::Timeout)
    /// otherwise.
    ///
    /// The timeout applies to blocking and to started requests, and to calls. An expired timeout
    /// has the same consequences as with the session's own operation timeout. A request that is
    /// posted breaks its queue pair, because its memory must be free: requests behind it there fail
    /// with [`RequestError::Flushed`](crate::RequestError::Flushed). A call ends the session. To
    /// stop to wait without these consequences, start the request and use
    /// [`Transfer::wait_timeout`](crate::Transfer::wait_timeout).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdmabox::{MemoryServer, Session, SessionOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
    /// let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
    /// let base = MemoryServer::locate(&session)?.base();
    /// let impatient = session.with_timeout(Duration::from_millis(500));
    /// impatient.write(base, b"soon")?;
    /// assert_eq!(impatient.stats().write_requests, session.stats().write_requests);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Session {
        let timeout = timeout.min(MAX_TIMEOUT);
        self.shared.runtime.note_timeout(timeout);
        self.shared.rpc.note_timeout(timeout);
        Session { shared: Arc::clone(&self.shared), timeout }
    }

    /// Returns the operation timeout of this handle.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the provider of the session's requests.
    pub fn provider(&self) -> ProviderKind {
        self.shared.provider
    }

    /// Describes the transport, for people: `TCP via tcp:10.0.0.1:7450`. The text in parentheses
    /// after it says why the session does not use shared memory although the host is local.
    pub fn description(&self) -> String {
        let what = match self.shared.provider {
            ProviderKind::Shm => "shared memory",
            ProviderKind::Tcp if self.shared.tls => "TCP with TLS",
            ProviderKind::Tcp => "TCP",
            ProviderKind::Rdma => "RDMA",
        };
        match &self.shared.fallback {
            None => format!("{what} via {}", self.shared.address),
            Some(why) => format!("{what} via {} (not shared memory: {why})", self.shared.address),
        }
    }

    /// Returns the scope within which the session's atomics are atomic, as the host reports it.
    ///
    /// | scope | atomic with |
    /// |-|-|
    /// | `Global` | each access of the host's processors, and the atomics of all its sessions |
    /// | `Device` | the atomics of the host's sessions over this provider, and nothing else |
    /// | `None` | nothing: the host's device has no atomics, and refuses them |
    ///
    /// Over shared memory and TCP the scope is `Global`, unless the host also serves an RDMA device
    /// with a smaller scope ([`Host::allow_mixed_atomics`](crate::Host::allow_mixed_atomics)).
    pub fn atomic_scope(&self) -> AtomicScope {
        self.shared.atomics
    }

    /// Returns true if the session has all atomics of `ops`
    /// ([`fetch_op`](Self::fetch_op)). The answer never changes for a session.
    ///
    /// Over shared memory and TCP a session has all of them. Over RDMA it has none, because the
    /// specification of verbs has [`compare_swap`](Self::compare_swap) and
    /// [`fetch_add`](Self::fetch_add) only. A request with another atomic fails with
    /// [`RequestError::Unsupported`](crate::RequestError::Unsupported), before anything of its list
    /// is executed.
    ///
    /// ```
    /// # use rdmabox::{AtomicOps, MemoryServer, Session, SessionOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
    /// let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
    /// assert!(session.supports(AtomicOps::MIN | AtomicOps::MAX));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The [guide](crate::guide#atomics) has the loop around `compare_swap` for other sessions.
    pub fn supports(&self, ops: AtomicOps) -> bool {
        self.shared.atomic_ops.contains(ops)
    }

    /// Returns false once the session has failed or the host has gone. With mapped memory this
    /// makes no system call, because the engine notices the end of the stream.
    pub fn is_connected(&self) -> bool {
        let heard = self.shared.provider == ProviderKind::Shm;
        self.shared.runtime.is_alive()
            && !self.shared.rpc.is_dead()
            && (heard || !self.shared.control.is_over())
    }

    /// Returns a buffer of `len` bytes, at most 1 MiB, in the session's registered pool (8 MiB).
    /// Returns `None` for a longer buffer, or if the pool has no free block of that length. A block
    /// has a power of two of bytes, at least 4 KiB. The buffer holds bytes of its last user. A
    /// buffer of no bytes has a block, too.
    ///
    /// Short requests are copied through the rest of the pool. Without a free block they register
    /// their memory ([`pool_misses`](StatsSnapshot::pool_misses)), so keep few such buffers.
    pub fn buffer(&self, len: usize) -> Option<Buffer> {
        self.shared.runtime.pooled(len)
    }

    /// Allocates a zeroed buffer of `len` bytes, of any length (also zero), in memory of its own.
    /// The buffer is registered once, in this call. Its requests find the registration in a cache
    /// ([`cache_hits`](StatsSnapshot::cache_hits)). Over shared memory and TCP the system takes its
    /// pages only when they are first used.
    ///
    /// The cache keeps 256 registrations, and 1 GiB of them. Beyond that it drops the registration
    /// that was used least recently, and requests with that buffer register it each time.
    ///
    /// # Errors
    /// [`VerbsError::Os`] without memory, [`VerbsError::Limit`] if the device has no room for
    /// another registration. A retry is safe.
    pub fn allocate(&self, len: usize) -> Result<Buffer, VerbsError> {
        self.shared.runtime.allocate(len)
    }

    /// Registers memory of the caller once, for many WRITEs from there
    /// ([`with_registration`](Self::with_registration)). Use it for a buffer that another library
    /// owns; [`allocate`](Self::allocate) is the safe way for one's own. It counts as one of the
    /// [`registrations`](StatsSnapshot::registrations). Over RDMA it pins the pages.
    ///
    /// # Safety
    /// The `len` bytes at `start` must be mapped, readable and writable. No request writes there.
    /// Whenever [`with_registration`](Self::with_registration) gets the result and bytes in this
    /// range, the whole range must be the memory that was registered here. So the memory may be
    /// freed before the registration ends, if no bytes in its place are passed with it.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the device has no room for another registration, [`VerbsError::Os`]
    /// if the system does not pin the pages. A retry is safe.
    pub unsafe fn register(&self, start: *mut u8, len: usize) -> Result<CallerMr, VerbsError> {
        // SAFETY: the caller's promise.
        unsafe { self.shared.runtime.register(start as u64, len as u64) }
    }

    /// Runs `work`, which WRITEs `bytes` or parts of them. They are neither copied nor registered
    /// (`cache_hits`, `registered_bytes`), if `mr` covers `bytes` and is a
    /// [registration](Self::register) of this session. Otherwise they are ordinary memory.
    pub fn with_registration<R>(&self, mr: &CallerMr, bytes: &[u8], work: impl FnOnce() -> R) -> R {
        if self.has_registered(mr, bytes) { mr.lend(work) } else { work() }
    }

    /// Returns true if `mr` is a registration of this session that covers `bytes`.
    pub fn has_registered(&self, mr: &CallerMr, bytes: &[u8]) -> bool {
        self.shared.runtime.has_registered(mr, bytes)
    }

    /// Returns the host's memory in place: the mapping, and the offset of `remote` in it in bytes.
    /// Other parties may write there at any time. `None` if the provider does not map memory (TCP,
    /// RDMA), or if the `len` bytes are not in memory that this client may read.
    ///
    /// The mapping outlives the session and the export. A host that withdraws the export
    /// ([`HostHandle::withdraw`](crate::HostHandle::withdraw)) does not wait for it, so drop it
    /// soon.
    pub fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        self.shared.runtime.map(remote, len, Access::REMOTE_READ)
    }

    /// Returns the session's counters.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.stats.snapshot()
    }

    /// Returns the counters of each data queue pair, in the order of the queue pairs. Requests that
    /// their caller executes on mapped memory use none.
    pub fn lanes(&self) -> Vec<LaneStats> {
        self.shared.runtime.lane_stats()
    }

    /// Returns the bytes in flight, in whole pages: the current and the maximum value.
    pub fn in_flight(&self) -> (u64, u64) {
        self.shared.runtime.in_flight()
    }

    /// Returns the bytes in flight that count for the window, in whole pages: the current and the
    /// maximum value. They are those of [`in_flight`](Self::in_flight), or of all sessions on the
    /// device, as [`window_scope`](SessionOptions::window_scope) says.
    pub fn in_window(&self) -> (u64, u64) {
        self.shared.runtime.in_window()
    }

    /// Returns the size in bytes of the largest work request that is copied through the preMR pool.
    pub fn pre_mr_threshold(&self) -> u64 {
        self.shared.runtime.stage_threshold()
    }

    /// Ends the session, for all of its handles. Outstanding and later requests fail with
    /// [`RequestError::Disconnected`](crate::RequestError::Disconnected), and started requests
    /// return their buffers with it. Closing a session again has no effect.
    ///
    /// Outside of a callback, this first waits for [started](Self::start_call) calls, at most for
    /// `limit` and for the operation timeout. With a `limit` of zero it does not wait. To learn
    /// whether they were answered, call [`finish_calls`](Self::finish_calls) before.
    ///
    /// A single request cannot be cancelled, because the device has its memory until the queue pair
    /// is gone. `close(Duration::ZERO)` gives the buffers of all requests back at once.
    pub fn close(&self, limit: Duration) {
        if !in_callback() && !self.shared.rpc.is_dead() && !limit.is_zero() {
            // Callers that need the outcome have called `finish_calls` themselves.
            let _ = self.shared.rpc.finish_calls(limit.min(self.timeout));
        }
        self.shared.end();
    }
}
