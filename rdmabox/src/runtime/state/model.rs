//! Loom models of the whole path: callers, the combiner, tickets and pollers.
//!
//! The modelled card completes requests at once, or never. Each request has to end exactly once,
//! its buffer has to return, and no thread may wait forever. Time does not pass in a model, so an
//! end by timeout is a failure.

use std::{
    sync::LazyLock,
    task::{Wake, Waker},
    time::Instant,
};

use super::*;
use crate::{
    admission::StaticWindow,
    error::RequestError,
    memory::{Lent, RegistrationLimits, scope},
    provider::soft::SoftDevice,
    runtime::{GroupOp, Started, Until, WaitedBy, wait::cq_wait::model::ModelCq},
    sync::{JoinHandle, Thread, current, model::check, park, spawn},
    verbs::{Device, SendFlags, SendOp, SendWr, StubQp, WcStatus},
};

/// The card's treatment of posted requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    Completes,
    /// Completes requests, and reports that posting executes: combiners post outside their lock.
    Executes,
    /// Loses requests.
    Loses,
    /// Completes requests, and refuses those that were merged.
    Refuses,
}

/// A session whose peer always provides a new, working queue pair.
#[derive(Debug)]
struct ModelLink(Arc<ModelCq>);

impl LaneLink for ModelLink {
    fn is_gone(&self) -> bool {
        false
    }

    fn rejoin(
        &self,
        _: usize,
        _: &Arc<dyn CompletionQueue>,
        _: Instant,
    ) -> Result<Arc<dyn QueuePair>, String> {
        Ok(queue_pair(&self.0, Card::Completes))
    }

    fn hang_up(&self) {}
}

fn queue_pair(cq: &Arc<ModelCq>, card: Card) -> Arc<dyn QueuePair> {
    let cq = Arc::clone(cq);
    let post = move |list: &[SendWr<'_>]| {
        let is_refused = |wr: &SendWr<'_>| card == Card::Refuses && wr.sges.len() > 1;
        if let Some(refused) = list.iter().find(|wr| is_refused(wr)) {
            cq.push(refused.wr_id, WcStatus::RemAccessErr);
        } else if card != Card::Loses {
            let signaled = list.iter().filter(|wr| wr.flags.contains(SendFlags::SIGNALED));
            signaled.for_each(|wr| cq.push(wr.wr_id, WcStatus::Success));
        }
        Ok(())
    };
    let mut qp = StubQp::new(post).places(PLACES);
    qp.executes_at_post = card == Card::Executes;
    Arc::new(qp)
}

/// Objects that every model needs and none changes, made once.
struct Still {
    memory: Arc<Memory>,
    pd: Arc<dyn ProtectionDomain>,
    mr: MrHandle,
}

/// Counters shared by all runs, and read by none. Made on a thread of its own, because the stack
/// of a model's thread is too small for them.
static STATS: LazyLock<Arc<Stats>> =
    LazyLock::new(|| std::thread::spawn(Arc::default).join().expect("a thread that makes counters"));

static STILL: LazyLock<Still> = LazyLock::new(|| {
    let memory = Arc::new(Memory::private(4096).expect("memory for a model"));
    let pd = SoftDevice::new().and_then(|device| device.alloc_pd()).expect("a device in software");
    let mr = pd.register(&memory, 0, 4096, Access::LOCAL_WRITE).expect("a region");
    Still { memory, pd, mr }
});

/// A timeout that never expires.
const NEVER: Duration = Duration::from_secs(3600);

/// Places in a lane's send queue.
const PLACES: usize = 4;

/// Returns a runtime with one lane and a window of one request.
fn runtime(card: Card, polling: PollingMode, timeout: Duration) -> Arc<Runtime> {
    runtime_with(card, polling, timeout, 1)
}

/// Returns a runtime with one lane and a window of some pages.
fn runtime_with(card: Card, polling: PollingMode, timeout: Duration, pages: u64) -> Arc<Runtime> {
    let cq = ModelCq::new();
    Runtime::new(RuntimeInit {
        pd: Arc::clone(&STILL.pd),
        cqs: vec![cq.clone()],
        lanes: vec![queue_pair(&cq, card)],
        link: Box::new(ModelLink(cq)),
        pool: PreMrPool::new(Arc::clone(&STILL.memory), 4096),
        pool_mr: Arc::clone(&STILL.mr),
        registrations: Arc::new(RegistrationCache::new(Arc::clone(&STILL.pd), RegistrationLimits::default())),
        admission: Admission::new(Arc::new(StaticWindow::new(pages * ADMISSION_PAGE))),
        stats: Arc::clone(&STATS),
        batch: BatchMode::Hybrid,
        stage_threshold: 0,
        signal_interval: 0,
        max_msg_sz: 4096,
        max_merge: 4096,
        polling,
        direct: false,
        retry: Retry::Fixed(0),
        standing_pollers: false,
        timeout,
        recovery_timeout: NEVER,
        tracer: None,
    })
}

