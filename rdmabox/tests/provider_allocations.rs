//! Tests that a request allocates nothing in a provider: not in the post, the poll, or the engine
//! of the other side.
//!
//! Own program: its allocator counts the allocations of the whole process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rdmabox::{
    memory::Memory,
    provider::{
        rdma::{self, RdmaOptions},
        soft::SoftDevice,
    },
    verbs::{
        Access, AtomicOp, AtomicOps, CompletionQueue, Device, DirectOp, MrHandle, Progress, ProtectionDomain,
        QpInit, QueuePair, RemoteAddr, Rendezvous, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
    },
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is forwarded to the system allocator. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Longer than any successful step takes.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
const LEN: usize = 64 * 1024;
const ROUNDS: usize = 2_000;

struct Side {
    device: Arc<dyn Device>,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    mr: MrHandle,
}

fn side(device: Arc<dyn Device>, progress: Progress, access: Access) -> Side {
    let pd = device.alloc_pd().expect("protection domain");
    let cq = device.create_cq(64).expect("completion queue");
    let mut init = QpInit::new(cq.clone(), cq.clone());
    init.progress = progress;
    let qp = pd.create_qp(init).expect("queue pair");
    let memory = Arc::new(Memory::shared("allocations", LEN).expect("memory"));
    let mr = register(&pd, &memory, access);
    Side { device, cq, qp, mr }
}

fn register(pd: &Arc<dyn ProtectionDomain>, memory: &Arc<Memory>, access: Access) -> MrHandle {
    pd.register(memory, 0, LEN as u64, access).expect("register")
}

fn connect(a: &Side, b: &Side, streams: (Rendezvous, Rendezvous)) {
    thread::scope(|scope| {
        scope.spawn(|| b.qp.connect(streams.1, WAIT_LIMIT).expect("connect"));
        a.qp.connect(streams.0, WAIT_LIMIT).expect("connect");
    });
}

/// Posts a list whose last request is signaled, and polls for its completion.
fn carry_out(side: &Side, list: &[SendWr<'_>]) {
    side.qp.post_send(list).expect("post_send");
    let start = Instant::now();
    let mut out = [WorkCompletion::EMPTY; 8];
    loop {
        match side.cq.poll(&mut out).expect("poll") {
            0 => assert!(start.elapsed() < WAIT_LIMIT, "no completion"),
            count => {
                assert!(out[..count].iter().all(|wc| wc.status == WcStatus::Success), "{out:?}");
                assert_eq!(count, 1);
                return;
            }
        }
    }
}

/// Counts the allocations of many requests of each kind, after a warm-up of each kind.
fn allocations(
    device: impl Fn() -> Arc<dyn Device>,
    streams: (Rendezvous, Rendezvous),
) -> Vec<(&'static str, u64)> {
    let a = side(device(), Progress::Caller, Access::LOCAL_WRITE);
    let b = side(device(), Progress::Engine, Access::REMOTE_ANY);
    connect(&a, &b, streams);
    let mapped = a.qp.executes_at_post();
    let sge = |offset: u64, length: u32| Sge { addr: a.mr.addr() + offset, length, lkey: a.mr.lkey() };
    let remote = RemoteAddr { addr: b.mr.addr(), rkey: b.mr.rkey() };
    let (word, page, all) = ([sge(0, 8)], [sge(0, 4096)], [sge(0, LEN as u32)]);
    let scattered: Vec<Sge> = (0..30).map(|index| sge(index * 64, 64)).collect();
    let wr = |op, sges, flags| SendWr::new(1, op, sges).with_flags(flags);
    let one = |op, sges| [wr(op, sges, SendFlags::SIGNALED)];
    let write = SendOp::Write { remote, imm: None };
    let read = SendOp::Read { remote };
    let chain: Vec<SendWr<'_>> = (0..16)
        .map(|index| wr(write, &page[..], if index == 15 { SendFlags::SIGNALED } else { SendFlags::empty() }))
        .collect();
    let inline = [one(write, &[])[0].with_inline(&[7; 64])];
    let swap = SendOp::CompareSwap { remote, compare: 0, swap: 0 };
    let max = SendOp::FetchOp { remote, op: AtomicOp::Max(1) };
    let lists: [(&str, &[SendWr<'_>]); 9] = [
        ("WRITE of 8 bytes", &one(write, &word)),
        ("WRITE of 64 KiB", &one(write, &all)),
        ("inline WRITE", &inline),
        ("chain of WRITEs", &chain),
        ("WRITE of 30 pieces", &one(write, &scattered)),
        ("READ of 4 KiB", &one(read, &page)),
        ("READ of 64 KiB", &one(read, &all)),
        ("READ into 30 pieces", &one(read, &scattered)),
        ("compare-and-swap", &one(swap, &word)),
    ];
    // Not every device has it.
    let has_max = a.device.attr().atomic_ops.contains(AtomicOps::MAX);
    let maximum: [(&str, &[SendWr<'_>]); 1] = [("maximum", &one(max, &word))];
    let lists = lists.iter().chain(maximum.iter().filter(|_| has_max));
    let counted = |what: &'static str, run: &mut dyn FnMut()| {
        // The queues grow to their final sizes.
        (0..ROUNDS).for_each(|_| run());
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (0..ROUNDS).for_each(|_| run());
        (what, ALLOCATIONS.load(Ordering::SeqCst) - before)
    };
    let mut counts: Vec<_> = lists.map(|(what, list)| counted(what, &mut || carry_out(&a, list))).collect();
    if mapped {
        counts.push(counted("a WRITE at once", &mut || {
            let mut op = DirectOp::Write { remote, data: &[1; 4096] };
            assert_eq!(a.qp.execute_now(&mut op), Some(Ok(())));
        }));
    }
    counts
}

fn tcp_streams() -> (Rendezvous, Rendezvous) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (Rendezvous::Tcp(a), Rendezvous::Tcp(b))
}

/// Held by the counting test, because all tests of this process share the count.
static COUNTING: Mutex<()> = Mutex::new(());

#[test]
fn requests_take_nothing_from_the_allocator() {
    let _alone = COUNTING.lock();
    let soft = || -> Arc<dyn Device> { SoftDevice::new().expect("device") };
    let (a, b) = UnixStream::pair().expect("socketpair");
    let shm = allocations(soft, (Rendezvous::Unix(a), Rendezvous::Unix(b)));
    let tcp = allocations(soft, tcp_streams());
    let some: Vec<_> = shm.iter().chain(&tcp).filter(|(_, count)| *count > 0).collect();
    assert!(some.is_empty(), "allocations in {ROUNDS} requests: shm {shm:?}, tcp {tcp:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn requests_over_rdma_take_nothing_from_the_allocator() {
    let _alone = COUNTING.lock();
    let rdma = allocations(|| rdma::open(&RdmaOptions::default()).expect("device"), tcp_streams());
    let some: Vec<_> = rdma.iter().filter(|(_, count)| *count > 0).collect();
    assert!(some.is_empty(), "allocations in {ROUNDS} requests: {rdma:?}");
}
