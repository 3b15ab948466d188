//! The resources of remote fetching.
//!
//! The client has a [`FetchLane`]: a queue pair of its own to the session's call memory at the
//! host. The host has the [`FetchMemory`] that this queue pair reaches.
//!
//! # Concurrency
//! [`FetchLane`] is used by any thread, with the locks of its runtime. [`FetchMemory`] is
//! immutable.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::stream::Stream;
use crate::{
    admission::{Admission, DEFAULT_WINDOW, StaticWindow},
    batch::{BatchMode, DEFAULT_MAX_MERGE},
    error::RequestError,
    mapping::Memory,
    memory::{self, PreMrPool, RegistrationCache, RegistrationLimits},
    polling::{PollingMode, Retry},
    rpc::{HostSlots, MAX_CALL, OneSided},
    runtime::{LaneLink, Runtime, RuntimeInit},
    stats::Stats,
    verbs::{Access, CompletionQueue, Device, ProtectionDomain, QueuePair, RemoteAddr, VerbsError},
};

/// Bytes of the pool that stages requests and answers, and of its largest block: one request or
/// answer with its framing.
const POOL_BYTES: usize = 4 << 20;
const POOL_BLOCK: usize = 2 * MAX_CALL;

/// One-sided access of the client to its call memory at the host. It has a runtime of its own,
/// with one queue pair, so its errors and statistics stay apart from the session's data.
#[derive(Debug)]
pub(super) struct FetchLane(Arc<Runtime>);

/// Parameters of a [`FetchLane`].
pub(super) struct FetchLaneInit<'a> {
    pub device: &'a dyn Device,
    pub pd: Arc<dyn ProtectionDomain>,
    pub qp: Arc<dyn QueuePair>,
    pub cq: Arc<dyn CompletionQueue>,
    pub control: Arc<Stream>,
    pub polling: (PollingMode, Retry),
    pub timeout: Duration,
}

impl FetchLane {
    /// Creates the lane.
    ///
    /// # Errors
    /// No memory for the staging pool, or no room for its registration at the device.
    pub(super) fn new(init: FetchLaneInit<'_>) -> Result<FetchLane, VerbsError> {
        let no_memory =
            |e: memory::MemoryError| VerbsError::os("memory", std::io::Error::other(e.to_string()));
        let memory = Arc::new(Memory::private(POOL_BYTES).map_err(no_memory)?);
        let pool_mr = init.pd.register(&memory, 0, POOL_BYTES as u64, Access::LOCAL_WRITE)?;
        let registrations = RegistrationCache::new(Arc::clone(&init.pd), RegistrationLimits::default());
        Ok(FetchLane(Runtime::new(RuntimeInit {
            pd: init.pd,
            cqs: vec![init.cq],
            lanes: vec![init.qp],
            link: Box::new(OneQueuePair(init.control)),
            pool: PreMrPool::new(memory, POOL_BLOCK),
            pool_mr,
            registrations: Arc::new(registrations),
            admission: Admission::new(Arc::new(StaticWindow::new(DEFAULT_WINDOW))),
            // The session's counters cover data requests only.
            stats: Arc::new(Stats::default()),
            batch: BatchMode::Hybrid,
            stage_threshold: POOL_BLOCK as u64,
            signal_interval: 0,
            max_msg_sz: init.device.attr().max_msg_sz,
            max_merge: DEFAULT_MAX_MERGE,
            polling: init.polling.0,
            direct: false,
            retry: init.polling.1,
            standing_pollers: false,
            timeout: init.timeout,
            recovery_timeout: Duration::ZERO,
            tracer: None,
        })))
    }
}

impl OneSided for FetchLane {
    fn write(&self, to: RemoteAddr, bytes: &[u8]) -> Result<(), RequestError> {
        memory::scope(|scope| self.0.run(true, 1, std::iter::once((to, scope.lend(bytes))), self.0.timeout()))
    }

    fn read(&self, from: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        memory::scope(|scope| {
            self.0.run(false, 1, std::iter::once((from, scope.lend_mut(out))), self.0.timeout())
        })
    }

    fn map(&self, at: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        self.0.map(at, len, needs)
    }

    fn fail(&self) {
        self.0.fail();
    }
}

/// A queue pair that is never replaced. The session ends when it breaks.
#[derive(Debug)]
struct OneQueuePair(Arc<Stream>);

impl LaneLink for OneQueuePair {
    fn is_gone(&self) -> bool {
        self.0.is_over()
    }

    fn rejoin(
        &self,
        _lane: usize,
        _cq: &Arc<dyn CompletionQueue>,
        _deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        Err("the queue pair for remote fetching lasts as long as its session".into())
    }

    fn hang_up(&self) {
        self.0.shutdown();
    }
}

/// A session's call memory at the host. It has a protection domain of its own, so no other
/// session reaches it with any key.
#[derive(Debug)]
pub(super) struct FetchMemory {
    pub pd: Arc<dyn ProtectionDomain>,
    pub slots: Arc<HostSlots>,
}

impl FetchMemory {
    /// Allocates the memory.
    ///
    /// # Errors
    /// No memory, or no room for its registration at the device.
    pub(super) fn new(device: &dyn Device, whole_words: bool) -> Result<FetchMemory, VerbsError> {
        let pd = device.alloc_pd()?;
        let slots = Arc::new(HostSlots::new(&*pd, whole_words)?);
        Ok(FetchMemory { pd, slots })
    }
}
