//! Tests of calls between a client and a host's slots, without queue pairs.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::{
    FetchSize,
    client::{FetchClient, Stage},
    host::{AnswerWay, HostSlots, NotificationAction},
    layout::{self, Head, Kind, WORD},
    slot_access::OneSided,
};
use crate::{
    MAX_CALL, RequestError,
    mapping::Memory,
    provider::soft::SoftDevice,
    rpc::message::CALL_SLOTS,
    stats::Stats,
    verbs::{Access, Device, RemoteAddr},
};

/// The host's reaction to a WRITE.
type Host = Box<dyn FnMut(&HostSlots) + Send>;

/// Executes a client's requests at once. The host reacts after each WRITE.
struct Direct {
    slots: Arc<HostSlots>,
    host: Mutex<Host>,
    /// Number of WRITEs and READs.
    made: Mutex<(u64, u64)>,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Direct")
    }
}

impl Direct {
    fn offset(&self, at: RemoteAddr) -> usize {
        (at.addr - self.slots.remote_addr().addr) as usize
    }
}

impl OneSided for Arc<Direct> {
    fn write(&self, to: RemoteAddr, bytes: &[u8]) -> Result<(), RequestError> {
        self.made.lock().0 += 1;
        self.slots.memory.write(self.offset(to), bytes);
        (self.host.lock())(&self.slots);
        Ok(())
    }

    fn read(&self, from: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> {
        self.made.lock().1 += 1;
        self.slots.memory.read(self.offset(from), out);
        Ok(())
    }

    fn map(&self, at: RemoteAddr, _: u64, _: Access) -> Option<(Arc<Memory>, usize)> {
        Some((Arc::clone(&self.slots.memory), self.offset(at)))
    }

    fn fail(&self) {}
}

struct Bench {
    direct: Arc<Direct>,
    client: FetchClient,
    stats: Stats,
}

const FETCH_SIZE: usize = 256;
/// Length of the longest reply that the first READ includes.
const FITS: usize = FETCH_SIZE - 3 * WORD;

impl Bench {
    fn new(maps: bool, host: impl FnMut(&HostSlots) + Send + 'static) -> Bench {
        let pd = SoftDevice::new().unwrap().alloc_pd().unwrap();
        let slots = Arc::new(HostSlots::new(&*pd, true).unwrap());
        let base = slots.remote_addr();
        let direct = Arc::new(Direct { slots, host: Mutex::new(Box::new(host)), made: Mutex::default() });
        let client =
            FetchClient::new(Box::new(Arc::clone(&direct)), base, FetchSize::new(FETCH_SIZE, true), maps);
        Bench { direct, client, stats: Stats::default() }
    }

    fn slots(&self) -> &HostSlots {
        &self.direct.slots
    }

    fn call(&self, slot: usize, request: &[u8]) -> (Stage, Vec<u8>) {
        let mut reply = b"old".to_vec();
        let stage = self.client.call(slot, request, &mut reply, &self.stats, || false).unwrap();
        (stage, reply)
    }

