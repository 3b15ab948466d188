//! Establishes a session: handshake, queue pairs, runtime.
//!
//! [`greet_best`] opens the control stream and runs the handshake. It probes a TCP address first,
//! and prefers the host's Unix socket if the host is this machine. [`establish`] then connects
//! the queue pairs and builds the shared parts of
//! the [`Session`](super::Session).
//!
//! # Concurrency
//! Runs on the connecting thread, without locks. Every step ends by the caller's deadline.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    deferred_qp::DeferredReplyQp,
    options::{CallsBy, SessionOptions},
    qp_connector::{QpConnector, handshake_failed},
    session::Shared,
};
#[cfg(feature = "faults")]
use crate::provider::fault::FaultDevice;
#[cfg(feature = "model")]
use crate::provider::model::ModelDevice;
use crate::{
    admission::{Admission, AdmissionPolicy, DeviceBytes, DeviceKey, StaticWindow},
    auth::{Key, Secret},
    mapping::Memory,
    memory::{self, PreMrPool, RegistrationCache, RegistrationLimits},
    polling::{PollingMode, Retry},
    provider::{rdma, soft::SoftDevice},
    rpc::{FetchClient, FetchSize, QUEUE_DEPTH, ReplyMemory, RpcClient},
    runtime::{Link, Runtime, RuntimeInit},
    session::{
        address::{Address, ProviderKind},
        error::ConnectError,
        fetch_qp::{FetchLane, FetchLaneInit},
        handshake::{self, Answer, Purpose, Token},
        lease::Renewal,
        stream::Stream,
    },
    stats::Stats,
    verbs::{
        Access, CompletionQueue, Device, MrHandle, Progress, QpCaps, QpInit, QueuePair, RemoteAddr,
        VerbsError,
    },
};

/// Bytes of a session's pre-registered pool, and of its largest block.
const POOL_BYTES: usize = 8 << 20;
const POOL_BLOCK: usize = 1 << 20;

/// The runtime's way to replace a queue pair and to end the session.
#[derive(Debug)]
struct SessionLink {
    control: Arc<Stream>,
    connector: Arc<QpConnector>,
    caps: QpCaps,
}

impl Link for SessionLink {
    fn is_gone(&self) -> bool {
        self.control.is_over()
    }

    fn rejoin(
        &self,
        lane: usize,
        cq: &Arc<dyn CompletionQueue>,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        let joined = self.connector.queue_pair(qp_index(lane), Arc::clone(cq), self.caps, deadline);
        joined.map_err(|e| e.to_string())
    }

    fn hang_up(&self) {
        self.control.shutdown();
    }
}

/// Returns the queue pair index of a data lane. Index 0 is for calls.
fn qp_index(lane: usize) -> usize {
    lane + 1
}

/// A control stream, and the host's answer to its handshake.
pub(crate) struct Greeting {
    address: Address,
    control: Stream,
    answer: Answer,
    /// Set if client and host proved a key to each other.
    secret: Option<Secret>,
    fallback: Option<String>,
}

