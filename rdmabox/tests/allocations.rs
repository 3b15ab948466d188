//! In steady state an operation allocates nothing on the thread that makes it.
//!
//! Own program: its allocator counts, and a program has one global allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{Arc, LazyLock},
    time::Duration,
};

use rdmabox::{
    AtomicOp, AtomicOps, BatchMode, Buffer, Op, OwnedOp, PollingMode, ProviderKind, RemoteAddr, Session,
    across, wait_all,
};

mod support;

use support::{Fixture, at, base, on_each_provider, providers};

/// The system's allocator; counts the requests of each thread to it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: The system allocator does all the work. The count is a plain cell: it needs no memory
// and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds that are counted, after a third of their number. Fewer where only RDMA is tested: its
/// processors are emulated.
static ROUNDS: LazyLock<u64> =
    LazyLock::new(
        || if std::env::var("RDMABOX_TEST_PROVIDERS").as_deref() == Ok("rdma") { 300 } else { 900 },
    );
/// Started calls that a session has under way at most.
const MAX_STARTED: usize = 8;

/// Counts the allocations of this thread in [`ROUNDS`] operations, after a third as many that do
/// not count.
fn allocations(mut operation: impl FnMut()) -> u64 {
    (0..*ROUNDS / 3).for_each(|_| operation());
    let before = ALLOCATIONS.get();
    (0..*ROUNDS).for_each(|_| operation());
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), *ROUNDS);
    assert_eq!(allocations(|| drop(std::hint::black_box(Vec::<u8>::new()))), 0);
}

#[test]
fn blocking_reads_and_writes_allocate_nothing() {
    on_each_provider(|mut f| {
        for polling in [PollingMode::Adaptive, PollingMode::Busy] {
            f.options.polling = polling;
            let session = f.connect();
            let base = base(&session);
            for len in [8, 4096] {
                let mut data = vec![1; len];
                assert_eq!(
                    allocations(|| session.write(base, &data).unwrap()),
                    0,
                    "write of {len}, {polling}"
                );
                assert_eq!(
                    allocations(|| session.read(base, &mut data).unwrap()),
                    0,
                    "read of {len}, {polling}"
                );
            }
        }
    });
}

#[test]
fn registering_for_a_request_makes_two_objects() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let each = match session.provider() {
            ProviderKind::Shm if f.options.direct => 0,
            ProviderKind::Shm | ProviderKind::Tcp => 2,
            // As the device's library does it.
            _ => return,
        };
        let mut data = vec![1; 65536];
        assert_eq!(allocations(|| session.write(base, &data).unwrap()), each * *ROUNDS);
        assert_eq!(allocations(|| session.read(base, &mut data).unwrap()), each * *ROUNDS);
    });
}

#[test]
fn short_lists_allocate_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let (data, mut back, mut old) = ([1; 512], [0; 512], 0);
        let list = || {
            let mut ops = [
                Op::Write { remote: at(base, 64), data: &data },
                Op::CompareSwap { remote: base, compare: 0, swap: 0, old: &mut old },
                Op::Read { remote: at(base, 64), out: &mut back },
            ];
            session.execute(&mut ops).unwrap();
        };
        assert_eq!(allocations(list), 0);
        assert_eq!((back, old), (data, 0));
    });
}

#[test]
fn vectored_requests_allocate_nothing() {
    on_each_provider(|mut f| {
        for &batch in BatchMode::ALL {
            f.options.batch = batch;
            let session = f.connect();
            let base = base(&session);
            let data = [1; 512];
            let parts: Vec<_> = (0..16).map(|i| (at(base, i % 8 * 512 + i / 8 * 8192), &data[..])).collect();
            assert_eq!(allocations(|| session.write_vectored(&parts).unwrap()), 0, "{batch}");
        }
    });
}

#[test]
fn atomics_allocate_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        assert_eq!(allocations(|| assert!(session.fetch_add(base, 1).is_ok())), 0);
        assert_eq!(allocations(|| assert!(session.compare_swap(base, 0, 0).is_ok())), 0);
        // The same if the session lacks it.
        let has = session.supports(AtomicOps::SWAP);
        let swap = || assert_eq!(session.fetch_op(base, AtomicOp::Swap(1)).is_ok(), has);
        assert_eq!(allocations(swap), 0);
    });
}

#[test]
fn started_requests_with_a_registered_buffer_allocate_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let mut buffer = session.buffer(4096);
        let write = || {
            let back = session.start_write(base, buffer.take().unwrap()).wait().unwrap();
            buffer = Some(back);
        };
        assert_eq!(allocations(write), 0);
        let read = || {
            let back = session.start_read(base, buffer.take().unwrap()).wait().unwrap();
            buffer = Some(back);
        };
        assert_eq!(allocations(read), 0);
    });
}