    /// Returns the number of requests since the last call.
    fn made(&self) -> (u64, u64) {
        std::mem::take(&mut *self.direct.made.lock())
    }
}

/// Serves as a host that is awake, and answers at once with the reversed request.
fn prompt(slots: &HostSlots) {
    slots.mark(true);
    let mut request = Vec::new();
    for slot in 0..CALL_SLOTS {
        if slots.take(slot, &mut request).unwrap() {
            request.reverse();
            assert_eq!(
                slots.answer(slot, Kind::Plain, &request),
                Ok(AnswerWay::Memory),
                "no notification has come"
            );
        }
    }
}

#[test]
fn a_call_is_one_write_and_one_read_and_the_host_posts_nothing() {
    // The host has no queue pair to post on.
    let bench = Bench::new(false, prompt);
    for round in 0..1000 {
        let request = vec![round as u8; round % (FITS + 1)];
        assert_eq!(bench.call(round % CALL_SLOTS, &request), (Stage::Answered, request));
        assert_eq!(bench.made(), (1, 1));
    }
    assert_eq!(bench.stats.fetches.get(), 1000);
}

/// A parked call costs nothing until it is polled. A sleeping host is notified of it.
#[test]
fn a_call_may_be_parked_in_mapped_memory() {
    let bench = Bench::new(true, |_| {});
    let poll = || {
        let mut reply = b"old".to_vec();
        (bench.client.poll(3, &mut reply, &bench.stats).unwrap(), reply)
    };
    assert!(bench.client.is_mapped());
    bench.slots().mark(false);
    assert_eq!(bench.client.park(3, b"abc", &bench.stats), Ok(Stage::Notify { number: 1 }));
    prompt(bench.slots());
    assert_eq!(poll(), (Stage::Answered, b"cba".to_vec()));
    assert_eq!(bench.client.park(3, b"def", &bench.stats), Ok(Stage::Parked { number: 2 }));
    // The previous answer does not count.
    assert_eq!(poll(), (Stage::Parked { number: 2 }, b"old".to_vec()));
    let mut request = Vec::new();
    assert!(bench.slots().take(3, &mut request).unwrap());
    bench.slots().defer(3).unwrap();
    assert_eq!(poll().0, Stage::Notify { number: 2 });
    assert_eq!(bench.slots().handle_notification(3, 2, &mut request), Ok(NotificationAction::Wait));
    assert_eq!(bench.slots().answer(3, Kind::Plain, b""), Ok(AnswerWay::Message), "a message is waited for");
    assert_eq!(bench.client.park(3, b"ghi", &bench.stats), Ok(Stage::Parked { number: 3 }));
    assert!(bench.slots().take(3, &mut request).unwrap());
    assert_eq!(bench.slots().answer(3, Kind::Unanswered, b""), Ok(AnswerWay::Memory));
    assert_eq!(poll(), (Stage::Unanswered, vec![]));
    assert!(!Bench::new(false, |_| {}).client.is_mapped());
}

#[test]
fn a_longer_reply_is_one_read_more() {
    let bench = Bench::new(false, prompt);
    for (len, reads) in [(FITS - 1, 1), (FITS, 1), (FITS + 1, 2), (5000, 2), (MAX_CALL, 2)] {
        let request: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let (stage, mut reply) = bench.call(7, &request);
        reply.reverse();
        assert_eq!(stage, Stage::Answered);
        assert!(reply == request, "{len} bytes");
        assert_eq!(bench.made(), (1, reads), "{len} bytes");
    }
}

#[test]
fn requests_and_replies_of_every_length_are_whole_in_mapped_memory() {
    let looking = Bench::new(true, |_| unreachable!("nothing is posted"));
    let slots = Arc::clone(&looking.direct.slots);
    slots.mark(true);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                prompt(&slots);
                std::thread::yield_now();
            }
        });
        for len in (0..300).chain([4096, 8191, MAX_CALL - 1, MAX_CALL]) {
            let request: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let mut reply = Vec::new();
            let stage = looking.client.call(3, &request, &mut reply, &looking.stats, || false).unwrap();
            if stage != Stage::Answered {
                // The host's thread had no core during the budget.
                while looking.client.take(3, &mut reply, &looking.stats).unwrap() != Stage::Answered {}
            }
            reply.reverse();
            assert!(reply == request, "{len} bytes");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_has_mapped_the_memory_publishes_its_core() {
    for maps in [true, false] {
        let bench = Bench::new(maps, |_| {});
        assert_eq!(bench.slots().core(), None);
        let core = std::thread::scope(|scope| {
            let call = || {
                let core = sched_getcpu();
                let mut only = CpuSet::new();
                only.set(core);
                sched_setaffinity(None, &only).expect("a core that it may use");
                // The longest request, which ends just before the core word.
                bench.call(0, &[7; MAX_CALL]);
                core
            };
            scope.spawn(call).join().expect("no panic")
        });
        assert_eq!(bench.slots().core(), maps.then_some(core));
        let mut request = Vec::new();
        assert_eq!(bench.slots().handle_notification(0, 1, &mut request), Ok(NotificationAction::Take));
        assert!(request == [7; MAX_CALL]);
    }
}

#[test]
fn a_sleeping_host_is_notified_after_one_poll() {
    for maps in [false, true] {
        let bench = Bench::new(maps, |_| {});
        assert_eq!(bench.call(2, b"abc").0, Stage::Notify { number: 1 });
        assert_eq!(bench.made(), if maps { (0, 0) } else { (1, 1) });
        let mut request = Vec::new();
        assert_eq!(bench.slots().handle_notification(2, 1, &mut request), Ok(NotificationAction::Take));
        assert_eq!(request, b"abc");
        // The answer goes out as a message.
        assert_eq!(bench.slots().answer(2, Kind::Plain, b"cba"), Ok(AnswerWay::Message));
        assert_eq!(bench.call(2, b"").0, Stage::Notify { number: 2 });
    }
}

#[test]
fn a_host_that_takes_its_time_is_notified_and_answers_with_a_message() {
    let bench = Bench::new(false, |slots| {
        slots.mark(true);
        slots.take(5, &mut Vec::new()).unwrap();
    });
    assert_eq!(bench.call(5, b"abc").0, Stage::Notify { number: 1 });
    assert_eq!(bench.made(), (1, 4), "the whole budget");
    assert_eq!(bench.slots().handle_notification(5, 1, &mut Vec::new()), Ok(NotificationAction::Wait));
    assert_eq!(bench.slots().answer(5, Kind::Plain, b"cba"), Ok(AnswerWay::Message));
    // The budget has shrunk.
    assert_eq!(bench.call(5, b"abc").0, Stage::Notify { number: 2 });
    assert_eq!(bench.made(), (1, 2));
}

#[test]
fn a_notification_that_crosses_the_answer_is_told_that_it_is_in_memory() {
    let bench = Bench::new(false, |_| {});
    assert_eq!(bench.call(0, b"abc").0, Stage::Notify { number: 1 });
    prompt(bench.slots());
    assert_eq!(bench.slots().handle_notification(0, 1, &mut Vec::new()), Ok(NotificationAction::Answered));
    let mut reply = Vec::new();
    assert_eq!(bench.client.take(0, &mut reply, &bench.stats), Ok(Stage::Answered));
    assert_eq!(reply, b"cba");
}

#[test]
fn a_deferred_reply_is_not_polled_for() {
    let bench = Bench::new(false, |slots| {
        slots.mark(true);
        if slots.take(1, &mut Vec::new()).unwrap() {
            slots.defer(1).unwrap();
        }
    });
    assert_eq!(bench.call(1, b"abc").0, Stage::Notify { number: 1 });
    assert_eq!(bench.made(), (1, 1));
    assert_eq!(bench.slots().handle_notification(1, 1, &mut Vec::new()), Ok(NotificationAction::Wait));
    assert_eq!(bench.slots().answer(1, Kind::Plain, b"late"), Ok(AnswerWay::Message));
    assert_eq!(bench.call(1, b"abc").0, Stage::Notify { number: 2 });
    // The answer may precede the notification.
    assert_eq!(bench.slots().answer(1, Kind::Unanswered, b""), Ok(AnswerWay::Memory));
    assert_eq!(bench.slots().handle_notification(1, 2, &mut Vec::new()), Ok(NotificationAction::Answered));
    assert_eq!(bench.client.take(1, &mut Vec::new(), &bench.stats), Ok(Stage::Unanswered));
}

#[test]
fn a_call_that_another_thread_ends_is_not_waited_for() {
    for maps in [false, true] {
        let bench = Bench::new(maps, |_| {});
        bench.slots().mark(true);
        let stage = bench.client.call(1, b"abc", &mut Vec::new(), &bench.stats, || true).unwrap();
        assert_eq!(stage, Stage::Ended);
    }
}

fn write_head(slots: &HostSlots, at: usize, word: u64) {
    slots.memory.store_u64(at, word);
}

#[test]
fn the_host_refuses_malformed_requests() {
    let request = |number, kind, len| Head { number, kind, len }.word();
    let ahead = request(2, Kind::Plain, 0);
    let not_a_request = request(1, Kind::Deferred, 0);
    let too_long = request(1, Kind::Plain, MAX_CALL) + (1 << 32);
    for word in [ahead, too_long, u64::MAX] {
        let bench = Bench::new(false, |_| {});
        let slots = bench.slots();
        write_head(slots, layout::request(4), word);
        assert!(slots.take(4, &mut Vec::new()).is_err(), "{word:#x}");
        assert!(slots.handle_notification(4, 1, &mut Vec::new()).is_err(), "{word:#x}");
        assert_eq!(slots.take(3, &mut Vec::new()), Ok(false));
    }
    let bench = Bench::new(false, |_| {});
    let slots = bench.slots();
    write_head(slots, layout::request(4), not_a_request);
    slots.memory.store_u64(layout::request(4) + layout::tail(0), !not_a_request);
    assert!(slots.take(4, &mut Vec::new()).is_err());
}

#[test]
fn a_partial_request_is_awaited_by_polls_but_refused_after_a_notification() {
    let bench = Bench::new(false, |_| {});
    let slots = bench.slots();
    write_head(slots, layout::request(4), Head { number: 1, kind: Kind::Plain, len: 100 }.word());
    assert_eq!(slots.take(4, &mut Vec::new()), Ok(false));
    assert!(slots.handle_notification(4, 1, &mut Vec::new()).is_err());
}

#[test]
fn with_torn_words_only_a_notification_detects_a_malformed_request() {
    let pd = SoftDevice::new().unwrap().alloc_pd().unwrap();
    let slots = HostSlots::new(&*pd, false).unwrap();
    write_head(&slots, layout::request(4), u64::MAX);
    assert_eq!(slots.take(4, &mut Vec::new()), Ok(false));
    assert!(slots.handle_notification(4, 1, &mut Vec::new()).is_err());
}

#[test]
fn notifications_of_unknown_calls_are_refused() {
    let bench = Bench::new(false, prompt);
    let slots = bench.slots();
    for number in [0, 1, 2, u32::MAX] {
        assert!(slots.handle_notification(0, number, &mut Vec::new()).is_err(), "{number}");
    }
    assert_eq!(bench.call(0, b"abc").0, Stage::Answered);
    for number in [0, 2, 3] {
        assert!(slots.handle_notification(0, number, &mut Vec::new()).is_err(), "{number}");
    }
}

#[test]
fn changes_of_a_request_during_its_call_have_no_effect() {
    let bench = Bench::new(false, |_| {});
    assert_eq!(bench.call(0, b"abc").0, Stage::Notify { number: 1 });
    let mut request = Vec::new();
    assert_eq!(bench.slots().take(0, &mut request), Ok(true));
    bench.slots().memory.write(0, &[0xff; 64]);
    assert_eq!(bench.slots().take(0, &mut Vec::new()), Ok(false));
    assert_eq!(request, b"abc");
    assert_eq!(bench.slots().answer(0, Kind::Plain, &request), Ok(AnswerWay::Memory));
}

#[test]
fn malformed_answers_do_no_harm() {
    let plain = |len| Head { number: 1, kind: Kind::Plain, len }.word();
    for maps in [false, true] {
        for word in [plain(MAX_CALL) + (1 << 32), plain(0) | 7 << 56, plain(0) | 0xff_ffff << 32] {
            let bench = Bench::new(maps, |_| {});
            write_head(bench.slots(), layout::answer(0), word);
            assert_eq!(bench.call(0, b"abc").0, Stage::Malformed, "{maps} {word:#x}");
        }
        // An incomplete reply never arrives, and that of another call does not count.
        for word in [plain(MAX_CALL), Head { number: 7, kind: Kind::Plain, len: 3 }.word()] {
            let bench = Bench::new(maps, |_| {});
            bench.slots().mark(true);
            write_head(bench.slots(), layout::answer(0), word);
            assert_eq!(bench.call(0, b"abc").0, Stage::Notify { number: 1 }, "{maps} {word:#x}");
            assert_eq!(bench.client.take(0, &mut Vec::new(), &bench.stats), Ok(Stage::Malformed));
        }
    }
}

#[test]
fn call_numbers_wrap_around() {
    let bench = Bench::new(false, prompt);
    bench.client.begin_at(0, u32::MAX - 2);
    bench.slots().begin_at(0, u32::MAX - 2);
    for _ in 0..5 {
        assert_eq!(bench.call(0, b"abc"), (Stage::Answered, b"cba".to_vec()));
    }
}
