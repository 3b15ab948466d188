//! The state of a session's request path, shared by its lanes, waiters and pollers.
//!
//! # Concurrency
//! Any thread may call any method. `requests::submit` documents the lock order.

use super::{
    busy_poll_state::{Backoff, BusyPollState},
    lane::{Finished, Lane},
    lane_link::LaneLink,
    peer_silence::PeerSilence,
    poller_state::PollerState,
    queue::{Batch, Direction, Gathering, IdleParts, ObjectPool},
    trace::Tracer,
    wait::{CqWaiters, MAX_LANES, ShortestTimeout},
};
use crate::{
    admission::{ADMISSION_PAGE, Admission, Turns},
    batch::{BatchMode, InFlight, PlanLimits},
    mapping::Memory,
    memory::{Buffer, CallerMr, OwnBuf, PreMrPool, RegistrationCache},
    polling::{PollingMode, Retry},
    stats::{LaneStats, Stats},
    sync::{
        JoinHandle, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        now,
    },
    verbs::{
        Access, CompletionQueue, MrHandle, ProtectionDomain, QpState, QueuePair, RemoteAddr, VerbsError,
    },
};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

/// The parts that a [`Runtime`] is built from.
pub(crate) struct RuntimeInit {
    pub pd: Arc<dyn ProtectionDomain>,
    pub cqs: Vec<Arc<dyn CompletionQueue>>,
    /// Lane `i` completes on queue `i % cqs.len()`.
    pub lanes: Vec<Arc<dyn QueuePair>>,
    pub link: Box<dyn LaneLink>,
    pub pool: Arc<PreMrPool>,
    pub pool_mr: MrHandle,
    /// Cache of registrations of buffers outside the pool.
    pub registrations: Arc<RegistrationCache>,
    pub admission: Admission,
    pub stats: Arc<Stats>,
    pub batch: BatchMode,
    pub stage_threshold: u64,
    pub signal_interval: u32,
    pub max_msg_sz: u64,
    /// Maximum bytes of a merged work request, and of a list for one of several lanes.
    pub max_merge: u64,
    pub polling: PollingMode,
    /// True if callers execute requests on mapped memory themselves (`requests::mapped_io`).
    pub direct: bool,
    pub retry: Retry,
    /// True if pollers go on, as the polling mode says, while no request is outstanding.
    pub standing_pollers: bool,
    /// Time limit of a request.
    pub timeout: Duration,
    /// Time limit of a queue pair replacement.
    pub recovery_timeout: Duration,
    /// Reports the steps of requests.
    pub tracer: Option<Arc<Tracer>>,
}

#[derive(Debug)]
pub(crate) struct Runtime {
    pub(super) me: Weak<Runtime>,
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) lanes: Arc<[Lane]>,
    pub(super) cq_waiters: Vec<CqWaiters>,
    /// One poller state per completion queue.
    pub(super) pollers: Vec<Arc<PollerState>>,
    pub(super) stopping: AtomicBool,
    pub(super) link: Box<dyn LaneLink>,
    pub(super) recovering: AtomicBool,
    pub(super) pool: Arc<PreMrPool>,
    pub(super) pool_mr: MrHandle,
    pub(super) registrations: Arc<RegistrationCache>,
    pub(super) admission: Admission,
    pub(super) stats: Arc<Stats>,
    pub(super) limits: PlanLimits,
    pub(super) max_inline: u32,
    /// Places in the send queue of each lane.
    places: usize,
    pub(super) signal_interval: u32,
    pub(super) writes: Mutex<InFlight>,
    pub(super) directions: [Direction; 2],
    /// True while a part of a refused work request is posted again, by direction.
    pub(super) repeating: [AtomicBool; 2],
    /// Serializes the check and the reservation of lane room and admission window. Without it, both
    /// directions could fail on each other's short-lived reservations, and no completion would
    /// retry them. Also decides which direction may take room while both wait for it.
    pub(super) admission_lock: Mutex<Turns>,
    pub(super) last_lane: AtomicUsize,
    pub(super) dead: AtomicBool,
    /// The time since the last completion of a request that succeeded.
    pub(super) silence: PeerSilence,
    pub(super) timeout: Duration,
    pub(super) shortest_timeout: ShortestTimeout,
    pub(super) recovery_timeout: Duration,
    /// True if posting executes the request. Combiners then post outside their lock, so that
    /// several threads copy in parallel.
    pub(super) executes_at_post: bool,
    /// True if a large batch is spread over the lanes, because they work side by side.
    pub(super) spreads: bool,
    pub(super) batch_pool: ObjectPool<Batch>,
    pub(super) finished_pool: ObjectPool<Finished>,
    /// Tickets and loan counts of finished started requests, kept for reuse.
    pub(super) idle_parts: IdleParts,
    /// Number of started requests that are submitted and not finished.
    pub(super) queued: AtomicUsize,
    /// True while a thread in [`serve`](Runtime::serve) polls for all started requests.
    pub(super) serving: Arc<AtomicBool>,
    pub(super) busy_poll: BusyPollState,
    /// True if callers may serve started requests: the mode polls, and has no dedicated poller
    /// threads.
    pub(super) may_be_served: bool,
    /// True if callers execute requests on mapped memory themselves.
    pub(super) direct: bool,
    /// Started requests that stay in the merge queues until their neighbours have come
    /// (`requests::gathering`).
    pub(super) gathering: Gathering,
    pub(super) gather_backoff: Backoff,
    /// The thread that posts requests that were left for too long. Started when first needed.
    pub(super) ticker: Mutex<Option<JoinHandle<()>>>,
    /// False in models, where time does not pass, and once that thread could not be started.
    pub(super) may_tick: AtomicBool,
    tracer: Option<Arc<Tracer>>,
}