/// Returns a runtime that sleeps as soon as possible and never times out.
fn patient(card: Card) -> Arc<Runtime> {
    runtime(card, PollingMode::EventBatch, NEVER)
}

static DATA: [u8; 8] = [0; 8];

/// Returns the address that caller `index` writes to. No two of them are adjacent.
fn remote(index: u64) -> RemoteAddr {
    RemoteAddr { addr: index << 20, rkey: 1 }
}

/// Makes a blocking write of caller `index`.
fn write(runtime: &Runtime, index: u64) -> Result<(), RequestError> {
    scope(|scope| runtime.run(true, 1, std::iter::once((remote(index), scope.lend(&DATA))), runtime.timeout))
}

/// Makes a blocking read of caller `index`.
fn read(runtime: &Runtime, index: u64) -> Result<(), RequestError> {
    let mut out = [0; 8];
    scope(|scope| {
        runtime.run(false, 1, std::iter::once((remote(index), scope.lend_mut(&mut out))), runtime.timeout)
    })
}

/// Makes a blocking list that needs all places of the lane.
fn list(runtime: &Runtime) -> Result<(), RequestError> {
    scope(|scope| {
        let step = |index| GroupOp {
            op: SendOp::Write { remote: remote(100 + index), imm: None },
            loan: scope.lend(&DATA),
        };
        runtime.run_group((0..PLACES as u64).map(step).collect(), runtime.timeout)
    })
}

/// Makes a blocking write of two adjacent parts, which merge.
fn write_two(runtime: &Runtime) -> Result<(), RequestError> {
    scope(|scope| {
        let parts = [0, 8].map(|at| (remote(0).at(at), scope.lend(&DATA)));
        runtime.run(true, 2, parts.into_iter(), runtime.timeout)
    })
}

/// Starts a write of caller `index`.
fn start(runtime: &Arc<Runtime>, index: u64) -> Started<&'static [u8]> {
    let (ticket, count) = runtime.take_idle(1, runtime.timeout);
    let lent = Lent::<&'static [u8]>::new(&DATA, count);
    let requests = lent.lend(4096).map(|loan| (remote(index), loan));
    runtime.begin(true, 1, requests, &ticket, WaitedBy::Caller);
    Started::new(Arc::clone(runtime), ticket, lent)
}

/// Runs a caller on a new thread. The stack of a model's first thread is too small.
fn caller(runtime: &Arc<Runtime>, call: impl FnOnce(&Arc<Runtime>) + Send + 'static) -> JoinHandle<()> {
    let runtime = Arc::clone(runtime);
    spawn("caller".into(), move || call(&runtime)).expect("a thread of a model")
}

fn join<const N: usize>(callers: [JoinHandle<()>; N]) {
    callers.into_iter().for_each(|caller| caller.join().expect("a caller"));
}

/// Asserts that all resources have been returned.
fn assert_idle(runtime: &Runtime) {
    assert_eq!(runtime.in_flight().0, 0);
    assert!(runtime.lanes.iter().all(|lane| lane.is_idle() && lane.queue.lock().is_empty()));
    assert_eq!(runtime.queued.load(Ordering::SeqCst), 0);
}

fn two_write(card: Card) {
    let runtime = patient(card);
    join([0, 1].map(|index| caller(&runtime, move |runtime| assert_eq!(write(runtime, index), Ok(())))));
    assert_idle(&runtime);
}

/// Two blocking callers, each of which may post or poll for the other, or wait for the window.
/// Catches a request posted for a caller that does not learn where to wait. Catches a wait for
/// room that no thread returns.
#[test]
fn blocking_calls_end() {
    check(Some(2), || two_write(Card::Completes));
    check(Some(2), || two_write(Card::Executes));
}

