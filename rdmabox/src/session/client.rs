//! The client's end of a session.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    Address, ConnectError, ProviderKind, RequestError, SessionOptions,
    handshake::{self, Answer, Purpose},
    rejoin::Rejoin,
    stream::Stream,
};
use crate::{
    admission::{Admission, StaticWindow},
    memory::{self, Memory, PreMrPool},
    provider::soft::SoftDevice,
    rpc::{QUEUE_DEPTH, RpcClient},
    runtime::{GroupOp, Runtime, RuntimeInit},
    stats::{Stats, StatsSnapshot},
    verbs::{Access, Device, Progress, QpCaps, QpInit, RemoteAddr, SendOp, VerbsError},
};

/// Bytes of pre-registered memory of a session, and the largest piece of it.
const POOL_BYTES: usize = 8 << 20;
const POOL_BLOCK: usize = 1 << 20;
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

/// A client's session with a host. Any number of threads may use it; every call blocks until it is done, at most for
/// the operation timeout. Dropping it closes it.
#[derive(Debug)]
pub struct Session {
    address: Address,
    provider: ProviderKind,
    /// Why the provider is not the one that would have been first choice.
    fallback: Option<String>,
    runtime: Runtime,
    rpc: RpcClient,
    stats: Arc<Stats>,
    control: Stream,
}

/// A control stream, and what the host said on it.
struct Greeting {
    address: Address,
    control: Stream,
    answer: Answer,
    fallback: Option<String>,
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
        match (address, options.provider) {
            (Address::Tcp { .. }, Some(ProviderKind::Shm)) | (Address::Unix(_), Some(ProviderKind::Tcp)) => {
                let other =
                    if matches!(address, Address::Tcp { .. }) { "a Unix socket" } else { "host:port" };
                let kind = options.provider.map(|p| p.to_string()).unwrap_or_default();
                return Err(refused(format!(
                    "provider {kind} needs an address of another kind: give {other}"
                )));
            }
            _ => {}
        }
        let options = &options.bounded();
        let deadline = Instant::now() + options.connect_timeout;
        let greeting = greet_best(address, options, deadline)?;
        Self::establish(greeting, options, deadline).map(Arc::new)
    }

    fn establish(
        greeting: Greeting,
        options: &SessionOptions,
        deadline: Instant,
    ) -> Result<Session, ConnectError> {
        let Greeting { address, mut control, answer, fallback } = greeting;
        let failed =
            |e: VerbsError| ConnectError::Refused { address: address.clone(), reason: e.to_string() };
        let device = SoftDevice::new().map_err(failed)?;
        let pd = device.alloc_pd().map_err(failed)?;
        let rejoin = Rejoin {
            address: address.clone(),
            token: answer.token,
            device: Arc::<SoftDevice>::clone(&device),
            pd: Arc::clone(&pd),
            timeout: options.connect_timeout,
        };
        let provider = rejoin.provider();
        let stats = Arc::new(Stats::default());

        // Calls: the replies are waited for by the callers themselves.
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let cq = device.create_cq(2 * QUEUE_DEPTH as usize).map_err(failed)?;
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let qp =
            pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller }).map_err(failed)?;
        let polling = (options.polling, options.max_retry_on(provider));
        let rpc =
            RpcClient::new(&*pd, Arc::clone(&qp), cq, polling, Arc::clone(&stats), options.operation_timeout)
                .map_err(failed)?;
        rejoin.connect(&*qp, 0, deadline)?;

        let caps = QpCaps { max_recv_wr: 1, ..QpCaps::default() };
        let lanes = (1..=options.queue_pairs)
            .map(|index| rejoin.queue_pair(index, None, caps, deadline))
            .collect::<Result<Vec<_>, _>>()?;

        let io = |source| ConnectError::Io { address: address.clone(), source };
        let ready = receive(&mut control, &address, options.connect_timeout, deadline)?;
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
        let runtime = Runtime::new(RuntimeInit {
            pd,
            lanes,
            pool: PreMrPool::new(pool_memory, POOL_BLOCK),
            pool_mr,
            admission: Admission::new(Arc::new(StaticWindow::new(options.window_bytes))),
            stats: Arc::clone(&stats),
            batch: options.batch,
            stage_threshold: options.pre_mr_threshold,
            max_msg_sz: device.attr().max_msg_sz,
            polling: options.polling,
            max_retry: polling.1,
            timeout: options.operation_timeout,
        });
        Ok(Session { address, provider, fallback, runtime, rpc, stats, control })
    }

    /// What carries the requests.
    pub fn provider(&self) -> ProviderKind {
        self.provider
    }

    /// What carries the requests, for people.
    pub fn description(&self) -> String {
        let what = match self.provider {
            ProviderKind::Shm => "shared memory",
            ProviderKind::Tcp => "TCP",
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
    /// After [`RequestError::Completion`], [`RequestError::Timeout`] and [`RequestError::Disconnected`] the session is
    /// closed and the write may have taken effect in part: it is safe to repeat it, over another session.
    pub fn write(&self, remote: RemoteAddr, data: &[u8]) -> Result<(), RequestError> {
        self.write_vectored(&[(remote, data)])
    }

    /// Reads `out.len()` bytes from `remote`.
    ///
    /// # Errors
    /// As [`write`](Self::write); `out` then holds anything.
    pub fn read(&self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        self.read_vectored(&mut [(remote, out)])
    }

    /// Makes several writes in one submission, so that they merge and chain with each other. Those that overlap take
    /// effect in the order given; otherwise there is no order.
    ///
    /// # Errors
    /// As [`write`](Self::write), with the first error.
    pub fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError> {
        self.check(parts.iter().map(|(remote, data)| (*remote, data.len())))?;
        let max = self.max_part();
        self.settle(memory::scope(|scope| {
            let requests = parts.iter().flat_map(|(remote, data)| {
                data.chunks(max).enumerate().map(|(i, chunk)| (at(*remote, i * max), scope.lend(chunk)))
            });
            self.runtime.run(true, requests)
        }))
    }

    /// Makes several reads in one submission.
    ///
    /// # Errors
    /// As [`read`](Self::read), with the first error.
    pub fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError> {
        self.check(parts.iter().map(|(remote, out)| (*remote, out.len())))?;
        let max = self.max_part();
        self.settle(memory::scope(|scope| {
            let requests = parts.iter_mut().flat_map(|(remote, out)| {
                let remote = *remote;
                out.chunks_mut(max)
                    .enumerate()
                    .map(move |(i, chunk)| (at(remote, i * max), scope.lend_mut(chunk)))
            });
            self.runtime.run(false, requests)
        }))
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
        self.settle(result)
    }

    /// The host's memory in place, where the provider maps it and it may be read: the mapping, and the offset of
    /// `remote` in it. Others may be writing there at any time.
    pub fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        self.runtime.map(remote, len, Access::REMOTE_READ)
    }

    /// Calls the host's service and waits for its reply, which replaces what `reply` held. Request and reply are at
    /// most [`MAX_CALL`](crate::MAX_CALL) bytes long.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a request that is too long; otherwise the session is closed, and whether the call
    /// was carried out is unknown.
    pub fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.settle(self.rpc.call(request, reply))
    }

    /// The counters.
    pub fn stats(&self) -> StatsSnapshot {
        self.stats.snapshot()
    }

    /// Ends the session: requests under way fail with [`RequestError::Disconnected`], and so do later ones.
    pub fn close(&self) {
        // The host may reuse its memory as soon as it hears of the end: first nothing is written there any more.
        self.runtime.fail();
        self.rpc.fail();
        self.control.shutdown();
    }

    /// A request that failed on the way has ended the session: the host is to know.
    fn settle(&self, result: Result<(), RequestError>) -> Result<(), RequestError> {
        if !matches!(result, Ok(()) | Err(RequestError::Invalid(_))) {
            self.close();
        }
        result
    }

    fn max_part(&self) -> usize {
        usize::try_from(self.runtime.max_message()).unwrap_or(usize::MAX)
    }

    fn check(&self, mut ranges: impl Iterator<Item = (RemoteAddr, usize)>) -> Result<(), RequestError> {
        match ranges.find(|(remote, len)| remote.addr.checked_add(*len as u64).is_none()) {
            Some((remote, len)) => {
                Err(RequestError::Invalid(format!("range {:#x}+{len} wraps around", remote.addr)))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn at(remote: RemoteAddr, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: remote.addr + offset as u64, rkey: remote.rkey }
}

fn time_left(deadline: Instant, address: &Address, timeout: Duration) -> Result<Duration, ConnectError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ConnectError::Timeout { address: address.clone(), timeout }) } else { Ok(left) }
}

