//! Making a session: the greeting, the queue pairs, and the runtime on top of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Address, ConnectError, Key, ProviderKind, Secret, Session, SessionOptions,
    fetching::{FetchLane, FetchLaneInit},
    handshake::{self, Answer, Purpose},
    late::LatePlace,
    lease::Renewal,
    rejoin::Rejoin,
    stream::Stream,
};
#[cfg(feature = "faults")]
use crate::provider::fault::FaultDevice;
use crate::{
    admission::{Admission, AdmissionPolicy, StaticWindow},
    memory::{self, Memory, PreMrPool, PreMrThreshold, RegistrationCache, RegistrationLimits},
    polling::PollingMode,
    provider::{rdma, soft::SoftDevice},
    rpc::{FetchClient, QUEUE_DEPTH, RpcClient},
    runtime::{Link, Runtime, RuntimeInit},
    stats::Stats,
    verbs::{Access, CompletionQueue, Device, Progress, QpCaps, QpInit, QueuePair, VerbsError},
};

/// Bytes of pre-registered memory of a session, and the largest piece of it.
const POOL_BYTES: usize = 8 << 20;
const POOL_BLOCK: usize = 1 << 20;

/// What a runtime needs of its session to replace a queue pair.
#[derive(Debug)]
struct SessionLink {
    control: Arc<Stream>,
    rejoin: Arc<Rejoin>,
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
        let joined = self.rejoin.queue_pair(place_of(lane), Arc::clone(cq), self.caps, deadline);
        joined.map_err(|e| e.to_string())
    }

    fn hang_up(&self) {
        self.control.shutdown();
    }
}

/// The place of a data lane in its session: place 0 is for calls.
fn place_of(lane: usize) -> usize {
    lane + 1
}

/// A control stream, and what the host said on it.
pub(super) struct Greeting {
    address: Address,
    control: Stream,
    answer: Answer,
    /// If the two have proved to each other who they are.
    secret: Option<Secret>,
    fallback: Option<String>,
}