/// A reader and a writer share a window of one request. Catches a direction that is refused
/// because the other one waits, and is not tried when that one waits no more.
#[test]
fn directions_that_share_a_window_end() {
    check(Some(2), || {
        let runtime = patient(Card::Completes);
        let writer = caller(&runtime, |runtime| assert_eq!(write(runtime, 0), Ok(())));
        let reader = caller(&runtime, |runtime| assert_eq!(read(runtime, 1), Ok(())));
        join([writer, reader]);
        assert_idle(&runtime);
    });
}

/// Two readers and a list that needs all places of the lane, with room in the window. Catches a
/// reader that is refused for the sake of the list, and is not tried when the list has its places.
#[test]
fn a_list_and_reads_that_share_a_lane_end() {
    check(Some(1), || {
        let runtime = runtime_with(Card::Completes, PollingMode::EventBatch, NEVER, 16);
        let lister = caller(&runtime, |runtime| assert_eq!(list(runtime), Ok(())));
        let reader = |index| caller(&runtime, move |runtime| assert_eq!(read(runtime, index), Ok(())));
        join([reader(0), reader(1)]);
        join([lister]);
        assert_idle(&runtime);
    });
}

/// Three callers in both directions, so that the turn passes while both wait.
#[test]
fn directions_that_both_wait_take_turns() {
    check(Some(1), || {
        let runtime = patient(Card::Completes);
        let writer = |index| caller(&runtime, move |runtime| assert_eq!(write(runtime, index), Ok(())));
        let writers = [writer(0), writer(2)];
        let reader = caller(&runtime, |runtime| assert_eq!(read(runtime, 1), Ok(())));
        join(writers);
        join([reader]);
        assert_idle(&runtime);
    });
}

/// The session ends while a caller waits: the call completes, or ends with the session. Catches a
/// request submitted while all requests are being failed.
#[test]
fn a_call_ends_with_the_session() {
    for card in [Card::Completes, Card::Loses] {
        check(Some(2), move || {
            let runtime = patient(card);
            let writer = caller(&runtime, |runtime| {
                let ended = write(runtime, 0);
                assert!(matches!(ended, Ok(()) | Err(RequestError::Disconnected)), "{ended:?}");
            });
            let closer = caller(&runtime, |runtime| runtime.fail());
            join([writer, closer]);
            assert_idle(&runtime);
        });
    }
}

/// The session ends during a started request without a waiting thread: the callback runs, and the
/// poller stops. Catches a poller that stays asleep when its requests are failed without a
/// completion.
#[test]
fn a_poller_ends_with_the_session() {
    check(Some(2), || {
        let runtime = patient(Card::Completes);
        let starter = caller(&runtime, |runtime| {
            start(runtime, 0).then(|result, _| {
                assert!(matches!(result, Ok(()) | Err(RequestError::Disconnected)), "{result:?}");
            });
        });
        let closer = caller(&runtime, |runtime| {
            runtime.fail();
            runtime.join_pollers();
        });
        join([starter, closer]);
        runtime.join_pollers();
        assert_idle(&runtime);
    });
}

/// A waker that unparks its thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a started write like an executor with one task.
fn block_on(mut started: Started<&'static [u8]>) {
    let waker = Waker::from(Arc::new(Unpark(current())));
    while !started.poll(&waker) {
        park();
    }
    assert_eq!(started.finish(), (Ok(()), Some(&DATA[..])));
}

/// Ends the session, and with it the pollers, when all started requests are done.
fn end_when_done(runtime: &Runtime) {
    while runtime.queued.load(Ordering::SeqCst) != 0 {
        crate::sync::yield_now();
    }
    runtime.fail();
    runtime.join_pollers();
    assert_idle(runtime);
}

