//! Options of a session: one field for each mechanism of the runtime.
//!
//! # Concurrency
//! Plain values.

mod builder;

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

pub use self::builder::SessionBuilder;
use crate::{
    admission::{AdmissionPolicy, DEFAULT_WINDOW, WindowScope},
    auth::Key,
    batch::{BatchMode, DEFAULT_MAX_MERGE},
    memory::PreMrThreshold,
    polling::{DEFAULT_MAX_RETRY, PollingMode, Retry},
    provider::{rdma::RdmaOptions, soft::ENGINE_LOOK},
    rpc::{MAX_CALL, StartedReply},
    runtime::trace::Tracer,
    session::{address::ProviderKind, error::ConnectError},
    tls::TlsClient,
    verbs::QpCaps,
};

/// How replies to calls reach the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallsBy {
    /// The host sends each reply as a message. Usually every call wakes a thread of the host.
    Reply,
    /// Remote fetching: the client WRITEs requests to its call memory at the host and READs the
    /// replies from there. The host polls that memory while calls come, and for at most 0.1 ms
    /// after the last call. It sends messages only if a reply is slow. A host without memory for it
    /// falls back to `Reply`.
    Fetch,
    /// The host WRITEs each reply to memory of the client, which polls it (the server-reply way of
    /// the RFP paper). Requests travel as with `Fetch`. For comparisons: the host posts a request
    /// for each reply. Over shared memory that is mapped, as `Fetch`, because the host's copy
    /// reaches the client.
    Write,
    /// `Fetch` if the provider maps the host's memory, otherwise `Reply`.
    #[default]
    Auto,
}

/// The names of the [`CallsBy`] variants.
const CALLS_BY: [(CallsBy, &str); 4] = [
    (CallsBy::Reply, "reply"),
    (CallsBy::Fetch, "fetch"),
    (CallsBy::Write, "write"),
    (CallsBy::Auto, "auto"),
];

impl fmt::Display for CallsBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        CALLS_BY.iter().filter(|(by, _)| by == self).try_for_each(|(_, name)| f.pad(name))
    }
}

impl FromStr for CallsBy {
    type Err = CallsByError;

    fn from_str(text: &str) -> Result<CallsBy, CallsByError> {
        let found = CALLS_BY.iter().find(|(_, name)| *name == text);
        found.map(|(by, _)| *by).ok_or_else(|| CallsByError(text.to_owned()))
    }
}

/// Error of a string that names no [`CallsBy`] variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid way of answering calls '{0}': expected reply, fetch, write or auto")]
pub struct CallsByError(String);

impl CallsBy {
    /// Returns true if requests are written to call memory over this provider.
    pub(crate) fn fetches(self, provider: ProviderKind) -> bool {
        match self {
            CallsBy::Reply => false,
            CallsBy::Fetch | CallsBy::Write => true,
            // Over TCP two round trips cost more than one message in each direction.
            CallsBy::Auto => provider == ProviderKind::Shm,
        }
    }
}