/// Makes the session that a greeting promised.
pub(super) fn establish(
    greeting: Greeting,
    options: &SessionOptions,
    deadline: Instant,
) -> Result<Session, ConnectError> {
    let Greeting { address, mut control, answer, secret, fallback } = greeting;
    let failed = |e: VerbsError| ConnectError::Refused { address: address.clone(), reason: e.to_string() };
    let device: Arc<dyn Device> = match address.provider() {
        ProviderKind::Shm | ProviderKind::Tcp => {
            let device = SoftDevice::new().map_err(failed)?;
            device.engine_look(options.engine_look);
            device
        }
        ProviderKind::Rdma => rdma::open(&options.rdma)
            .map_err(|e| ConnectError::Refused { address: address.clone(), reason: e.to_string() })?,
    };
    #[cfg(feature = "faults")]
    let device = match &options.faults {
        Some(plan) => Arc::new(FaultDevice::new(device, Arc::clone(plan))),
        None => device,
    };
    let attr = device.attr();
    let pd = device.alloc_pd().map_err(failed)?;
    let rejoin = Arc::new(Rejoin {
        address: address.clone(),
        token: answer.token,
        secret,
        tls: options.tls.clone(),
        pd: Arc::clone(&pd),
        timeout: options.connect_timeout,
    });
    let provider = rejoin.provider();
    let stats = Arc::new(Stats::default());

    // Calls: the replies are waited for by the callers themselves.
    let caps =
        QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() }.within(attr);
    let cq = device.create_cq(2 * QUEUE_DEPTH as usize).map_err(failed)?;
    let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
    let init = QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: false };
    let qp = pd.create_qp(init).map_err(failed)?;
    // The queue of calls is nobody else's: who waits for a reply polls.
    let calls =
        if options.polling.shared_queues().is_some() { PollingMode::Adaptive } else { options.polling };
    let retry = options.retry_on(provider);
    let rpc = RpcClient::new(
        &*pd,
        Arc::clone(&qp),
        cq,
        (calls, retry),
        options.started_reply.clone(),
        Arc::clone(&stats),
        options.operation_timeout,
    )
    .map_err(failed)?;
    rejoin.connect(&*qp, 0, deadline)?;

    let mut caps = QpCaps { max_recv_wr: 1, ..QpCaps::default() }.within(attr);
    if options.max_inline != QpCaps::default().max_inline_data {
        // Asked for, so that it is an error if the device has less.
        caps.max_inline_data = options.max_inline;
    }
    let queues = options.polling.shared_queues().unwrap_or(options.queue_pairs).min(options.queue_pairs);
    // Twice what can be outstanding: what is left of a queue pair that was replaced may be there, too.
    let depth = 2 * (caps.max_send_wr + caps.max_recv_wr + 1) as usize;
    let depth = depth * options.queue_pairs.div_ceil(queues);
    let cqs: Vec<_> =
        (0..queues).map(|_| device.create_cq(depth)).collect::<Result<_, _>>().map_err(failed)?;
    let lanes = (0..options.queue_pairs)
        .map(|lane| rejoin.queue_pair(place_of(lane), Arc::clone(&cqs[lane % queues]), caps, deadline))
        .collect::<Result<Vec<_>, _>>()?;

    let io = |source| ConnectError::Io { address: address.clone(), source };
    // Behind the place for late replies.
    let place = place_of(options.queue_pairs) + 1;
    let fetch = answer.fetch.map(|base| -> Result<_, ConnectError> {
        let cq = device.create_cq(2 * (caps.max_send_wr + caps.max_recv_wr + 1) as usize).map_err(failed)?;
        let qp = rejoin.queue_pair(place, Arc::clone(&cq), caps, deadline)?;
        Ok((base, qp, cq))
    });
    let fetch = fetch.transpose()?;

    let ready = handshake::receive_answer(&mut control, deadline)
        .map_err(|source| self::failed(&address, options.connect_timeout, source))?;
    if !ready.ok {
        return Err(ConnectError::Refused { address: address.clone(), reason: ready.text });
    }
    control.set_timeout(None).map_err(io)?;

    let memory_failed = |e: memory::MemoryError| ConnectError::Refused {
        address: address.clone(),
        reason: format!("no memory for buffers: {e}"),
    };
    let pool_memory = Arc::new(Memory::private(POOL_BYTES).map_err(memory_failed)?);
    let pool_mr = pd.register(&pool_memory, 0, POOL_BYTES as u64, Access::LOCAL_WRITE).map_err(failed)?;
    let pool = PreMrPool::new(pool_memory, POOL_BLOCK);
    let stage_threshold = match options.pre_mr_threshold {
        PreMrThreshold::Bytes(bytes) => bytes,
        PreMrThreshold::Auto => memory::calibrate(&*pd, &pool),
    };
    let late = LatePlace {
        device: Arc::clone(&device),
        rejoin: Arc::clone(&rejoin),
        // Behind the last lane.
        index: place_of(options.queue_pairs),
        timeout: options.connect_timeout,
    };
    let control = Arc::new(control);
    let fetch = fetch.map(|(base, qp, cq)| -> Result<_, VerbsError> {
        let lane = FetchLane::new(FetchLaneInit {
            device: &*device,
            pd: Arc::clone(&pd),
            qp,
            cq,
            control: Arc::clone(&control),
            polling: (calls, retry),
            timeout: options.operation_timeout,
        })?;
        let maps = provider == ProviderKind::Shm && options.direct;
        Ok(FetchClient::new(Box::new(lane), base, options.fetch_size, maps))
    });
    let rpc = rpc.fetching(fetch.transpose().map_err(failed)?);
    let renewal = answer.lease.map(|lease| Renewal::start(&control, lease)).transpose().map_err(io)?;
    let policy = options.admission.clone();
    let window: Arc<dyn AdmissionPolicy> =
        policy.unwrap_or_else(|| Arc::new(StaticWindow::new(options.window_bytes)));
    let registrations = RegistrationCache::new(Arc::clone(&pd), RegistrationLimits::default());
    let runtime = Runtime::new(RuntimeInit {
        pd,
        cqs,
        lanes,
        link: Box::new(SessionLink { control: Arc::clone(&control), rejoin, caps }),
        pool,
        pool_mr,
        registrations: Arc::new(registrations),
        admission: Admission::new(window),
        stats: Arc::clone(&stats),
        batch: options.batch,
        stage_threshold,
        signal_interval: options.signal_interval,
        max_msg_sz: attr.max_msg_sz,
        polling: options.polling,
        // A policy is asked for every request.
        direct: options.direct && options.admission.is_none(),
        retry,
        timeout: options.operation_timeout,
        mend_timeout: options.connect_timeout,
    });
    let tls = options.tls.is_some();
    Ok(Session { address, provider, tls, fallback, runtime, rpc, late, stats, control, _renewal: renewal })
}