/// Runs a started write that gets its owner later, while another caller may post it, complete it
/// or need its room. The owner is a thread, a task or a callback. The session and its poller end
/// afterwards.
fn check_one_started(card: Card, own: fn(Started<&'static [u8]>)) {
    let runtime = patient(card);
    let starter = caller(&runtime, move |runtime| own(start(runtime, 0)));
    let writer = caller(&runtime, |runtime| assert_eq!(write(runtime, 1), Ok(())));
    join([starter, writer]);
    end_when_done(&runtime);
}

/// Catches an owner that is set too late for the last completion.
#[test]
fn a_started_request_ends_for_a_thread() {
    check(Some(1), || {
        check_one_started(Card::Completes, |started| assert_eq!(started.wait(), (Ok(()), Some(&DATA[..]))));
    });
}

/// Catches a task that is not woken because no thread polls.
#[test]
fn a_started_request_ends_for_a_task() {
    check(Some(1), || check_one_started(Card::Completes, block_on));
}

/// A thread waits for no time, and leaves the rest to a task. Catches a task that is not woken,
/// because the thread is still taken for the owner.
#[test]
fn a_started_request_ends_for_a_task_after_a_limited_wait() {
    check(Some(1), || {
        check_one_started(Card::Completes, |started| match started.wait_timeout(Duration::ZERO) {
            Ok(ended) => assert_eq!(ended, (Ok(()), Some(&DATA[..]))),
            Err(under_way) => block_on(under_way),
        });
    });
}

/// Catches a poller that parks while a request is being posted, and a poller that misses the end
/// of the session.
#[test]
fn a_callback_is_run() {
    check(Some(2), || {
        check_one_started(Card::Completes, |started| {
            started.then(|result, buf| assert_eq!((result, buf), (Ok(()), Some(&DATA[..]))));
        });
    });
}

/// One thread serves, and another starts requests while it leaves. Catches a request without a
/// poller: its thread woke none because of the serving thread, which did not see the request.
#[test]
fn a_request_started_while_a_thread_serves_is_completed() {
    check_serving(Until::AllDone);
}

/// The same with a thread that stops when any request is done and leaves the rest to a poller.
#[test]
fn a_request_left_by_a_serving_thread_is_completed() {
    check_serving(Until::AnyDone);
}

fn check_serving(until: Until) {
    check(Some(2), move || {
        let runtime = runtime(Card::Completes, PollingMode::Adaptive, NEVER);
        let started = |runtime: &Arc<Runtime>, index| {
            start(runtime, index).then(|result, buf| assert_eq!((result, buf), (Ok(()), Some(&DATA[..]))));
        };
        let serves = caller(&runtime, move |runtime| runtime.serve(until, || started(runtime, 0)));
        let starts =
            caller(&runtime, move |runtime| [1, 2].into_iter().for_each(|index| started(runtime, index)));
        join([serves, starts]);
        end_when_done(&runtime);
    });
}

/// A poller serves callers that never poll. Catches a poller that stops while a request is being
/// posted.
#[test]
fn a_poller_serves_callers() {
    check(Some(1), || {
        let runtime = runtime(Card::Completes, PollingMode::SharedCq(1), NEVER);
        join([0, 1].map(|index| caller(&runtime, move |runtime| assert_eq!(write(runtime, index), Ok(())))));
        runtime.fail();
        runtime.join_pollers();
        assert_idle(&runtime);
    });
}

/// A merged request is refused, and its parts are repeated alone. Another caller comes meanwhile,
/// and may be flushed with the lane. Catches a part that no thread posts again: its lane was down,
/// or another part was under way.
#[test]
fn the_parts_of_a_refused_request_end() {
    check(Some(1), || {
        let runtime = runtime_with(Card::Refuses, PollingMode::EventBatch, NEVER, 16);
        let merger = caller(&runtime, |runtime| assert_eq!(write_two(runtime), Ok(())));
        let writer = caller(&runtime, |runtime| {
            let ended = write(runtime, 1);
            assert!(matches!(ended, Ok(()) | Err(RequestError::Flushed)), "{ended:?}");
        });
        join([merger, writer]);
        runtime.fail();
        assert_idle(&runtime);
        assert!(runtime.directions[1].with(|guard| guard.state().is_empty()));
    });
}

/// A timed-out request ends with its lane. Another caller's request, posted there or waiting for
/// room, ends as well, if need be on the new queue pair. Catches a request that is neither posted
/// nor withdrawn, and one that is both.
///
/// Limited to one preemption. With two, a request can be on its way to the lane while it is
/// abandoned. The second attempt after 10 ms never comes then, because time does not pass.
#[test]
fn a_timeout_ends_a_request_once() {
    check(Some(1), || {
        let runtime = runtime(Card::Loses, PollingMode::EventBatch, Duration::ZERO);
        join([0, 1].map(|index| {
            caller(&runtime, move |runtime| {
                let ended = write(runtime, index);
                assert!(
                    matches!(ended, Ok(()) | Err(RequestError::Timeout(_) | RequestError::Flushed)),
                    "{ended:?}"
                );
            })
        }));
        runtime.fail();
        assert_idle(&runtime);
    });
}
