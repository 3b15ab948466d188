//! The request path: submit, plan, admit, post, complete.
//!
//! Threads push requests into the [merge queue](merge_queue) of their direction; the one that finds no other at work
//! [plans and admits](submit) for all and [posts](post) on a [lane], which is a queue pair with the requests posted on
//! it. A caller that waits for its [`ticket`] polls the completion queue itself, on behalf of everybody who waits there
//! ([`attend`]). Requests that no thread waits for are seen to by [pollers], which are started when there are any. Memory that is mapped needs none of this for a lone
//! request ([`direct`]). A lane
//! whose queue pair fails is [mended](mend) while the others carry on.

mod attend;
mod complete;
mod detached;
mod direct;
mod lane;
mod mend;
mod merge_queue;
#[cfg(all(loom, test))]
mod model;
mod order;
mod pollers;
mod post;
mod serve;
mod spare;
mod submit;
mod ticket;
mod together;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

pub use self::serve::Until;
pub(crate) use self::{
    attend::{Attendance, Waited},
    complete::{as_callback, in_callback},
    detached::Started,
    mend::Link,
    merge_queue::MergeQueue,
    submit::GroupOp,
    ticket::{Notice, Ticket},
};
use self::{
    lane::{Lane, Over},
    pollers::Seat,
    post::Batch,
    serve::Service,
    spare::Spare,
    submit::Direction,
    ticket::MAX_LANES,
};
use crate::{
    admission::Admission,
    batch::{BatchMode, InFlight, PlanLimits},
    memory::{Buffer, Memory, OwnBuf, PreMrPool, RegistrationCache},
    polling::{PollingMode, Retry},
    stats::Stats,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    verbs::{
        Access, CompletionQueue, MrHandle, ProtectionDomain, QpState, QueuePair, RemoteAddr, VerbsError,
    },
};

