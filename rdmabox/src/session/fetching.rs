//! What a session's calls by fetching are made of: at the client the queue pair to its memory at the host, at the host that
//! memory.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{RequestError, stream::Stream};
use crate::{
    admission::{Admission, DEFAULT_WINDOW, StaticWindow},
    batch::BatchMode,
    memory::{self, Memory, PreMrPool, RegistrationCache, RegistrationLimits},
    polling::{PollingMode, Retry},
    rpc::{HostSlots, MAX_CALL, OneSided},
    runtime::{Link, Runtime, RuntimeInit},
    stats::Stats,
    verbs::{Access, CompletionQueue, Device, ProtectionDomain, QueuePair, RemoteAddr, VerbsError},
};

/// Bytes that requests and answers are staged in, and the largest piece: a request or an answer with what is around it.
const POOL_BYTES: usize = 4 << 20;
const POOL_BLOCK: usize = 2 * MAX_CALL;

/// The client's requests on its memory at the host. They go through a runtime of their own: the memory is reached by one
/// queue pair, and what happens there says nothing about the session's data.
#[derive(Debug)]
pub(super) struct FetchLane(Arc<Runtime>);

/// What it is made of.
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
    /// # Errors
    /// Without memory to stage in, or without room for it at the device.
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
            // Those of the session are for its data.
            stats: Arc::new(Stats::default()),
            batch: BatchMode::Hybrid,
            stage_threshold: POOL_BLOCK as u64,
            signal_interval: 0,
            max_msg_sz: init.device.attr().max_msg_sz,
            polling: init.polling.0,
            direct: false,
            retry: init.polling.1,
            timeout: init.timeout,
            mend_timeout: Duration::ZERO,
        })))
    }
}

impl OneSided for FetchLane {
    fn write(&self, to: RemoteAddr, bytes: &[u8]) -> Result<(), RequestError> {
        memory::scope(|scope| self.0.run(true, 1, std::iter::once((to, scope.lend(bytes)))))
    }

    fn read(&self, from: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        memory::scope(|scope| self.0.run(false, 1, std::iter::once((from, scope.lend_mut(out)))))
    }

    fn map(&self, at: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        self.0.map(at, len, needs)
    }

    fn fail(&self) {
        self.0.fail();
    }
}

/// A queue pair that is not replaced: the session ends with it, as with that of the calls.
#[derive(Debug)]
struct OneQueuePair(Arc<Stream>);

impl Link for OneQueuePair {
    fn is_gone(&self) -> bool {
        self.0.is_over()
    }

    fn rejoin(
        &self,
        _lane: usize,
        _cq: &Arc<dyn CompletionQueue>,
        _deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        Err("the queue pair for fetching answers lasts as long as its session".into())
    }

    fn hang_up(&self) {
        self.0.shutdown();
    }
}

/// A session's memory at its host, in a protection domain of its own: no other session reaches it, whatever key it names.
#[derive(Debug)]
pub(super) struct FetchMemory {
    pub pd: Arc<dyn ProtectionDomain>,
    pub slots: Arc<HostSlots>,
}

impl FetchMemory {
    /// # Errors
    /// Without memory, or without room for it at the device.
    pub(super) fn new(device: &dyn Device, whole_words: bool) -> Result<FetchMemory, VerbsError> {
        let pd = device.alloc_pd()?;
        let slots = Arc::new(HostSlots::new(&*pd, whole_words)?);
        Ok(FetchMemory { pd, slots })
    }
}
