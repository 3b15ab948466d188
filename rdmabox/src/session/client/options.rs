//! Options of a session: one field for each mechanism of the runtime.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use crate::{
    admission::{AdmissionPolicy, DEFAULT_WINDOW},
    auth::Key,
    batch::BatchMode,
    memory::PreMrThreshold,
    polling::{DEFAULT_MAX_RETRY, PollingMode, Retry},
    provider::{rdma::RdmaOptions, soft::ENGINE_LOOK},
    rpc::StartedReply,
    session::address::ProviderKind,
    tls::TlsClient,
    verbs::QpCaps,
};

/// How replies to calls reach the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CallsBy {
    /// The host sends each reply as a message. Usually every call wakes a thread of the host.
    Reply,
    /// Remote fetching: the client WRITEs requests to its call memory at the host and READs the
    /// replies from there. The host polls that memory while calls come, and for at most 0.1 ms
    /// after the last call. It sends messages only if a reply is slow. A host without memory for it
    /// falls back to `Reply`.
    Fetch,
    /// `Fetch` if the provider maps the host's memory, otherwise `Reply`.
    #[default]
    Auto,
}

/// The names of the [`CallsBy`] variants.
const CALLS_BY: [(CallsBy, &str); 3] =
    [(CallsBy::Reply, "reply"), (CallsBy::Fetch, "fetch"), (CallsBy::Auto, "auto")];

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
#[error("invalid way of answering calls '{0}': expected reply, fetch or auto")]
pub struct CallsByError(String);

impl CallsBy {
    /// Returns true if replies are fetched over this provider.
    pub(crate) fn fetches(self, provider: ProviderKind) -> bool {
        match self {
            CallsBy::Reply => false,
            CallsBy::Fetch => true,
            // Over TCP two round trips cost more than one message in each direction.
            CallsBy::Auto => provider == ProviderKind::Shm,
        }
    }
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The required provider. `None`: the provider of the address, or shared memory if a TCP
    /// address belongs to this machine.
    pub provider: Option<ProviderKind>,
    /// The RDMA device, for `rdma:` addresses.
    pub rdma: RdmaOptions,
    /// The key that this client proves, and that the host must prove in turn. `None`: the client
    /// proves nothing and accepts any host.
    pub key: Option<Key>,
    /// Encrypts the session and verifies the server's certificate. TCP addresses only, without a
    /// switch to shared memory. `None`: no encryption; a server that requires TLS refuses the
    /// client.
    pub tls: Option<TlsClient>,
    /// Number of data queue pairs, 1 to 16, each with its own completion queue.
    pub queue_pairs: usize,
    /// Maximum bytes in flight, both directions together.
    pub window_bytes: u64,
    /// Admission policy that replaces the fixed window of `window_bytes`. It sees every request, so
    /// it turns off [`direct`](Self::direct).
    pub admission: Option<Arc<dyn AdmissionPolicy>>,
    /// How requests in the merge queue are combined.
    pub batch: BatchMode,
    /// Maximum bytes of a work request that is copied through pre-registered memory (preMR). For a
    /// longer work request the caller's buffer is registered (dynMR).
    pub pre_mr_threshold: PreMrThreshold,
    /// How threads wait for completions.
    pub polling: PollingMode,
    /// Polls without a completion before adaptive polling blocks. `None`: adapts to recent success,
    /// up to 120 as in the paper. Over TCP up to 500, because a completion takes longer there.
    pub max_retry: Option<u32>,
    /// Maximum time that the TCP engine polls before it blocks, while that succeeds and no other
    /// thread wants its core. Waking the engine costs tens of microseconds per request; polling
    /// occupies its core. Zero: it blocks at once. No effect over other providers.
    pub engine_look: Duration,
    /// Signals every n-th work request of a chain; the last one is always signaled. 0: only the
    /// last one.
    pub signal_interval: u32,
    /// Maximum bytes of a WRITE that travels inside its work request. 0: none. The default is cut
    /// to the device's limit; any other value above that limit is refused.
    pub max_inline: u32,
    /// Executes a request on the calling thread if the provider maps the host's memory and the
    /// request is the only one of its caller. Such a request uses no queue, work request,
    /// completion or window. It is complete when the call returns. No effect over other providers.
    pub direct: bool,
    /// Receives the outcomes of started calls
    /// ([`Session::start_call`](crate::Session::start_call)). `None`: the outcomes are dropped.
    pub started_reply: Option<StartedReply>,
    /// How calls are answered. Deferred replies are always sent as messages.
    pub calls: CallsBy,
    /// Bytes of the READ that fetches a reply, including 24 bytes of framing. A longer reply takes
    /// one more READ. No effect with mapped memory.
    pub fetch_size: usize,
    /// Maximum duration of a request, at most a day. After a timeout the runtime discards the
    /// request's queue pair. The memory of the requests on it is free again, and it is unknown
    /// whether they took effect.
    pub operation_timeout: Duration,
    /// Maximum duration of connecting, at most a day.
    pub connect_timeout: Duration,
    /// Faults to inject, for tests. Sessions with the same plan share its state.
    #[cfg(feature = "faults")]
    pub faults: Option<Arc<crate::provider::fault::Plan>>,
}

/// Maximum timeout; longer values are reduced to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

impl SessionOptions {
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
/// over TCP.
const DEFAULT_FETCH_SIZE: usize = 1024;

impl SessionOptions {
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
            admission: None,
            batch: BatchMode::Hybrid,
            // On the software device, registering costs about as much as copying this many bytes.
            pre_mr_threshold: PreMrThreshold::Bytes(4096),
            polling: PollingMode::Adaptive,
            max_retry: None,
            engine_look: ENGINE_LOOK,
            signal_interval: 0,
            max_inline: QpCaps::default().max_inline_data,
            direct: true,
            started_reply: None,
            calls: CallsBy::Auto,
            fetch_size: DEFAULT_FETCH_SIZE,
            operation_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(4),
            #[cfg(feature = "faults")]
            faults: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
