//! Tests of the choice of a lane, of requests that wait for places, and of a combiner that other
//! threads keep busy.

use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{
        OnceLock, Weak,
        atomic::AtomicUsize,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    admission::{Admission, StaticWindow},
    batch::BatchMode,
    mapping::Memory,
    memory::{Lent, PreMrPool, RegistrationCache, RegistrationLimits},
    polling::{PollingMode, Retry},
    provider::soft::SoftDevice,
    runtime::{LaneLink, RuntimeInit, Started, WaitedBy},
    verbs::{
        Access, CompletionQueue, Device, Progress, ProtectionDomain, QpCaps, QpInit, QueuePair, SendOp,
        SendWr, StubQp, WcStatus, WorkCompletion,
    },
};

/// A link that replaces a queue pair when the test gives it another one.
#[derive(Debug)]
struct TestLink(parking_lot::Mutex<Receiver<Arc<dyn QueuePair>>>);

impl LaneLink for TestLink {
    fn is_gone(&self) -> bool {
        false
    }

    fn rejoin(
        &self,
        _: usize,
        _: &Arc<dyn CompletionQueue>,
        _: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        self.0.lock().recv().map_err(|e| e.to_string())
    }

    fn hang_up(&self) {}
}

const DEPTH: u32 = 32;

fn runtime(lanes: usize) -> Arc<Runtime> {
    let (pd, cq) = device();
    let queue_pair = || {
        let caps = QpCaps { max_send_wr: DEPTH, ..QpCaps::default() };
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true }).unwrap()
    };
    runtime_on((0..lanes).map(|_| queue_pair()).collect(), (pd, cq)).0
}

/// Returns a protection domain and a completion queue in software.
fn device() -> (Arc<dyn ProtectionDomain>, Arc<dyn CompletionQueue>) {
    let device = SoftDevice::new().unwrap();
    (device.alloc_pd().unwrap(), device.create_cq(64).unwrap())
}

/// Returns a runtime, and a sender of queue pairs that replace failed ones.
fn runtime_on(
    lanes: Vec<Arc<dyn QueuePair>>,
    device: (Arc<dyn ProtectionDomain>, Arc<dyn CompletionQueue>),
) -> (Arc<Runtime>, Sender<Arc<dyn QueuePair>>) {
    runtime_with_window(lanes, device, (u64::MAX, 4096))
}

/// Returns a runtime with a window of `window` bytes, and merged requests of up to `max_merge`.
fn runtime_with_window(
    lanes: Vec<Arc<dyn QueuePair>>,
    device: (Arc<dyn ProtectionDomain>, Arc<dyn CompletionQueue>),
    (window, max_merge): (u64, u64),
) -> (Arc<Runtime>, Sender<Arc<dyn QueuePair>>) {
    runtime_with_pool(lanes, device, (window, max_merge), (1, 0))
}

/// Returns a runtime whose pool has `blocks` blocks of 4 KiB, for requests of up to
/// `stage_threshold` bytes.
fn runtime_with_pool(
    lanes: Vec<Arc<dyn QueuePair>>,
    (pd, cq): (Arc<dyn ProtectionDomain>, Arc<dyn CompletionQueue>),
    (window, max_merge): (u64, u64),
    (blocks, stage_threshold): (usize, u64),
) -> (Arc<Runtime>, Sender<Arc<dyn QueuePair>>) {
    let (replace, replacements) = channel();
    let pool_len = blocks * 4096;
    let memory = Arc::new(Memory::private(pool_len).unwrap());
    let runtime = Runtime::new(RuntimeInit {
        cqs: vec![cq],
        lanes,
        link: Box::new(TestLink(parking_lot::Mutex::new(replacements))),
        pool_mr: pd.register(&memory, 0, pool_len as u64, Access::LOCAL_WRITE).unwrap(),
        pool: PreMrPool::new(memory, 4096),
        registrations: Arc::new(RegistrationCache::new(Arc::clone(&pd), RegistrationLimits::default())),
        pd,
        admission: Admission::new(Arc::new(StaticWindow::new(window))),
        stats: Arc::default(),
        batch: BatchMode::Hybrid,
        stage_threshold,
        signal_interval: 0,
        max_msg_sz: 4096,
        max_merge,
        polling: PollingMode::Adaptive,
        direct: false,
        retry: Retry::Fixed(0),
        standing_pollers: false,
        timeout: Duration::from_secs(10),
        recovery_timeout: Duration::from_secs(10),
        tracer: None,
    });
    (runtime, replace)
}