/// Establishes the session of a completed handshake.
pub(crate) fn establish(
    greeting: Greeting,
    (requested, options): (&Address, &SessionOptions),
    deadline: Instant,
) -> Result<Shared, ConnectError> {
    let Greeting { address, mut control, answer, secret, fallback } = greeting;
    let setup = Setup::new(&address, options, deadline, (answer.token, secret))?;
    let provider = setup.connector.provider();
    let rpc = setup.connect_calls()?;
    let caps = setup.data_caps()?;
    let (cqs, lanes) = setup.connect_lanes(caps)?;
    let fetch =
        answer.fetch.map(|base| -> Result<_, ConnectError> { Ok((base, setup.connect_fetch(caps)?)) });
    let fetch = fetch.transpose()?;

    let ready = handshake::receive_answer(&mut control, deadline)
        .map_err(|source| handshake_failed(&address, options.connect_timeout, source))?;
    if !ready.ok {
        return Err(ConnectError::Refused { address: address.clone(), reason: ready.text });
    }
    let io = |source| ConnectError::Io { address: address.clone(), source };
    control.set_timeout(None).map_err(io)?;

    let pool = setup.pool()?;
    let control = Arc::new(control);
    let fetch = fetch.map(|(base, joined)| setup.fetch_client(base, joined, &control)).transpose()?;
    let rpc = rpc.fetching(fetch);
    let renewal = answer.lease.map(|lease| Renewal::start(&control, lease)).transpose().map_err(io)?;
    let deferred_qp = DeferredReplyQp {
        device: Arc::clone(&setup.device),
        connector: Arc::clone(&setup.connector),
        // The index after the last data queue pair.
        index: qp_index(options.queue_pairs),
        timeout: options.connect_timeout,
    };
    let link = SessionLink { control: Arc::clone(&control), connector: Arc::clone(&setup.connector), caps };
    let stats = Arc::clone(&setup.stats);
    let atomic_ops = setup.device.attr().atomic_ops;
    let runtime = setup.runtime(link, (cqs, lanes), pool);
    let tls = options.tls.is_some();
    Ok(Shared {
        address,
        provider,
        tls,
        fallback,
        atomics: answer.atomics,
        atomic_ops,
        runtime,
        rpc: Arc::new(rpc),
        deferred_qp,
        stats,
        control,
        _renewal: renewal,
        requested: requested.clone(),
        options: options.clone(),
    })
}

/// A connected queue pair and its completion queue.
type Joined = (Arc<dyn QueuePair>, Arc<dyn CompletionQueue>);

/// Completion queues, and the data queue pairs that complete on them.
type Lanes = (Vec<Arc<dyn CompletionQueue>>, Vec<Arc<dyn QueuePair>>);

/// The pre-registered pool of a session.
struct StagingPool {
    pool: Arc<PreMrPool>,
    mr: MrHandle,
    /// Maximum bytes of a work request that is copied through the pool.
    threshold: u64,
}

/// The shared parameters of the steps that establish a session.
struct Setup<'a> {
    address: &'a Address,
    options: &'a SessionOptions,
    deadline: Instant,
    device: Arc<dyn Device>,
    connector: Arc<QpConnector>,
    stats: Arc<Stats>,
}