impl Runtime {
    pub(crate) fn new(init: RuntimeInit) -> Arc<Runtime> {
        let caps = init.lanes.first().map(|qp| qp.caps()).unwrap_or_default();
        let executes_at_post = init.lanes.iter().all(|qp| qp.executes_at_post());
        let spreads = !executes_at_post && init.lanes.iter().all(|qp| qp.works_beside_others());
        let queues = init.cqs.len().max(1);
        let lanes = init.lanes.into_iter().take(MAX_LANES).enumerate();
        let lanes: Arc<[Lane]> = lanes.map(|(index, qp)| Lane::new(qp, index % queues)).collect();
        let cq_waiters: Vec<CqWaiters> = init
            .cqs
            .into_iter()
            .enumerate()
            .map(|(index, cq)| CqWaiters::new(index, cq, init.polling, init.retry))
            .collect();
        let serving = Arc::new(AtomicBool::new(false));
        let poller =
            || Arc::new(PollerState::new(Arc::clone(&lanes), Arc::clone(&serving), init.standing_pollers));
        let pollers = (0..cq_waiters.len()).map(|_| poller()).collect();
        Arc::new_cyclic(|me| Runtime {
            me: Weak::clone(me),
            pd: init.pd,
            pollers,
            limits: PlanLimits {
                mode: init.batch,
                max_msg_sz: init.max_msg_sz,
                max_merge: init.max_merge.max(ADMISSION_PAGE),
                max_sge: caps.max_send_sge,
                max_chain: caps.max_send_wr / 2,
                // A request longer than the largest pool block could never be staged.
                stage_threshold: init.stage_threshold.min(init.pool.max_block() as u64),
            },
            lanes,
            cq_waiters,
            stopping: AtomicBool::new(false),
            link: init.link,
            recovering: AtomicBool::new(false),
            pool: init.pool,
            pool_mr: init.pool_mr,
            registrations: init.registrations,
            admission: init.admission,
            stats: init.stats,
            max_inline: caps.max_inline_data,
            places: caps.max_send_wr as usize,
            signal_interval: init.signal_interval,
            writes: Mutex::new(InFlight::new()),
            directions: Default::default(),
            repeating: Default::default(),
            admission_lock: Mutex::new(Turns::default()),
            last_lane: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            silence: PeerSilence::new(now()),
            timeout: init.timeout,
            shortest_timeout: ShortestTimeout::new(init.timeout),
            recovery_timeout: init.recovery_timeout,
            executes_at_post,
            spreads,
            batch_pool: ObjectPool::default(),
            finished_pool: ObjectPool::default(),
            idle_parts: IdleParts::default(),
            queued: AtomicUsize::new(0),
            serving,
            busy_poll: BusyPollState::default(),
            may_be_served: matches!(init.polling, PollingMode::Busy | PollingMode::Adaptive),
            direct: init.direct && executes_at_post,
            gathering: Gathering::default(),
            gather_backoff: Backoff::default(),
            ticker: Mutex::new(None),
            may_tick: AtomicBool::new(!cfg!(loom)),
            tracer: init.tracer,
        })
    }