/// Returns the lanes chosen for `times` batches of `count` work requests.
fn chosen(runtime: &Runtime, count: usize, times: usize) -> Vec<Option<usize>> {
    (0..times).map(|_| runtime.lane_with_room(count, false)).collect()
}

/// Returns a runtime with one request in flight on each lane.
fn busy(lanes: usize) -> Arc<Runtime> {
    let runtime = runtime(lanes);
    runtime.lanes.iter().for_each(|lane| lane.reserve(1));
    runtime
}

#[test]
fn a_lone_request_stays_on_the_last_lane() {
    let runtime = runtime(4);
    assert_eq!(chosen(&runtime, 1, 3), [Some(0); 3]);
    runtime.lanes[0].reserve(1);
    assert_eq!(chosen(&runtime, 1, 3), [Some(1); 3]);
    runtime.lanes[0].vacate(1);
    assert_eq!(chosen(&runtime, 1, 3), [Some(1); 3]);
}

#[test]
fn small_requests_share_a_lane_until_they_would_wait() {
    let runtime = runtime(3);
    let post = |small| {
        let lane = runtime.lane_with_room(1, small).unwrap();
        if !small {
            runtime.lanes[lane].note_large(1);
        }
        runtime.lanes[lane].reserve(1);
        lane
    };
    let small = |count: usize| (0..count).map(|_| post(true)).collect::<Vec<_>>();
    assert_eq!(small(17), [vec![0; 16], vec![1]].concat());
    // A large request uses the idle lane, and later small ones avoid it.
    assert_eq!(post(false), 2);
    assert_eq!(small(1), [0]);
    assert_eq!(small(2), [1, 1]);
    assert_eq!(post(false), 2);
    // All requests on the lane are done.
    runtime.lanes[2].vacate(2);
    assert_eq!(post(false), 2);
    runtime.lanes[2].vacate(1);
    assert_eq!(small(17), [vec![2; 16], vec![0]].concat());
}

/// Catches a lane that is busy all the time and counts as one with large requests for ever.
#[test]
fn a_busy_lane_takes_small_requests_again_after_its_large_ones() {
    let runtime = runtime(1);
    let lane = &runtime.lanes[0];
    lane.reserve(3);
    lane.note_large(2);
    lane.reserve(2);
    lane.reserve(1);
    let mut states = Vec::new();
    for done in [0, 3, 1, 1, 1] {
        lane.vacate(done);
        states.push((lane.is_busy_with_small(), lane.takes_small(16)));
    }
    let (large, small, idle) = ((false, false), (true, true), (false, true));
    assert_eq!(states, [large, large, large, small, idle]);
}

/// Catches a large request that got no room, and makes the small ones before it count as large.
#[test]
fn a_large_request_without_room_leaves_the_lane_as_it_is() {
    let runtime = runtime(1);
    let lane = &runtime.lanes[0];
    lane.reserve(2);
    lane.note_large(0);
    assert!(lane.is_busy_with_small() && lane.takes_small(16));
}

#[test]
fn lanes_take_turns() {
    for lanes in [1, 2, 4, 16] {
        let runtime = busy(lanes);
        let expected: Vec<_> = (1..=3 * lanes).map(|i| Some(i % lanes)).collect();
        assert_eq!(chosen(&runtime, 1, 3 * lanes), expected);
    }
}

#[test]
fn a_lane_without_room_is_skipped() {
    let runtime = busy(4);
    let depth = DEPTH as usize;
    runtime.lanes[1].reserve(depth - 2);
    assert_eq!(chosen(&runtime, 1, 4), [Some(1), Some(2), Some(3), Some(0)]);
    assert_eq!(chosen(&runtime, 2, 4), [Some(2), Some(3), Some(0), Some(2)]);
    [0, 2, 3].into_iter().for_each(|lane| runtime.lanes[lane].reserve(depth - 1));
    assert_eq!(chosen(&runtime, 1, 4), [Some(1); 4]);
    assert_eq!(chosen(&runtime, 2, 4), [None; 4]);
    runtime.lanes[3].vacate(depth);
    assert_eq!(chosen(&runtime, depth, 4), [Some(3); 4]);
    assert_eq!(chosen(&runtime, depth + 1, 4), [None; 4]);
}

#[test]
fn a_lane_that_is_down_is_skipped() {
    let runtime = busy(3);
    assert!(runtime.lanes[0].take_down(runtime.lanes[0].generation()));
    assert_eq!(chosen(&runtime, 1, 3), [Some(1), Some(2), Some(1)]);
    // A lane that is down counts as idle, but is not kept.
    let alone = crate::runtime::requests::submit::tests::runtime(2);
    assert!(alone.lanes[0].take_down(alone.lanes[0].generation()));
    assert_eq!(chosen(&alone, 1, 2), [Some(1); 2]);
}