#[test]
fn started_atomics_allocate_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        assert_eq!(allocations(|| assert!(session.start_fetch_add(base, 1).wait().is_ok())), 0);
        assert_eq!(allocations(|| assert!(session.start_compare_swap(base, 0, 0).wait().is_ok())), 0);
        let has = session.supports(AtomicOps::SWAP);
        let swap = || assert_eq!(session.start_fetch_op(base, AtomicOp::Swap(1)).wait().is_ok(), has);
        assert_eq!(allocations(swap), 0);
        assert_eq!(allocations(|| assert!(session.start_load_u64(base).wait().is_ok())), 0);
    });
}

#[test]
fn short_started_lists_allocate_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let mut kept = Some(vec![
            OwnedOp::Write { remote: at(base, 64), data: vec![1; 512] },
            OwnedOp::FetchAdd { remote: base, add: 1, old: 0 },
            OwnedOp::Read { remote: at(base, 64), out: vec![0; 512] },
        ]);
        let list = || kept = Some(session.start_execute(kept.take().unwrap()).wait().unwrap());
        assert_eq!(allocations(list), 0);
    });
}

/// The outcomes are one vector, and there is none for the waits.
#[test]
fn lists_across_sessions_allocate_their_outcomes() {
    on_each_provider(|f| {
        let sessions = [f.connect(), f.connect(), f.connect()];
        let base = base(&sessions[0]);
        let bases = sessions.each_ref().map(own_base);
        let data = [1; 512];
        let lists = || {
            let (mut old, [one, two, three]) = (0, bases);
            let mut first = [Op::Write { remote: at(one, 64), data: &data }];
            let mut second = [Op::FetchAdd { remote: two, add: 1, old: &mut old }];
            let mut third = [Op::Write { remote: at(three, 8192), data: &data }];
            let [a, b, c] = &sessions;
            let outcomes = across(&mut [(a, &mut first), (b, &mut second), (c, &mut third)]);
            assert!(outcomes.iter().all(Result::is_ok));
        };
        assert_eq!(allocations(lists), *ROUNDS);
        let mut kept = Some((session_buffer(&sessions[0]), session_buffer(&sessions[1])));
        let waits = || {
            let (one, two) = kept.take().unwrap();
            let mut one = sessions[0].start_write(base, one);
            let mut two = sessions[1].start_read(bases[1], two);
            assert!(wait_all(&mut [&mut one, &mut two], Duration::from_secs(60)));
            kept = Some((one.wait().unwrap(), two.wait().unwrap()));
        };
        assert_eq!(allocations(waits), 0);
    });
}

fn own_base(session: &Arc<Session>) -> RemoteAddr {
    base(session)
}

fn session_buffer(session: &Session) -> Buffer {
    session.buffer(4096).unwrap()
}

/// The state of the call, and its reply. The host's reply has the buffer of an earlier request.
#[test]
fn a_pending_call_allocates_its_state_and_its_reply() {
    on_each_provider(|f| {
        let session = f.connect();
        let mut request = Some(b"abc".to_vec());
        let call = || {
            let reply = session.call_async(request.take().unwrap()).wait().unwrap();
            request = Some(reply);
        };
        // Its state, whose lists of waiters grow no more.
        assert_eq!(allocations(call), *ROUNDS);
    });
}

#[test]
fn started_calls_allocate_nothing() {
    on_each_provider(|f| {
        let session = f.connect();
        let mut reply = Vec::new();
        assert_eq!(allocations(|| session.call(b"abc", &mut reply).unwrap()), 0);
        // Each place of a started call has had a reply, so each has its buffer. How many places
        // three quick calls take depends on the host.
        (0..MAX_STARTED).for_each(|_| session.start_call(b"slow").unwrap());
        session.finish_calls().unwrap();
        let start = || {
            (0..3).for_each(|_| session.start_call(b"abc").unwrap());
            session.finish_calls().unwrap();
        };
        assert_eq!(allocations(start), 0);
    });
}

/// The host answers a call by message when the caller has looked for the answer in vain for a time.
/// The second call has another slot than the calls before. Memory is mapped, so a slot needs no
/// buffer for requests.
#[test]
fn the_first_message_that_answers_a_call_in_a_slot_allocates_nothing() {
    if !providers().contains(&ProviderKind::Shm) {
        return;
    }
    let fixture = Fixture::new(ProviderKind::Shm);
    let session = fixture.connect();
    let mut reply = Vec::new();
    (0..3).for_each(|_| session.call(b"slow", &mut reply).unwrap());
    session.start_call(b"slow").unwrap();
    session.finish_calls().unwrap();
    session.start_call(b"slow").unwrap();
    let before = ALLOCATIONS.get();
    session.call(b"slow", &mut reply).unwrap();
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(reply, b"done");
}