    /// Returns the tracer if it is on.
    #[inline(always)]
    pub(super) fn active_tracer(&self) -> Option<&Tracer> {
        self.tracer.as_deref().filter(|tracer| tracer.is_on())
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Returns true while requests can be made. Reports a queue pair that failed while it was idle.
    ///
    /// On mapped memory only the first queue pair is looked at. All of them end with the host, and
    /// a caller asks before each access, so this has to be cheap. Another one that failed alone is
    /// found by its next request.
    pub(crate) fn is_alive(&self) -> bool {
        let looked_at = if self.direct { 1 } else { self.lanes.len() };
        for (index, lane) in self.lanes.iter().enumerate().take(looked_at) {
            if self.is_dead() || lane.is_down() {
                continue;
            }
            let (state, generation) = lane.state_and_generation();
            if state != QpState::Rts {
                self.fail_lane(index, generation);
            }
        }
        !self.is_dead()
    }

    /// Returns the session's operation timeout.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the length limit of one message, in bytes. Callers split longer transfers.
    pub(crate) fn max_message(&self) -> u64 {
        self.limits.max_msg_sz
    }

    /// Returns the places in the send queue of a lane. An ordered list with more steps would never
    /// be posted.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Returns a buffer from the pool, or `None` if the pool is exhausted.
    pub(crate) fn pooled(&self, len: usize) -> Option<Buffer> {
        self.pool.acquire(len).map(Buffer::from)
    }

    /// Allocates a buffer in memory of its own, registered until the buffer is dropped.
    pub(crate) fn allocate(&self, len: usize) -> Result<Buffer, VerbsError> {
        self.stats.registrations.inc();
        OwnBuf::new(len, &self.registrations).map(Buffer::from)
    }

    /// Registers memory of a caller for WRITEs from there. The caller keeps the registration.
    ///
    /// # Safety
    /// As for [`Session::register`](crate::Session::register).
    pub(crate) unsafe fn register(&self, addr: u64, len: u64) -> Result<CallerMr, VerbsError> {
        self.stats.registrations.inc();
        // With the right to write, so that pages that were never written get their final place now.
        // SAFETY: the caller's promise. Requests use the registration only while it is on loan.
        let handle = unsafe { self.pd.register_borrowed(addr, len, Access::LOCAL_WRITE) }?;
        Ok(CallerMr::new(handle, &self.registrations))
    }

    /// Returns true if `mr` is a registration of this session that covers the bytes.
    pub(crate) fn has_registered(&self, mr: &CallerMr, bytes: &[u8]) -> bool {
        mr.covers(&self.registrations, bytes)
    }

    /// Returns the staging threshold in force, in bytes.
    pub(crate) fn stage_threshold(&self) -> u64 {
        self.limits.stage_threshold
    }

    /// Returns the counters of each lane.
    pub(crate) fn lane_stats(&self) -> Vec<LaneStats> {
        self.lanes.iter().map(|lane| lane.queue.lock().stats()).collect()
    }

    /// Returns the bytes in flight now, and their peak.
    pub(crate) fn in_flight(&self) -> (u64, u64) {
        (self.admission.in_flight(), self.admission.peak())
    }

    /// Returns the bytes in flight that count for the window, and their peak.
    pub(crate) fn in_window(&self) -> (u64, u64) {
        (self.admission.counted(), self.admission.counted_peak())
    }

    /// Returns the mapping of the peer's memory and the offset of `remote` in it, if that memory is
    /// mapped.
    pub(crate) fn map(&self, remote: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        if self.is_dead() {
            return None;
        }
        self.lanes.iter().find(|lane| !lane.is_down())?.qp().map_remote(remote, len, needs)
    }
}

#[cfg(all(loom, test))]
mod model;