/// Options of a session.
///
/// [`Session::builder`](crate::Session::builder) has a method for each option. Connecting checks
/// the values, and fails with [`ConnectError::InvalidOption`] for a value out of its range.
/// [Options](crate::guide#options) tells which counter shows the effect of each option.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The required provider. `None`: the provider of the address, or shared memory if a TCP
    /// address belongs to this machine. A required provider fails rather than fall back. It must be
    /// the provider of the address. `Shm` needs the path of the Unix socket. With a TCP address it
    /// fails, even if the host has a Unix socket that `None` would use. Default: `None`.
    pub provider: Option<ProviderKind>,
    /// The RDMA device, for `rdma:` addresses. Default: the first device with an active port.
    pub rdma: RdmaOptions,
    /// The key that this client proves, and that the host must prove in turn. `None`: the client
    /// proves nothing and accepts any host. Default: `None`.
    pub key: Option<Key>,
    /// Encrypts the session and verifies the server's certificate. TCP addresses only, without a
    /// switch to shared memory. `None`: no encryption; a server that requires TLS refuses the
    /// client. Default: `None`.
    pub tls: Option<TlsClient>,
    /// Number of data queue pairs, 1 to 16, each with its own completion queue. A batch of 8 work
    /// requests or more is spread over them, with a doorbell each, if the queue pairs work in
    /// parallel. Over TCP and shared memory they do not. Default: 4.
    pub queue_pairs: usize,
    /// Maximum bytes in flight, both directions together, counted in pages of 4 KiB. Requests are
    /// merged at most up to it. A single request or an ordered list that is longer goes alone, and
    /// is then the only one in flight. READs and WRITEs that wait for room take turns.
    /// At least 1. Default: 7 MiB (7,340,032).
    pub window_bytes: u64,
    /// Whose bytes in flight count for the window. Default: [`WindowScope::ByProvider`], all
    /// sessions of this process on the device over RDMA, and the session over shared memory and
    /// TCP.
    pub window_scope: WindowScope,
    /// Maximum bytes of a merged work request. Less than a page of 4 KiB counts as a page; to merge
    /// nothing, choose [`BatchMode::Single`]. Requests are not merged beyond the maximum: pieces of
    /// this length never merge. A longer request is not split. With several
    /// queue pairs it also bounds the bytes of a list of work requests: a longer run is spread over
    /// the queue pairs. Default: 1 MiB.
    pub max_merge_bytes: u64,
    /// Admission policy that replaces the fixed window of `window_bytes`. It sees every request, so
    /// it turns off [`direct`](Self::direct). Default: `None`, the fixed window.
    pub admission: Option<Arc<dyn AdmissionPolicy>>,
    /// How requests in the merge queue are combined. Default: [`BatchMode::Hybrid`].
    pub batch: BatchMode,
    /// Maximum bytes of a work request that is copied through a preMR. For a longer work request
    /// the caller's buffer is registered (dynMR). At most 1 MiB counts, the largest block of the
    /// pool. Default: [`PreMrThreshold::ByProvider`], which is 4096 bytes over shared memory and
    /// TCP, and measured over RDMA.
    pub pre_mr_threshold: PreMrThreshold,
    /// How threads wait for completions. Default: [`PollingMode::Adaptive`].
    pub polling: PollingMode,
    /// Polls without a completion before adaptive polling blocks. `None`: adapts to recent success,
    /// up to 120 as in the paper. Over TCP up to 500, because a completion takes longer there. 0:
    /// it blocks at once. Default: `None`.
    pub max_retry: Option<u32>,
    /// Maximum time that the TCP engine polls before it blocks, while that succeeds and no other
    /// thread wants its core. Waking the engine costs tens of microseconds per request; polling
    /// occupies its core. Zero: it blocks at once. Any duration is valid. No effect over other
    /// providers. No counter of the session shows it, because the engine's thread is not part of
    /// one session. Compare the latency and the CPU time of the process. Default: 400 µs.
    pub engine_look: Duration,
    /// Signals every n-th work request of a chain; the last one is always signaled. 0: only the
    /// last one. Default: 0.
    pub signal_interval: u32,
    /// Maximum bytes of a WRITE that travels inside its work request. 0: none. The limit is that of
    /// the device: 1024 over shared memory and TCP. Default: 220, or the device's limit if that is
    /// lower. Any other value above the device's limit is refused.
    pub max_inline: u32,
    /// Executes a request on the calling thread if the provider maps the host's memory. Vectored
    /// requests are still posted, and so are writes and atomics while other requests are queued. An
    /// executed request uses no queue, work request, completion or window. It is complete when the
    /// call returns. No effect over other providers. Default: true.
    pub direct: bool,
    /// Receives the outcomes of started calls
    /// ([`Session::start_call`](crate::Session::start_call)). `None`: the outcomes are dropped.
    /// Default: `None`.
    pub started_reply: Option<StartedReply>,
    /// How calls are answered. Deferred replies are always sent as messages. Default:
    /// [`CallsBy::Auto`].
    pub calls: CallsBy,
    /// Bytes of the READ that fetches a reply, including 24 bytes of framing. A longer reply takes
    /// one more READ. 24 to 65,560. No effect with mapped memory. Default: 1024.
    pub fetch_size: usize,
    /// Learns the length of the READ from the lengths of replies, and starts with
    /// [`fetch_size`](Self::fetch_size). Default: true.
    pub adapt_fetch_size: bool,
    /// Maximum duration of a request, more than zero. More than a day counts as a day, and
    /// [`Session::options`](crate::Session::options) shows it. It counts from the start of
    /// a blocking request. For a transfer it counts from the call of
    /// [`Transfer::wait`](crate::Transfer::wait), and for the waits with a limit from the first of
    /// them. After a timeout the runtime discards the request's queue pair. The memory of the
    /// requests on it is free again, and it is unknown whether they took effect. Default: 10 s.
    pub operation_timeout: Duration,
    /// Maximum duration of connecting, and of replacing a broken queue pair, more than zero. More
    /// than a day counts as a day. A session whose queue pair cannot be replaced in this time ends,
    /// also if its other queue pairs work. Default: 4 s.
    pub connect_timeout: Duration,
    /// Reports each step of each request while it is on ([`trace`](crate::trace)). Sessions with
    /// the same tracer share its numbers. Default: `None`.
    pub trace: Option<Arc<Tracer>>,
    /// Faults to inject, for tests (feature `faults`). Sessions with the same plan share its state.
    /// Default: `None`.
    #[cfg(feature = "faults")]
    pub faults: Option<Arc<crate::provider::fault::Plan>>,
    /// The modelled card whose time the requests take (feature `model`), over any provider. It
    /// turns off [`direct`](Self::direct), because a card maps no memory. Sessions with the same
    /// card share its queues and caches. Default: `None`.
    #[cfg(feature = "model")]
    pub card: Option<Arc<crate::provider::model::ModelledCard>>,
    /// Whether a poller goes on, as [`polling`](Self::polling) says, while no request is
    /// outstanding (feature `model`). In the RDMAbox paper it does: a busy poller never stops, and
    /// the others sleep until an interrupt. Otherwise it parks until a request wakes it. A queue
    /// has a poller from its first callback or awaited request on. Default: `false`.
    #[cfg(feature = "model")]
    pub standing_pollers: bool,
}

