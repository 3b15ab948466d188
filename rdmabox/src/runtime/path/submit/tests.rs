//! Tests of the choice of a lane, of requests that wait for places, and of a combiner that other
//! threads keep busy.

use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{
        OnceLock, Weak,
        mpsc::{Sender, channel},
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
    runtime::{Link, RuntimeInit, Started, WaitedBy},
    verbs::{
        Access, CompletionQueue, Device, PostError, Progress, ProtectionDomain, QpCaps, QpInit, QpState,
        QueuePair, RecvWr, Rendezvous, SendWr, VerbsError, WorkCompletion,
    },
};

/// The link of a runtime that never posts.
#[derive(Debug)]
struct NoLink;

impl Link for NoLink {
    fn is_gone(&self) -> bool {
        false
    }

    fn rejoin(
        &self,
        _: usize,
        _: &Arc<dyn CompletionQueue>,
        _: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        unreachable!("no lane fails")
    }

    fn hang_up(&self) {}
}

const DEPTH: u32 = 32;

fn runtime(lanes: usize) -> Arc<Runtime> {
    let device = SoftDevice::new().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let queue_pair = || {
        let caps = QpCaps { max_send_wr: DEPTH, ..QpCaps::default() };
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true }).unwrap()
    };
    runtime_on((0..lanes).map(|_| queue_pair()).collect(), pd, cq)
}

fn runtime_on(
    lanes: Vec<Arc<dyn QueuePair>>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
) -> Arc<Runtime> {
    let memory = Arc::new(Memory::private(4096).unwrap());
    Runtime::new(RuntimeInit {
        cqs: vec![cq],
        lanes,
        link: Box::new(NoLink),
        pool_mr: pd.register(&memory, 0, 4096, Access::LOCAL_WRITE).unwrap(),
        pool: PreMrPool::new(memory, 4096),
        registrations: Arc::new(RegistrationCache::new(Arc::clone(&pd), RegistrationLimits::default())),
        pd,
        admission: Admission::new(Arc::new(StaticWindow::new(u64::MAX))),
        stats: Arc::default(),
        batch: BatchMode::Hybrid,
        stage_threshold: 0,
        signal_interval: 0,
        max_msg_sz: 4096,
        max_merge: 4096,
        polling: PollingMode::Adaptive,
        direct: false,
        retry: Retry::Fixed(0),
        timeout: Duration::from_secs(10),
        mend_timeout: Duration::from_secs(10),
    })
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
        runtime.lanes[lane].note_size(small);
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
    let alone = crate::runtime::path::submit::tests::runtime(2);
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

/// A queue pair that completes nothing. During each post a further request is started, as if
/// another thread had come.
#[derive(Debug)]
struct BusyQp {
    runtime: OnceLock<Weak<Runtime>>,
    posters: Sender<thread::ThreadId>,
}

impl crate::verbs::Sealed for BusyQp {}

impl QueuePair for BusyQp {
    fn qp_num(&self) -> u32 {
        1
    }

    fn state(&self) -> QpState {
        QpState::Rts
    }

    fn caps(&self) -> QpCaps {
        QpCaps { max_send_wr: 1 << 20, ..QpCaps::default() }
    }

    fn connect(&self, _: Rendezvous, _: Duration) -> Result<(), VerbsError> {
        unreachable!("it is connected")
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        // It goes on until the test has seen another thread.
        if self.posters.send(thread::current().id()).is_ok()
            && let Some(runtime) = self.runtime.get().and_then(Weak::upgrade)
        {
            thread::sleep(Duration::from_micros(50));
            start(&runtime, list[0].wr_id + 1);
        }
        Ok(())
    }

    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is received")
    }

    fn to_error(&self) {}
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
    let device = SoftDevice::new().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let (posters, seen) = channel();
    let qp = Arc::new(BusyQp { runtime: OnceLock::new(), posters });
    let runtime = runtime_on(vec![Arc::clone(&qp) as Arc<dyn QueuePair>], pd, cq);
    qp.runtime.set(Arc::downgrade(&runtime)).unwrap();
    start(&runtime, 0);
    // This thread is back, and another one posts.
    let posters: Vec<_> = seen.iter().take_while(|poster| *poster == thread::current().id()).collect();
    assert!(posters.len() >= 8, "{} posts", posters.len());
    drop(seen);
    runtime.fail();
}

/// Places in the send queue of [`SlowQp`].
const PLACES: usize = 4;

/// A queue pair whose requests complete when the test says so.
#[derive(Debug, Default)]
struct SlowQp(parking_lot::Mutex<VecDeque<(u64, SendOp)>>);

impl crate::verbs::Sealed for SlowQp {}

impl QueuePair for SlowQp {
    fn qp_num(&self) -> u32 {
        1
    }

    fn state(&self) -> QpState {
        QpState::Rts
    }

    fn caps(&self) -> QpCaps {
        QpCaps { max_send_wr: PLACES as u32, ..QpCaps::default() }
    }

    fn connect(&self, _: Rendezvous, _: Duration) -> Result<(), VerbsError> {
        unreachable!("it is connected")
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.lock().extend(list.iter().map(|wr| (wr.wr_id, wr.op)));
        Ok(())
    }

    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is received")
    }

    fn to_error(&self) {}
}

/// A runtime with one lane on a [`SlowQp`].
struct Slow {
    runtime: Arc<Runtime>,
    qp: Arc<SlowQp>,
    started: Cell<u64>,
}

impl Slow {
    fn new() -> Slow {
        let device = SoftDevice::new().unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let qp = Arc::new(SlowQp::default());
        let runtime = runtime_on(vec![Arc::clone(&qp) as Arc<dyn QueuePair>], pd, cq);
        Slow { runtime, qp, started: Cell::new(0) }
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
        let posted = self.qp.0.lock();
        let writes = posted.iter().filter(|(_, op)| matches!(op, SendOp::Write { .. })).count();
        (writes, posted.len() - writes)
    }

    /// Completes the oldest posted request.
    fn complete_one(&self) {
        let (wr_id, _) = self.qp.0.lock().pop_front().unwrap();
        self.runtime.dispatch(&[WorkCompletion { wr_id, ..WorkCompletion::EMPTY }]);
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