impl<'a> Setup<'a> {
    /// Opens the device, and prepares connecting the queue pairs of the session of `token`.
    fn new(
        address: &'a Address,
        options: &'a SessionOptions,
        deadline: Instant,
        (token, secret): (Token, Option<Secret>),
    ) -> Result<Setup<'a>, ConnectError> {
        let failed = |source| ConnectError::Device { address: address.clone(), source };
        let device: Arc<dyn Device> = match address.provider() {
            ProviderKind::Shm | ProviderKind::Tcp => {
                let device = SoftDevice::new().map_err(failed)?;
                device.engine_look(options.engine_look);
                device
            }
            ProviderKind::Rdma => rdma::open(&options.rdma)
                .map_err(|source| ConnectError::Rdma { address: address.clone(), source })?,
        };
        #[cfg(feature = "model")]
        let device: Arc<dyn Device> = match &options.card {
            Some(card) => Arc::new(ModelDevice::new(device, Arc::clone(card))),
            None => device,
        };
        #[cfg(feature = "faults")]
        let device: Arc<dyn Device> = match &options.faults {
            Some(plan) => Arc::new(FaultDevice::new(device, Arc::clone(plan))),
            None => device,
        };
        let connector = Arc::new(QpConnector {
            address: address.clone(),
            token,
            secret,
            tls: options.tls.clone(),
            pd: device.alloc_pd().map_err(failed)?,
            timeout: options.connect_timeout,
        });
        Ok(Setup { address, options, deadline, device, connector, stats: Arc::new(Stats::default()) })
    }

    fn failed(&self, source: VerbsError) -> ConnectError {
        ConnectError::Device { address: self.address.clone(), source }
    }

    /// Returns how callers wait for replies, and for how long they spin.
    fn call_polling(&self) -> (PollingMode, Retry) {
        // Only callers poll the completion queue of calls, so shared-queue polling does not apply
        // to it.
        let mode = match self.options.polling.shared_queues() {
            Some(_) => PollingMode::Adaptive,
            None => self.options.polling,
        };
        (mode, self.options.retry_on(self.connector.provider()))
    }

    /// Connects the queue pair for calls. Callers wait for their own replies.
    fn connect_calls(&self) -> Result<RpcClient, ConnectError> {
        let failed = |e: VerbsError| self.failed(e);
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let caps = caps.within(self.device.attr());
        let cq = self.device.create_cq(2 * QUEUE_DEPTH as usize).map_err(failed)?;
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let init = QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: false };
        let qp = self.connector.pd.create_qp(init).map_err(failed)?;
        let rpc = RpcClient::new(
            &*self.connector.pd,
            Arc::clone(&qp),
            cq,
            self.call_polling(),
            self.options.started_reply.clone(),
            Arc::clone(&self.stats),
            self.options.operation_timeout,
        )
        .map_err(failed)?;
        self.connector.connect(&*qp, 0, self.deadline)?;
        Ok(rpc)
    }

    /// Returns the capabilities of data queue pairs.
    ///
    /// # Errors
    /// [`ConnectError::InvalidOption`] if `max_inline` is more than the device has.
    fn data_caps(&self) -> Result<QpCaps, ConnectError> {
        let mut caps = QpCaps { max_recv_wr: 1, ..QpCaps::default() }.within(self.device.attr());
        if self.options.max_inline != QpCaps::default().max_inline_data {
            // An explicitly requested size is an error if the device has less.
            let limit = self.device.attr().max_inline_data;
            if self.options.max_inline > limit {
                let expected = format!("choose 0 to {limit} bytes, the limit of the device");
                return Err(ConnectError::option("max_inline", self.options.max_inline, expected));
            }
            caps.max_inline_data = self.options.max_inline;
        }
        Ok(caps)
    }

    /// Connects the data queue pairs.
    fn connect_lanes(&self, caps: QpCaps) -> Result<Lanes, ConnectError> {
        let count = self.options.queue_pairs;
        let queues = self.options.polling.shared_queues().unwrap_or(count).min(count);
        let depth = queue_depth(caps) * count.div_ceil(queues);
        let cqs: Vec<_> = (0..queues)
            .map(|_| self.device.create_cq(depth))
            .collect::<Result<_, _>>()
            .map_err(|e| self.failed(e))?;
        let lanes = (0..count)
            .map(|lane| {
                let cq = Arc::clone(&cqs[lane % queues]);
                self.connector.queue_pair(qp_index(lane), cq, caps, self.deadline)
            })
            .collect::<Result<_, _>>()?;
        Ok((cqs, lanes))
    }

    /// Connects the queue pair for remote fetching.
    fn connect_fetch(&self, caps: QpCaps) -> Result<Joined, ConnectError> {
        // The index after the queue pair for deferred replies.
        let index = qp_index(self.options.queue_pairs) + 1;
        let cq = self.device.create_cq(queue_depth(caps)).map_err(|e| self.failed(e))?;
        let qp = match self.options.calls {
            // WRITEs of the host arrive while no thread polls for completions.
            CallsBy::Write => {
                let (progress, cq) = (Progress::Engine, Arc::clone(&cq));
                self.connector.queue_pair_moved_by(progress, index, cq, caps, self.deadline)?
            }
            _ => self.connector.queue_pair(index, Arc::clone(&cq), caps, self.deadline)?,
        };
        Ok((qp, cq))
    }

    /// Allocates and registers the pre-registered pool.
    fn pool(&self) -> Result<StagingPool, ConnectError> {
        let memory = Memory::private(POOL_BYTES)
            .map_err(|source| ConnectError::Memory { address: self.address.clone(), source })?;
        let memory = Arc::new(memory);
        let mr = self.connector.pd.register(&memory, 0, POOL_BYTES as u64, Access::LOCAL_WRITE);
        let mr = mr.map_err(|e| self.failed(e))?;
        let pool = PreMrPool::new(memory, POOL_BLOCK);
        let is_card = self.connector.provider() == ProviderKind::Rdma;
        let card = is_card.then_some(self.device.attr().name.as_str());
        let measure = || {
            #[cfg(feature = "model")]
            if let Some(card) = &self.options.card {
                return card.pre_mr_threshold();
            }
            memory::calibrate(&*self.connector.pd, &pool)
        };
        let threshold = self.options.pre_mr_threshold.in_force(card, measure);
        Ok(StagingPool { pool, mr, threshold })
    }

    /// Creates the client of remote fetching, for call memory at `base`.
    fn fetch_client(
        &self,
        base: RemoteAddr,
        (qp, cq): Joined,
        control: &Arc<Stream>,
    ) -> Result<FetchClient, ConnectError> {
        let lane = FetchLane::new(FetchLaneInit {
            device: &*self.device,
            pd: Arc::clone(&self.connector.pd),
            qp,
            cq,
            control: Arc::clone(control),
            polling: self.call_polling(),
            timeout: self.options.operation_timeout,
        });
        let lane = lane.map_err(|e| self.failed(e))?;
        let maps = self.connector.provider() == ProviderKind::Shm && self.options.maps_memory();
        let fetch_size = FetchSize::new(self.options.fetch_size, !self.options.adapt_fetch_size);
        let client = FetchClient::new(Box::new(lane), base, fetch_size, maps);
        if maps || self.options.calls != CallsBy::Write {
            return Ok(client);
        }
        let replies = ReplyMemory::new(&*self.connector.pd).map_err(|e| self.failed(e))?;
        client
            .write_replies_to(replies)
            .map_err(|e| self.failed(VerbsError::os("reply memory", std::io::Error::other(e.to_string()))))
    }

    /// Creates the counter of bytes in flight.
    fn admission(&self) -> Admission {
        let policy = self.options.admission.clone();
        let window: Arc<dyn AdmissionPolicy> =
            policy.unwrap_or_else(|| Arc::new(StaticWindow::new(self.options.window_bytes)));
        let (key, has_card) = self.device_key();
        if self.options.window_scope.is_device(has_card) {
            Admission::on_device(window, DeviceBytes::of(key))
        } else {
            Admission::new(window)
        }
    }

    /// Identifies the device. Returns true as well if it is a card, or the model of one.
    fn device_key(&self) -> (DeviceKey, bool) {
        #[cfg(feature = "model")]
        if let Some(card) = &self.options.card {
            return (DeviceKey::Card(Arc::as_ptr(card).addr()), true);
        }
        match self.connector.provider() {
            ProviderKind::Rdma => (DeviceKey::Named(self.device.attr().name.clone()), true),
            software => (DeviceKey::Named(format!("the software device of {software}")), false),
        }
    }

    /// Creates the runtime of the session's data requests.
    fn runtime(self, link: SessionLink, (cqs, lanes): Lanes, staging: StagingPool) -> Arc<Runtime> {
        let options = self.options;
        let pd = &self.connector.pd;
        let admission = self.admission();
        let registrations = RegistrationCache::new(Arc::clone(pd), RegistrationLimits::default());
        Runtime::new(RuntimeInit {
            pd: Arc::clone(pd),
            cqs,
            lanes,
            link: Box::new(link),
            pool: staging.pool,
            pool_mr: staging.mr,
            registrations: Arc::new(registrations),
            admission,
            stats: self.stats,
            batch: options.batch,
            stage_threshold: staging.threshold,
            signal_interval: options.signal_interval,
            max_msg_sz: self.device.attr().max_msg_sz,
            max_merge: options.max_merge_bytes,
            polling: options.polling,
            // An admission policy must see every request, so nothing may bypass it.
            direct: options.direct && options.admission.is_none(),
            retry: options.retry_on(self.connector.provider()),
            standing_pollers: options.has_standing_pollers(),
            timeout: options.operation_timeout,
            mend_timeout: options.connect_timeout,
            tracer: options.trace.clone(),
        })
    }
}

