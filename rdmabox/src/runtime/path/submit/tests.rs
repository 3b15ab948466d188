//! Tests of the choice of a lane, and of a combiner that other threads keep busy.

use std::{
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
        QueuePair, RecvWr, Rendezvous, SendWr, VerbsError,
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