fn receive(
    control: &mut Stream,
    address: &Address,
    timeout: Duration,
    deadline: Instant,
) -> Result<Answer, ConnectError> {
    handshake::receive_answer(control, deadline).map_err(|source| match source.kind() {
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
    })
}

/// Says what it wants, and gives the stream with the host's answer.
fn ask(
    address: &Address,
    purpose: Purpose,
    options: &SessionOptions,
    deadline: Instant,
) -> Result<(Stream, Answer), ConnectError> {
    let mut stream = Stream::connect(address, options.connect_timeout, deadline)?;
    let io = |source| ConnectError::Io { address: address.clone(), source };
    let left = time_left(deadline, address, options.connect_timeout)?;
    stream.set_timeout(Some(left)).map_err(io)?;
    handshake::send_preamble(&mut stream, purpose).map_err(io)?;
    let answer = receive(&mut stream, address, options.connect_timeout, deadline)?;
    if !answer.ok {
        return Err(ConnectError::Refused { address: address.clone(), reason: answer.text });
    }
    Ok((stream, answer))
}

fn greet(address: &Address, options: &SessionOptions, deadline: Instant) -> Result<Greeting, ConnectError> {
    let purpose = Purpose::Control { queue_pairs: options.queue_pairs as u32 };
    let (control, answer) = ask(address, purpose, options, deadline)?;
    Ok(Greeting { address: address.clone(), control, answer, fallback: None })
}

/// Greets the host; where a TCP address turns out to be this host, at its Unix socket.
fn greet_best(
    address: &Address,
    options: &SessionOptions,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    if matches!(address, Address::Unix(_)) || options.provider.is_some() {
        return greet(address, options, deadline);
    }
    let (_, answer) = ask(address, Purpose::Probe, options, deadline)?;
    let here = handshake::host_id();
    if answer.host != here || here == handshake::HostId::default() {
        return greet(address, options, deadline);
    }
    let fallback = if answer.text.is_empty() {
        "the server has no Unix socket".to_string()
    } else {
        let local = Address::Unix(answer.text.into());
        match greet(&local, options, deadline) {
            Ok(greeting) => {
                log::debug!("{address} is this host: using {local}");
                return Ok(greeting);
            }
            Err(e) => e.to_string(),
        }
    };
    log::warn!("{address} is this host, but its memory cannot be shared ({fallback}): using TCP");
    Ok(Greeting { fallback: Some(fallback), ..greet(address, options, deadline)? })
}