#[test]
fn a_lane_with_a_posting_thread_is_chosen_last() {
    let runtime = runtime(3);
    let posting = [runtime.lanes[0].queue.lock(), runtime.lanes[2].queue.lock()];
    assert_eq!(chosen(&runtime, 1, 3), [Some(1); 3]);
    // A lane with a posting thread is better than none.
    runtime.lanes[1].reserve(DEPTH as usize);
    assert_eq!(chosen(&runtime, 1, 3), [Some(2), Some(0), Some(2)]);
    drop(posting);
}

/// Returns a queue pair that completes nothing, and reports the posting threads. During each post a
/// further request is started on the runtime in `cell`, as if another thread had come.
fn busy_qp(cell: Arc<OnceLock<Weak<Runtime>>>, posters: Sender<thread::ThreadId>) -> Arc<dyn QueuePair> {
    let post = move |list: &[SendWr<'_>]| {
        // It goes on until the test has seen another thread.
        if posters.send(thread::current().id()).is_ok()
            && let Some(runtime) = cell.get().and_then(Weak::upgrade)
        {
            thread::sleep(Duration::from_micros(50));
            start(&runtime, list[0].wr_id + 1);
        }
        Ok(())
    };
    Arc::new(StubQp::new(post).places(1 << 20))
}

/// Starts a write that is too long to be left in the queue. No two writes are adjacent.
fn start(runtime: &Arc<Runtime>, number: u64) {
    const DATA: &[u8] = &[0; 2 * SMALL as usize];
    let (ticket, count) = runtime.take_idle(1, runtime.timeout());
    let lent = Lent::<&'static [u8]>::new(DATA, count);
    let remote = RemoteAddr { addr: number << 20, rkey: 1 };
    let requests = lent.lend(1 << 20).map(|loan| (remote, loan));
    runtime.begin(true, 1, requests, &ticket, WaitedBy::Caller);
    drop(Started::new(Arc::clone(runtime), ticket, lent));
}

/// Catches a combiner that never returns to its caller, because requests keep coming while it
/// posts.
#[test]
fn a_combiner_is_relieved() {
    let (posters, seen) = channel();
    let cell = Arc::new(OnceLock::new());
    let (runtime, _) = runtime_on(vec![busy_qp(Arc::clone(&cell), posters)], device());
    cell.set(Arc::downgrade(&runtime)).unwrap();
    start(&runtime, 0);
    // This thread is back, and another one posts.
    let posters: Vec<_> = seen.iter().take_while(|poster| *poster == thread::current().id()).collect();
    assert!(posters.len() >= 8, "{} posts", posters.len());
    drop(seen);
    runtime.fail();
}

/// Catches a list with all of the window. Its requests end together, so the window would be empty
/// until the next list.
#[test]
fn a_list_takes_half_of_the_window() {
    const PAGE: usize = 4096;
    let lists = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&lists);
    let queue_pair = || -> Arc<dyn QueuePair> {
        let seen = Arc::clone(&seen);
        let post = move |list: &[SendWr<'_>]| {
            seen.lock().push(list.len());
            Ok(())
        };
        Arc::new(StubQp::new(post).places(DEPTH as usize))
    };
    let lanes = vec![queue_pair(), queue_pair()];
    let (runtime, _) = runtime_with_window(lanes, device(), (8 * PAGE as u64, 8 * PAGE as u64));
    // Too few to be spread.
    let (ticket, count) = runtime.take_idle(7, runtime.timeout());
    let mut lent = Lent::new(vec![0; 7 * PAGE], count);
    let remote = |number: u64| RemoteAddr { addr: number << 20, rkey: 1 };
    let requests = (0..).map(remote).zip(lent.lend_mut(PAGE));
    runtime.begin(false, 7, requests, &ticket, WaitedBy::Caller);
    drop(Started::new(Arc::clone(&runtime), ticket, lent));
    assert_eq!(*lists.lock(), [4, 3]);
    runtime.fail();
}

