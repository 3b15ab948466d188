//! The steps that establish a session: device, queue pairs, staging pool, runtime.
//!
//! # Concurrency
//! Runs on the connecting thread, without locks. Every step ends by the caller's deadline.

use std::{sync::Arc, time::Instant};

use super::session_link::{SessionLink, qp_index};
#[cfg(feature = "faults")]
use crate::provider::fault::FaultDevice;
#[cfg(feature = "model")]
use crate::provider::model::ModelDevice;
use crate::{
    admission::{Admission, AdmissionPolicy, DeviceBytes, DeviceKey, StaticWindow},
    auth::Secret,
    mapping::Memory,
    memory::{self, PreMrPool, RegistrationCache, RegistrationLimits},
    polling::{PollingMode, Retry},
    provider::{rdma, soft::SoftDevice},
    rpc::{FetchClient, FetchSize, QUEUE_DEPTH, ReplyMemory, RpcClient},
    runtime::{Runtime, RuntimeInit},
    session::{
        address::{Address, ProviderKind},
        client::{
            options::{CallsBy, SessionOptions},
            qp_connector::QpConnector,
        },
        error::ConnectError,
        fetch_qp::{FetchLane, FetchLaneInit},
        handshake::Token,
        stream::Stream,
    },
    stats::Stats,
    verbs::{
        Access, CompletionQueue, Device, MrHandle, Progress, QpCaps, QpInit, QueuePair, RemoteAddr,
        VerbsError,
    },
};

/// Bytes of a session's preMR pool, and of its largest block.
const POOL_BYTES: usize = 8 << 20;
const POOL_BLOCK: usize = 1 << 20;

/// A connected queue pair and its completion queue.
pub(super) type Joined = (Arc<dyn QueuePair>, Arc<dyn CompletionQueue>);

/// Completion queues, and the data queue pairs that complete on them.
pub(super) type Lanes = (Vec<Arc<dyn CompletionQueue>>, Vec<Arc<dyn QueuePair>>);

/// The preMR pool of a session.
pub(super) struct StagingPool {
    pool: Arc<PreMrPool>,
    mr: MrHandle,
    /// Maximum bytes of a work request that is copied through the pool.
    threshold: u64,
}

/// The shared parameters of the steps that establish a session.
pub(super) struct Setup<'a> {
    address: &'a Address,
    options: &'a SessionOptions,
    deadline: Instant,
    pub(super) device: Arc<dyn Device>,
    pub(super) connector: Arc<QpConnector>,
    pub(super) stats: Arc<Stats>,
}

impl<'a> Setup<'a> {
    /// Opens the device, and prepares connecting the queue pairs of the session of `token`.
    pub(super) fn new(
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
    pub(super) fn connect_calls(&self) -> Result<RpcClient, ConnectError> {
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
    pub(super) fn data_caps(&self) -> Result<QpCaps, ConnectError> {
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
    pub(super) fn connect_lanes(&self, caps: QpCaps) -> Result<Lanes, ConnectError> {
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
    pub(super) fn connect_fetch(&self, caps: QpCaps) -> Result<Joined, ConnectError> {
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

    /// Allocates and registers the preMR pool.
    pub(super) fn pool(&self) -> Result<StagingPool, ConnectError> {
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
    pub(super) fn fetch_client(
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
    pub(super) fn runtime(
        self,
        link: SessionLink,
        (cqs, lanes): Lanes,
        staging: StagingPool,
    ) -> Arc<Runtime> {
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
            recovery_timeout: options.connect_timeout,
            tracer: options.trace.clone(),
        })
    }
}

/// Returns the depth of a completion queue for one data queue pair. It is twice the maximum
/// outstanding, because completions of a replaced queue pair may still be queued.
fn queue_depth(caps: QpCaps) -> usize {
    2 * (caps.max_send_wr + caps.max_recv_wr + 1) as usize
}