/// Returns the depth of a completion queue for one data queue pair. It is twice the maximum
/// outstanding, because completions of a replaced queue pair may still be queued.
fn queue_depth(caps: QpCaps) -> usize {
    2 * (caps.max_send_wr + caps.max_recv_wr + 1) as usize
}

fn time_left(deadline: Instant, address: &Address, timeout: Duration) -> Result<Duration, ConnectError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ConnectError::Timeout { address: address.clone(), timeout }) } else { Ok(left) }
}

/// Opens a stream and runs the handshake on it. Returns the stream, the host's answer, and the
/// session's secret if a key was proved.
fn ask(
    address: &Address,
    purpose: Purpose,
    key: Option<&Key>,
    options: &SessionOptions,
    trusts: TrustedOwners,
    deadline: Instant,
) -> Result<(Stream, Answer, Option<Secret>), ConnectError> {
    let mut stream = Stream::connect(address, options.tls.as_ref(), options.connect_timeout, deadline)?;
    if trusts == TrustedOwners::Own && !stream.is_of_same_user() {
        let reason = "its socket belongs to another user: name the socket itself to trust that user".into();
        return Err(ConnectError::Authentication { address: address.clone(), reason, source: None });
    }
    let left = time_left(deadline, address, options.connect_timeout)?;
    let failed = |source| handshake_failed(address, options.connect_timeout, source);
    stream.set_timeout(Some(left)).map_err(failed)?;
    let (answer, secret) = handshake::introduce(&mut stream, purpose, key, deadline).map_err(failed)?;
    if !answer.ok {
        let (address, reason) = (address.clone(), answer.text);
        return Err(match answer.denied {
            true => ConnectError::Authentication { address, reason, source: None },
            false => ConnectError::Refused { address, reason },
        });
    }
    Ok((stream, answer, secret))
}