/// What a runtime is made of.
pub(crate) struct RuntimeInit {
    pub pd: Arc<dyn ProtectionDomain>,
    pub cqs: Vec<Arc<dyn CompletionQueue>>,
    /// Lane `i` completes on queue `i % cqs.len()`.
    pub lanes: Vec<Arc<dyn QueuePair>>,
    pub link: Box<dyn Link>,
    pub pool: Arc<PreMrPool>,
    pub pool_mr: MrHandle,
    /// Registrations of buffers outside of the pool.
    pub registrations: Arc<RegistrationCache>,
    pub admission: Admission,
    pub stats: Arc<Stats>,
    pub batch: BatchMode,
    pub stage_threshold: u64,
    pub signal_interval: u32,
    pub max_msg_sz: u64,
    pub polling: PollingMode,
    /// Requests on mapped memory are carried out by their callers.
    pub direct: bool,
    pub retry: Retry,
    /// Time for a request.
    pub timeout: Duration,
    /// Time to replace a queue pair.
    pub mend_timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Runtime {
    me: Weak<Runtime>,
    pd: Arc<dyn ProtectionDomain>,
    lanes: Arc<[Lane]>,
    attendances: Vec<Attendance>,
    /// Of the poller of each attendance.
    seats: Vec<Arc<Seat>>,
    stopping: AtomicBool,
    link: Box<dyn Link>,
    mending: AtomicBool,
    pool: Arc<PreMrPool>,
    pool_mr: MrHandle,
    registrations: Arc<RegistrationCache>,
    admission: Admission,
    stats: Arc<Stats>,
    limits: PlanLimits,
    max_inline: u32,
    signal_interval: u32,
    writes: Mutex<InFlight>,
    directions: [Direction; 2],
    /// Held while room on a lane and the window are looked at and taken: the two directions do not see each other's
    /// attempts, and whoever finds no room can rely on a completion to come.
    gate: Mutex<()>,
    last_lane: AtomicUsize,
    dead: AtomicBool,
    timeout: Duration,
    mend_timeout: Duration,
    /// Posting executes: done outside of the combiner, so that copies of several threads run side by side.
    executes_at_post: bool,
    batches: Spare<Batch>,
    overs: Spare<Over>,
    /// Tickets and counts of started requests that are over.
    idle_started: Mutex<std::collections::VecDeque<detached::Idle>>,
    /// Started requests that were submitted and are not done.
    queued: AtomicUsize,
    /// A thread serves what was started.
    serving: Arc<AtomicBool>,
    service: Service,
    /// A thread that has started something may: completions are polled for, and not by threads that do nothing else.
    may_be_served: bool,
    /// Requests are carried out by their callers where they can be.
    direct: bool,
}

impl Runtime {
    pub(crate) fn new(init: RuntimeInit) -> Arc<Runtime> {
        let caps = init.lanes.first().map(|qp| qp.caps()).unwrap_or_default();
        let executes_at_post = init.lanes.iter().all(|qp| qp.executes_at_post());
        let queues = init.cqs.len().max(1);
        let lanes = init.lanes.into_iter().take(MAX_LANES).enumerate();
        let lanes: Arc<[Lane]> = lanes.map(|(index, qp)| Lane::new(qp, index % queues)).collect();
        let attendances: Vec<Attendance> = init
            .cqs
            .into_iter()
            .enumerate()
            .map(|(index, cq)| Attendance::new(index, cq, init.polling, init.retry))
            .collect();
        let serving = Arc::new(AtomicBool::new(false));
        let seat = || Arc::new(Seat::new(Arc::clone(&lanes), Arc::clone(&serving)));
        let seats = (0..attendances.len()).map(|_| seat()).collect();
        Arc::new_cyclic(|me| Runtime {
            me: Weak::clone(me),
            pd: init.pd,
            seats,
            limits: PlanLimits {
                mode: init.batch,
                max_msg_sz: init.max_msg_sz,
                max_sge: caps.max_send_sge,
                max_chain: caps.max_send_wr / 2,
                // What is longer than any block could never be staged.
                stage_threshold: init.stage_threshold.min(init.pool.max_block() as u64),
            },
            lanes,
            attendances,
            stopping: AtomicBool::new(false),
            link: init.link,
            mending: AtomicBool::new(false),
            pool: init.pool,
            pool_mr: init.pool_mr,
            registrations: init.registrations,
            admission: init.admission,
            stats: init.stats,
            max_inline: caps.max_inline_data,
            signal_interval: init.signal_interval,
            writes: Mutex::new(InFlight::new()),
            directions: Default::default(),
            gate: Mutex::new(()),
            last_lane: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            timeout: init.timeout,
            mend_timeout: init.mend_timeout,
            executes_at_post,
            batches: Spare::default(),
            overs: Spare::default(),
            idle_started: Mutex::default(),
            queued: AtomicUsize::new(0),
            serving,
            service: Service::default(),
            may_be_served: matches!(init.polling, PollingMode::Busy | PollingMode::Adaptive),
            direct: init.direct && executes_at_post,
        })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// True while requests can be made. Notices a queue pair that has failed while nothing was under way.
    pub(crate) fn is_alive(&self) -> bool {
        for (index, lane) in self.lanes.iter().enumerate() {
            if self.is_dead() || lane.is_down() {
                continue;
            }
            let (state, which) = lane.condition();
            if state != QpState::Rts {
                self.lane_failed(index, which);
            }
        }
        !self.is_dead()
    }

    /// Longest message, for callers that split.
    pub(crate) fn max_message(&self) -> u64 {
        self.limits.max_msg_sz
    }

    /// A buffer of the pool, if it has one.
    pub(crate) fn pooled(&self, len: usize) -> Option<Buffer> {
        self.pool.acquire(len).map(Buffer::from)
    }

    /// A buffer in memory of its own, registered for as long as it exists.
    pub(crate) fn allocate(&self, len: usize) -> Result<Buffer, VerbsError> {
        self.stats.registrations.inc();
        OwnBuf::new(len, &self.registrations).map(Buffer::from)
    }

    /// The threshold that is in force, in bytes.
    pub(crate) fn stage_threshold(&self) -> u64 {
        self.limits.stage_threshold
    }

    /// Bytes in flight now, and the most there ever were.
    pub(crate) fn in_flight(&self) -> (u64, u64) {
        (self.admission.in_flight(), self.admission.peak())
    }

    /// The peer's memory in place.
    pub(crate) fn map(&self, remote: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        if self.is_dead() {
            return None;
        }
        self.lanes.iter().find(|lane| !lane.is_down())?.qp().map_remote(remote, len, needs)
    }
}