/// Catches a thread that copies all queued WRITEs to the pool before it polls again: completions of
/// other threads wait meanwhile.
#[test]
fn a_polling_thread_copies_a_bounded_number_of_bytes_at_once() {
    const PAGE: usize = 4096;
    const COUNT: usize = 160;
    let posted = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&posted);
    let post = move |list: &[SendWr<'_>]| {
        seen.fetch_add(list.len(), Ordering::Relaxed);
        Ok(())
    };
    let lane: Arc<dyn QueuePair> = Arc::new(StubQp::new(post).places(2 * COUNT));
    let (runtime, _) = runtime_with_pool(vec![lane], device(), (u64::MAX, PAGE as u64), (COUNT, PAGE as u64));
    let (ticket, count) = runtime.take_idle(COUNT, runtime.timeout());
    let lent = Lent::new(vec![0; COUNT * PAGE], count);
    let remote = |number: u64| RemoteAddr { addr: number << 20, rkey: 1 };
    runtime.queue(true, COUNT, (0..).map(remote).zip(lent.lend(PAGE)), &ticket);
    drop(Started::new(Arc::clone(&runtime), ticket, lent));
    runtime.gathering.leave(WRITE, || true);
    runtime.busy_poll.polls.store(true, Ordering::SeqCst);
    let mut after_polls = Vec::new();
    for _ in 0..2 {
        runtime.dispatch(&[]);
        after_polls.push(posted.load(Ordering::Relaxed));
    }
    assert_eq!(after_polls, [64, 128]);
    // A thread that stops to poll leaves none.
    runtime.busy_poll.polls.store(false, Ordering::SeqCst);
    runtime.dispatch(&[]);
    assert_eq!(posted.load(Ordering::Relaxed), COUNT);
    runtime.fail();
}

/// Catches READs that wait for the next poll because WRITEs have used the budget up: no READ is
/// copied before its post.
#[test]
fn reads_need_no_budget_for_copies() {
    const PAGE: usize = 4096;
    let posted = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&posted);
    let post = move |list: &[SendWr<'_>]| {
        seen.fetch_add(list.len(), Ordering::Relaxed);
        Ok(())
    };
    let lane: Arc<dyn QueuePair> = Arc::new(StubQp::new(post).places(DEPTH as usize));
    let (runtime, _) = runtime_with_pool(vec![lane], device(), (u64::MAX, PAGE as u64), (8, PAGE as u64));
    let (ticket, count) = runtime.take_idle(8, runtime.timeout());
    let mut lent = Lent::new(vec![0; 8 * PAGE], count);
    let remote = |number: u64| RemoteAddr { addr: number << 20, rkey: 1 };
    runtime.queue(false, 8, (0..).map(remote).zip(lent.lend_mut(PAGE)), &ticket);
    drop(Started::new(Arc::clone(&runtime), ticket, lent));
    runtime.busy_poll.polls.store(true, Ordering::SeqCst);
    let used_up = CopyBudget::of_a_poll();
    used_up.set(0);
    runtime.flush_within(READ, &used_up);
    assert_eq!(posted.load(Ordering::Relaxed), 8);
    runtime.busy_poll.polls.store(false, Ordering::SeqCst);
    runtime.fail();
}

/// Places in the send queue of a [`Slow`] lane.
const PLACES: usize = 4;

/// A runtime whose requests complete when the test says so.
pub(super) struct Slow {
    pub(super) runtime: Arc<Runtime>,
    /// The posted requests of all lanes.
    posted: Arc<parking_lot::Mutex<VecDeque<(u64, SendOp)>>>,
    replace: Sender<Arc<dyn QueuePair>>,
    started: Cell<u64>,
}

impl Slow {
    fn new() -> Slow {
        Slow::with_lanes(1)
    }

    pub(super) fn with_lanes(lanes: usize) -> Slow {
        let posted = Arc::default();
        let lanes = (0..lanes).map(|_| Slow::queue_pair(&posted)).collect();
        let (runtime, replace) = runtime_on(lanes, device());
        Slow { runtime, posted, replace, started: Cell::new(0) }
    }

    /// Returns a queue pair that records its posts.
    fn queue_pair(posted: &Arc<parking_lot::Mutex<VecDeque<(u64, SendOp)>>>) -> Arc<dyn QueuePair> {
        let record = Arc::clone(posted);
        let post = move |list: &[SendWr<'_>]| {
            record.lock().extend(list.iter().map(|wr| (wr.wr_id, wr.op)));
            Ok(())
        };
        Arc::new(StubQp::new(post).places(PLACES))
    }

    /// Replaces the queue pair of a lane that is down, and waits for that.
    pub(super) fn replace_one(&self) {
        let rebuilt = self.runtime.stats.lane_rebuilds.get();
        self.replace.send(Slow::queue_pair(&self.posted)).unwrap();
        while self.runtime.stats.lane_rebuilds.get() == rebuilt {
            thread::yield_now();
        }
    }