fn time_left(deadline: Instant, address: &Address, timeout: Duration) -> Result<Duration, ConnectError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ConnectError::Timeout { address: address.clone(), timeout }) } else { Ok(left) }
}

/// An error of the handshake.
fn failed(address: &Address, timeout: Duration, source: std::io::Error) -> ConnectError {
    match source.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            ConnectError::Timeout { address: address.clone(), timeout }
        }
        std::io::ErrorKind::UnexpectedEof => ConnectError::Refused {
            address: address.clone(),
            reason: "the server closed the connection".into(),
        },
        std::io::ErrorKind::InvalidData => {
            ConnectError::Refused { address: address.clone(), reason: source.to_string() }
        }
        _ => ConnectError::Io { address: address.clone(), source },
    }
}

/// Says what it wants, and gives the stream with the host's answer, and the session's secret if there is one.
fn ask(
    address: &Address,
    purpose: Purpose,
    key: Option<&Key>,
    options: &SessionOptions,
    trusts: Trusts,
    deadline: Instant,
) -> Result<(Stream, Answer, Option<Secret>), ConnectError> {
    let mut stream = Stream::connect(address, options.tls.as_ref(), options.connect_timeout, deadline)?;
    if trusts == Trusts::Own && !stream.is_of_same_user() {
        let reason = "its socket belongs to another user: name the socket itself to trust that user".into();
        return Err(ConnectError::Refused { address: address.clone(), reason });
    }
    let left = time_left(deadline, address, options.connect_timeout)?;
    let failed = |source| failed(address, options.connect_timeout, source);
    stream.set_timeout(Some(left)).map_err(failed)?;
    let (answer, secret) = handshake::introduce(&mut stream, purpose, key, deadline).map_err(failed)?;
    if !answer.ok {
        return Err(ConnectError::Refused { address: address.clone(), reason: answer.text });
    }
    Ok((stream, answer, secret))
}

/// Which owners of a socket a client talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trusts {
    /// Each: the user has named the address.
    All,
    /// Root and its own user: the address is a peer's word.
    Own,
}

fn greet(
    address: &Address,
    options: &SessionOptions,
    trusts: Trusts,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    let fetch = options.calls.fetches(address.provider());
    let (queue_pairs, key) = (options.queue_pairs as u32, options.key.as_ref());
    let purpose = Purpose::Control { queue_pairs, fetch, key: key.map(|key| key.id) };
    let (control, answer, secret) = ask(address, purpose, key, options, trusts, deadline)?;
    Ok(Greeting { address: address.clone(), control, answer, secret, fallback: None })
}

/// Greets the host; where a TCP address turns out to be this host, at its Unix socket.
pub(super) fn greet_best(
    address: &Address,
    options: &SessionOptions,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    // A client that wants TLS takes no other way.
    if !matches!(address, Address::Tcp { .. }) || options.provider.is_some() || options.tls.is_some() {
        return greet(address, options, Trusts::All, deadline);
    }
    let (_, answer, _) = ask(address, Purpose::Probe, None, options, Trusts::All, deadline)?;
    let here = handshake::host_id();
    if answer.host != here || here == handshake::HostId::default() {
        return greet(address, options, Trusts::All, deadline);
    }
    let fallback = if answer.text.is_empty() {
        "the server has no Unix socket".to_string()
    } else {
        let local = Address::Unix(answer.text.into());
        match greet(&local, options, Trusts::Own, deadline) {
            Ok(greeting) => {
                log::debug!("{address} is this host: using {local}");
                return Ok(greeting);
            }
            Err(e) => e.to_string(),
        }
    };
    log::warn!("{address} is this host, but its memory cannot be shared ({fallback}): using TCP");
    Ok(Greeting { fallback: Some(fallback), ..greet(address, options, Trusts::All, deadline)? })
}