/// Maximum timeout; longer values are reduced to it.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum number of data queue pairs of a session.
const MAX_QUEUE_PAIRS: usize = 16;
/// Framing of a fetched reply in bytes: the sleep word, a head and a tail.
const FETCH_FRAMING: usize = 24;

impl SessionOptions {
    /// Checks each option that has a range.
    ///
    /// # Errors
    /// [`ConnectError::InvalidOption`] for the first value out of its range.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let fetch_sizes = FETCH_FRAMING..=FETCH_FRAMING + MAX_CALL;
        let positive = |option, timeout: Duration| match timeout.is_zero() {
            true => Err(ConnectError::option(option, "0 s", "choose more than zero")),
            false => Ok(()),
        };
        if !(1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            let expected = format!("choose 1 to {MAX_QUEUE_PAIRS}");
            return Err(ConnectError::option("queue_pairs", self.queue_pairs, expected));
        }
        if self.window_bytes == 0 {
            return Err(ConnectError::option("window_bytes", 0, "choose at least 1 byte"));
        }
        if !fetch_sizes.contains(&self.fetch_size) {
            let expected = format!("choose {} to {} bytes", fetch_sizes.start(), fetch_sizes.end());
            return Err(ConnectError::option("fetch_size", self.fetch_size, expected));
        }
        positive("operation_timeout", self.operation_timeout)?;
        positive("connect_timeout", self.connect_timeout)
    }

    /// Returns the options with timeouts that can be added to any instant.
    pub(crate) fn bounded(&self) -> SessionOptions {
        SessionOptions {
            operation_timeout: self.operation_timeout.min(MAX_TIMEOUT),
            connect_timeout: self.connect_timeout.min(MAX_TIMEOUT),
            ..self.clone()
        }
    }
}

/// Over TCP a poll is a system call, and a completion takes longer than through mapped memory.
/// This is an upper limit: a spin that ends in sleep halves the next budget.
const TCP_MAX_RETRY: u32 = 500;

/// Large enough for the replies of a service with small answers. Small against the cost of a READ
/// over TCP. Most sessions learn a better one.
const DEFAULT_FETCH_SIZE: usize = 1024;

impl SessionOptions {
    /// Returns true if requests may use the host's memory as mapped memory.
    pub(crate) fn maps_memory(&self) -> bool {
        #[cfg(feature = "model")]
        let is_modelled = self.card.is_some();
        #[cfg(not(feature = "model"))]
        let is_modelled = false;
        self.direct && !is_modelled
    }

    /// Returns true if pollers go on while no request is outstanding.
    pub(crate) fn has_standing_pollers(&self) -> bool {
        #[cfg(feature = "model")]
        let stands = self.standing_pollers;
        #[cfg(not(feature = "model"))]
        let stands = false;
        stands
    }