    /// Waits until the posted requests have these remote addresses. The thread that has replaced a
    /// queue pair posts them.
    pub(super) fn await_posted(&self, addresses: &[u64]) {
        let began = Instant::now();
        while self.posted_to() != addresses {
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", self.posted_to());
            thread::yield_now();
        }
    }

    /// Returns the remote addresses of the posted requests.
    pub(super) fn posted_to(&self) -> Vec<u64> {
        let address = |(_, op): &(u64, SendOp)| match op {
            SendOp::Write { remote, .. } | SendOp::Read { remote } => remote.addr,
            other => panic!("{other:?}"),
        };
        self.posted.lock().iter().map(address).collect()
    }

    /// Returns an address that is adjacent to no other one.
    fn remote(&self) -> RemoteAddr {
        self.started.set(self.started.get() + 1);
        RemoteAddr { addr: self.started.get() << 20, rkey: 1 }
    }

    /// Starts a READ that is too long to be left in the queue.
    fn read(&self) {
        let (ticket, count) = self.runtime.take_idle(1, self.runtime.timeout());
        let mut lent = Lent::new(vec![0; 2 * SMALL as usize], count);
        let requests = lent.lend_mut(1 << 20).map(|loan| (self.remote(), loan));
        self.runtime.begin(false, 1, requests, &ticket, WaitedBy::Caller);
        drop(Started::new(Arc::clone(&self.runtime), ticket, lent));
    }

    /// Starts an ordered list of WRITEs.
    fn list(&self, steps: usize) {
        let (ticket, count) = self.runtime.take_idle(steps, self.runtime.timeout());
        let lent = Lent::new(vec![0; 8 * steps], count);
        let ops = lent.lend(8).map(|loan| {
            let op = SendOp::Write { remote: self.remote(), imm: None };
            GroupOp { op, loan }
        });
        self.runtime.begin_group(ops.collect(), &ticket);
        drop(Started::new(Arc::clone(&self.runtime), ticket, lent));
    }

    /// Returns the number of posted WRITEs and READs that are not complete.
    fn posted(&self) -> (usize, usize) {
        let posted = self.posted.lock();
        let writes = posted.iter().filter(|(_, op)| matches!(op, SendOp::Write { .. })).count();
        (writes, posted.len() - writes)
    }

    /// Completes the oldest posted request.
    fn complete_one(&self) {
        self.complete(WcStatus::Success);
    }

    /// Completes the oldest posted request with a status.
    pub(super) fn complete(&self, status: WcStatus) {
        let (wr_id, _) = self.posted.lock().pop_front().unwrap();
        self.runtime.dispatch(&[WorkCompletion { wr_id, status, ..WorkCompletion::EMPTY }]);
    }
}

/// Catches READs that take each place that comes free, while a list needs several.
#[test]
fn a_list_gets_its_places_beside_reads() {
    let slow = Slow::new();
    (0..3 * PLACES).for_each(|_| slow.read());
    slow.list(PLACES - 1);
    assert_eq!(slow.posted(), (0, PLACES));
    let mut completed = 0;
    while slow.posted().0 == 0 {
        // READs keep coming.
        slow.read();
        slow.complete_one();
        completed += 1;
        assert!(completed <= 2 * PLACES, "starved: {:?}", slow.posted());
    }
    // All of it at once. The READs then have their turn.
    assert_eq!(slow.posted().0, PLACES - 1);
    (0..PLACES).for_each(|_| slow.complete_one());
    assert_eq!(slow.posted(), (0, PLACES));
    slow.runtime.fail();
}

/// Two lists that need more places than there are: neither holds any while it waits.
#[test]
fn waiting_lists_hold_no_places() {
    let slow = Slow::new();
    slow.read();
    slow.list(PLACES);
    slow.list(PLACES - 1);
    assert_eq!(slow.posted(), (0, 1));
    slow.complete_one();
    for steps in [PLACES, PLACES - 1] {
        assert_eq!(slow.posted(), (steps, 0));
        (0..steps).for_each(|_| slow.complete_one());
    }
    assert_eq!((slow.posted(), slow.runtime.in_flight().0), ((0, 0), 0));
    slow.runtime.fail();
}

/// The other way round: each list takes all places.
#[test]
fn a_read_gets_its_place_beside_lists() {
    let slow = Slow::new();
    (0..3).for_each(|_| slow.list(PLACES));
    slow.read();
    let mut completed = 0;
    while slow.posted().1 == 0 {
        slow.list(PLACES);
        slow.complete_one();
        completed += 1;
        assert!(completed <= 2 * PLACES, "starved: {:?}", slow.posted());
    }
    slow.runtime.fail();
}
