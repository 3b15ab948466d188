//! What a session can be told. Every mechanism of the runtime has its switch here.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use super::{Key, ProviderKind, RdmaOptions};
use crate::{
    admission::{AdmissionPolicy, DEFAULT_WINDOW},
    batch::BatchMode,
    memory::PreMrThreshold,
    polling::{DEFAULT_MAX_RETRY, PollingMode, Retry},
    provider::soft::ENGINE_LOOK,
    rpc::StartedReply,
    tls::TlsClient,
    verbs::QpCaps,
};

/// How the answers to calls reach the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CallsBy {
    /// The host sends them. A thread of it is woken for each call, as a rule.
    Reply,
    /// The client WRITEs its requests into memory of its own at the host and READs the answers from there: the host sends
    /// nothing as long as it is quick. While calls come it looks for them, for a tenth of a millisecond at most after the last
    /// one. A host that has no memory for it sends them.
    Fetch,
    /// `Fetch` where the provider maps the host's memory, and `Reply` elsewhere.
    #[default]
    Auto,
}

/// The names of [`CallsBy`].
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

/// No way of answering calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no way of answering calls: choose reply, fetch or auto")]
pub struct CallsByError(String);

impl CallsBy {
    /// True if the answers are to be fetched over such a provider.
    pub(crate) fn fetches(self, provider: ProviderKind) -> bool {
        match self {
            CallsBy::Reply => false,
            CallsBy::Fetch => true,
            // Over TCP two round trips cost more than a message each way: with four threads a third fewer calls a second.
            CallsBy::Auto => provider == ProviderKind::Shm,
        }
    }
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The provider to use; failing rather than taking another one. `None`: that of the address; for a TCP address of the same
    /// host shared memory.
    pub provider: Option<ProviderKind>,
    /// The RDMA device, for addresses of RDMA.
    pub rdma: RdmaOptions,
    /// The key that this client proves to have, and that the host has to prove to have. `None`: it has none, and takes any host.
    pub key: Option<Key>,
    /// The server is to prove itself by a certificate, and everything is encrypted: for addresses of TCP, and no other way is taken.
    /// `None`: nothing is, and a server that wants TLS refuses.
    pub tls: Option<TlsClient>,
    /// Data queue pairs, 1 to 16, each with its own completion queue.
    pub queue_pairs: usize,
    /// Bytes that may be in flight, both directions together.
    pub window_bytes: u64,
    /// Who decides what may be in flight, instead of a fixed window of `window_bytes`. It is asked for every request, so
    /// that none is carried out on the spot (see [`direct`](Self::direct)).
    pub admission: Option<Arc<dyn AdmissionPolicy>>,
    /// How requests that gather in the merge queue are combined.
    pub batch: BatchMode,
    /// A work request of at most so many bytes is copied through pre-registered memory (preMR); for a longer one the
    /// caller's buffer is registered (dynMR).
    pub pre_mr_threshold: PreMrThreshold,
    /// How completions are waited for.
    pub polling: PollingMode,
    /// Polls that find nothing before adaptive polling goes to sleep. `None`: as many as have paid off lately, at most 120
    /// as in the paper, and 500 over TCP, where a poll is a system call and a completion takes the longer way.
    pub max_retry: Option<u32>,
    /// For how long the thread that moves the data of TCP, and on which nobody waits, looks for more before it sleeps; as long as that pays, and
    /// while nobody else wants its core. To wake it costs tens of microseconds of each request; to look costs its core. Nothing: it sleeps at
    /// once. No effect over other providers.
    pub engine_look: Duration,
    /// Every so many-th work request of a chain asks for a completion, as the last one always does. 0: the last one only.
    pub signal_interval: u32,
    /// A single WRITE of at most so many bytes travels in its work request. 0: none does. The default is cut to what the
    /// device allows; anything else that is more is refused.
    pub max_inline: u32,
    /// Where the provider maps the host's memory, a request that its caller makes alone is carried out by the caller, on
    /// the spot and from its own memory: without a queue, a work request or a completion, and outside of the window, as
    /// nothing of it is under way when the call returns. No effect over other providers.
    pub direct: bool,
    /// Gets the outcomes of started calls ([`Session::start_call`](crate::Session::start_call)). `None`: nobody does.
    pub started_reply: Option<StartedReply>,
    /// How calls are answered. Late replies, and those to calls that wait for them, are always sent.
    pub calls: CallsBy,
    /// Bytes of the READ that fetches an answer: of an answer's 24 bytes of framing and the reply. A longer one takes one more
    /// READ. No effect where memory is mapped.
    pub fetch_size: usize,
    /// No request takes longer. When it is over the request's queue pair is given up: the memory of the requests on it is
    /// free again, and whether they took effect is unknown. At most a day.
    pub operation_timeout: Duration,
    /// Connecting takes no longer, apart from looking up a host name. At most a day.
    pub connect_timeout: Duration,
    /// What goes wrong on the way, in tests. Sessions with the same plan go on with it.
    #[cfg(feature = "faults")]
    pub faults: Option<Arc<crate::provider::fault::Plan>>,
}

/// Longest timeout: a longer one is taken for this.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

impl SessionOptions {
    /// With timeouts that can be added to any time.
    pub(crate) fn bounded(&self) -> SessionOptions {
        SessionOptions {
            operation_timeout: self.operation_timeout.min(MAX_TIMEOUT),
            connect_timeout: self.connect_timeout.min(MAX_TIMEOUT),
            ..self.clone()
        }
    }
}

/// Over TCP, where 120 gave 0.95 of busy polling's throughput to one thread, and this 0.99. It is what may be learnt: a
/// spin that ends with sleep halves what the next one takes.
const TCP_MAX_RETRY: u32 = 500;

/// The replies of a service with small answers fit, and it is little next to what a READ costs over TCP.
const DEFAULT_FETCH_SIZE: usize = 1024;

impl SessionOptions {
    /// The budget of adaptive polling on a provider.
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
            // Best in the paper (section V-A).
            queue_pairs: 4,
            window_bytes: DEFAULT_WINDOW,
            admission: None,
            batch: BatchMode::Hybrid,
            // Measured on the software device: registering costs about as much as copying so many bytes.
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
    fn ways_of_answering_calls_have_names() {
        for by in [CallsBy::Reply, CallsBy::Fetch, CallsBy::Auto] {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        assert!("Fetch".parse::<CallsBy>().is_err());
    }

    #[test]
    fn answers_are_fetched_where_memory_is_mapped() {
        use ProviderKind::{Rdma, Shm, Tcp};
        assert_eq!([Shm, Tcp, Rdma].map(|over| CallsBy::Auto.fetches(over)), [true, false, false]);
        assert_eq!([Shm, Tcp, Rdma].map(|over| CallsBy::Fetch.fetches(over)), [true; 3]);
        assert_eq!([Shm, Tcp, Rdma].map(|over| CallsBy::Reply.fetches(over)), [false; 3]);
    }
}