/// The socket owners that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrustedOwners {
    /// Any owner: the user named the address.
    All,
    /// Root or this process's user: the address came from the peer.
    Own,
}

fn greet(
    address: &Address,
    options: &SessionOptions,
    trusts: TrustedOwners,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    let fetch = options.calls.fetches(address.provider());
    let (queue_pairs, key) = (options.queue_pairs as u32, options.key.as_ref());
    let purpose = Purpose::Control { queue_pairs, fetch, key: key.map(|key| key.id) };
    let (control, answer, secret) = ask(address, purpose, key, options, trusts, deadline)?;
    Ok(Greeting { address: address.clone(), control, answer, secret, fallback: None })
}

/// Runs the handshake with the host. If a TCP address belongs to this machine, prefers the host's
/// Unix socket.
pub(crate) fn greet_best(
    address: &Address,
    options: &SessionOptions,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    // A client that requires TLS must stay on TCP.
    if !matches!(address, Address::Tcp { .. }) || options.provider.is_some() || options.tls.is_some() {
        return greet(address, options, TrustedOwners::All, deadline);
    }
    let (_, answer, _) = ask(address, Purpose::Probe, None, options, TrustedOwners::All, deadline)?;
    let here = handshake::host_id();
    if answer.host != here || here == handshake::HostId::default() {
        return greet(address, options, TrustedOwners::All, deadline);
    }
    let fallback = if answer.text.is_empty() {
        "the server has no Unix socket".to_string()
    } else {
        let local = Address::Unix(answer.text.into());
        match greet(&local, options, TrustedOwners::Own, deadline) {
            Ok(greeting) => {
                log::debug!("{address} is this host: using {local}");
                return Ok(greeting);
            }
            Err(e) => e.to_string(),
        }
    };
    log::warn!("{address} is this host, but its memory cannot be shared ({fallback}): using TCP");
    Ok(Greeting { fallback: Some(fallback), ..greet(address, options, TrustedOwners::All, deadline)? })
}