    /// Returns the spin budget of adaptive polling on a provider.
    pub(crate) fn retry_on(&self, provider: ProviderKind) -> Retry {
        match (self.max_retry, provider) {
            (Some(retries), _) => Retry::Fixed(retries),
            (None, ProviderKind::Shm | ProviderKind::Rdma) => Retry::Adapt { max: DEFAULT_MAX_RETRY },
            (None, ProviderKind::Tcp) => Retry::Adapt { max: TCP_MAX_RETRY },
        }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            provider: None,
            rdma: RdmaOptions::default(),
            key: None,
            tls: None,
            // The best value in the paper (section V-A).
            queue_pairs: 4,
            window_bytes: DEFAULT_WINDOW,
            window_scope: WindowScope::ByProvider,
            max_merge_bytes: DEFAULT_MAX_MERGE,
            admission: None,
            batch: BatchMode::Hybrid,
            pre_mr_threshold: PreMrThreshold::ByProvider,
            polling: PollingMode::Adaptive,
            max_retry: None,
            engine_look: ENGINE_LOOK,
            signal_interval: 0,
            max_inline: QpCaps::default().max_inline_data,
            direct: true,
            started_reply: None,
            calls: CallsBy::Auto,
            fetch_size: DEFAULT_FETCH_SIZE,
            adapt_fetch_size: true,
            operation_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(4),
            trace: None,
            #[cfg(feature = "faults")]
            faults: None,
            #[cfg(feature = "model")]
            card: None,
            #[cfg(feature = "model")]
            standing_pollers: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the message for default options with one change, or an empty string.
    fn refusal(change: impl FnOnce(&mut SessionOptions)) -> String {
        let mut options = SessionOptions::default();
        change(&mut options);
        options.check().err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn values_out_of_range_are_named_with_their_range() {
        assert_eq!(refusal(|_| {}), "");
        for count in [0, 17] {
            let expected = format!("queue_pairs = {count}: choose 1 to 16");
            assert_eq!(refusal(|options| options.queue_pairs = count), expected);
        }
        assert_eq!(refusal(|options| options.window_bytes = 0), "window_bytes = 0: choose at least 1 byte");
        for size in [0, 23, 65_561] {
            let expected = format!("fetch_size = {size}: choose 24 to 65560 bytes");
            assert_eq!(refusal(|options| options.fetch_size = size), expected);
        }
        let zero = "_timeout = 0 s: choose more than zero";
        let said = refusal(|options| options.operation_timeout = Duration::ZERO);
        assert_eq!(said, format!("operation{zero}"));
        assert_eq!(refusal(|options| options.connect_timeout = Duration::ZERO), format!("connect{zero}"));
    }

    #[test]
    fn the_ends_of_each_range_are_valid() {
        for count in [1, 16] {
            assert_eq!(refusal(|options| options.queue_pairs = count), "");
        }
        for size in [24, 65_560] {
            assert_eq!(refusal(|options| options.fetch_size = size), "");
        }
        // Without a retry it blocks at once, and with endless ones it polls forever.
        for retries in [0, u32::MAX] {
            assert_eq!(refusal(|options| options.max_retry = Some(retries)), "");
        }
        assert_eq!(refusal(|options| options.window_bytes = 1), "");
        assert_eq!(refusal(|options| options.operation_timeout = Duration::MAX), "");
        assert_eq!(refusal(|options| options.connect_timeout = Duration::from_nanos(1)), "");
    }

    #[test]
    fn names_of_call_modes_round_trip() {
        for by in [CallsBy::Reply, CallsBy::Fetch, CallsBy::Auto] {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        assert!("Fetch".parse::<CallsBy>().is_err());
    }

    #[test]
    fn replies_are_fetched_from_mapped_memory_by_default() {
        use ProviderKind::{Rdma, Shm, Tcp};
        assert_eq!([Shm, Tcp, Rdma].map(|over| CallsBy::Auto.fetches(over)), [true, false, false]);
        assert_eq!([Shm, Tcp, Rdma].map(|over| CallsBy::Fetch.fetches(over)), [true; 3]);
        assert_eq!([Shm, Tcp, Rdma].map(|over| CallsBy::Reply.fetches(over)), [false; 3]);
    }
}
