//! A lender that lies about the memory that it lends, while pages are dirty.
//!
//! # Concurrency
//! The host calls the lender's service. The test uses a whole pager.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rdmabox::{
    Access, CallError, Export, Host, HostHandle, Memory, Peer, ProviderKind, RemoteMr, Reply, Service,
};

use super::*;
use crate::{
    PagerEvent, PagerOptions, RemotePager,
    lender::protocol::{self, Answer, LenderStatus, Request},
    logic::layout::CHUNK,
};

/// Makes the lie of an honest answer: the number of a chunk and its memory.
type Lie = fn(u32, RemoteMr) -> Answer;

/// A lender that is honest for some chunks, and lies from then on.
struct Liar {
    export: Export,
    honest: u32,
    lie: Lie,
    lent: AtomicU32,
}

impl Service for Liar {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        let answer = match protocol::decode(request).ok_or("no request")? {
            Request::Allocate => {
                let number = self.lent.fetch_add(1, Ordering::Relaxed);
                let start = u64::from(number) * CHUNK as u64;
                let memory = peer.remote_mr(&self.export).slice(start..start + CHUNK as u64);
                let memory = memory.map_err(|_| "no memory")?;
                if number < self.honest { chunk(number, memory) } else { (self.lie)(number, memory) }
            }
            Request::Free(_) => Answer::Freed,
            Request::Status => Answer::Status(LenderStatus::default()),
        };
        protocol::encode(&answer, reply);
        Ok(())
    }
}

fn chunk(number: u32, memory: RemoteMr) -> Answer {
    Answer::Chunk(number, memory.to_le_bytes())
}

/// Returns the memory, moved towards the chunks before it.
fn moved(memory: RemoteMr, back: u64) -> RemoteMr {
    let base = rdmabox::RemoteAddr { addr: memory.base().addr - back, rkey: memory.base().rkey };
    RemoteMr::new(base, memory.len(), memory.access()).expect("a range")
}

/// Lies about one chunk.
const LIES: [(&str, Lie); 6] = [
    ("a short chunk", |number, memory| chunk(number, memory.slice(..CHUNK as u64 - 1).expect("a part"))),
    ("no bytes", |number, memory| chunk(number, memory.slice(..0).expect("a part"))),
    ("a chunk to read", |number, memory| chunk(number, memory.restrict(Access::REMOTE_READ))),
    ("bytes that are no memory", |number, _| Answer::Chunk(number, [0xff; RemoteMr::ENCODED_LEN])),
    ("another answer", |_, _| Answer::Freed),
    ("a status", |_, _| Answer::Status(LenderStatus::default())),
];

/// Lies about a chunk beside an honest one.
const OVERLAPS: [(&str, Lie); 3] = [
    ("the same memory", |number, memory| chunk(number, moved(memory, CHUNK as u64))),
    ("memory that overlaps", |number, memory| chunk(number, moved(memory, PAGE as u64))),
    ("the same number", |number, memory| chunk(number - 1, memory)),
];

fn liar(honest: u32, lie: Lie) -> HostHandle {
    let host = Host::new().expect("a host");
    let memory = Arc::new(Memory::shared("rfs-paging-liar", 16 * CHUNK).expect("memory"));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let export = host.export(&memory, access).expect("an export");
    let service = Arc::new(Liar { export, honest, lie, lent: AtomicU32::new(0) });
    host.listen(&["127.0.0.1:0".parse().expect("an address")], service).expect("a port")
}

/// Returns the events of a pager, and the pager.
fn pager(addresses: &[Address], redundancy: Redundancy) -> (RemotePager, Arc<Mutex<Vec<PagerEvent>>>) {
    let log = Arc::<Mutex<Vec<PagerEvent>>>::default();
    let events = Arc::clone(&log);
    let mut session = SessionOptions::default();
    session.provider = Some(ProviderKind::Tcp);
    let options = PagerOptions::new(64 * PAGE as u64)
        .redundancy(redundancy)
        .session(session)
        .on_event(move |event| events.lock().push(event.clone()));
    (RemotePager::connect(addresses, options).expect("a pager"), log)
}

/// Stores to each page, and checks all of them, twice.
fn use_all(pager: &RemotePager, pages: usize) {
    let mut memory = pager.map(pages * PAGE).expect("memory");
    for salt in [1, 1000] {
        (0..pages).for_each(|page| memory[page * PAGE..][..8].copy_from_slice(&(page + salt).to_le_bytes()));
        for page in 0..pages {
            assert_eq!(memory[page * PAGE..][..8], (page + salt).to_le_bytes(), "page {page}");
        }
    }
}

/// Waits for a number of events.
fn wait_for_events(log: &Mutex<Vec<PagerEvent>>, count: usize) {
    for _ in 0..3000 {
        if log.lock().len() >= count {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{:?}", log.lock());
}

#[test]
fn dirty_pages_stay_if_the_only_lender_lies() {
    for (what, lie) in LIES {
        let host = liar(0, lie);
        let (pager, log) = pager(host.addresses(), Redundancy::None);
        use_all(&pager, 200);
        let stats = pager.stats();
        assert_eq!((stats.pages_lost, stats.servers_lost, stats.max_resident), (0, 1, 200), "{what}");
        wait_for_events(&log, 1);
        let log = log.lock();
        let lost = |event: &&PagerEvent| {
            let PagerEvent::ServerLost { lost_pages, error, .. } = event else { return false };
            *lost_pages == 0 && matches!(error, RequestError::Invalid(_))
        };
        assert_eq!(log.iter().filter(lost).count(), 1, "{what}: {log:?}");
    }
}

/// Catches a pager that takes a chunk twice: pages of one group would have bytes of another one.
#[test]
fn a_mirror_goes_on_without_a_lender_that_lies() {
    let first = LIES.into_iter().map(|lie| (0, lie));
    let second = LIES.into_iter().chain(OVERLAPS).map(|lie| (1, lie));
    for (honest, (what, lie)) in first.chain(second) {
        let options = LenderOptions::new(16 << 20).allow_without_keys(true);
        let address = "127.0.0.1:0".parse().expect("an address");
        let lender = Lender::listen(&[address], &options).expect("a lender");
        let host = liar(honest, lie);
        let addresses = [host.addresses()[0].clone(), lender.addresses()[0].clone()];
        let (pager, log) = pager(&addresses, Redundancy::Mirror);
        // Three groups: the first or the second chunk of the liar is the first of its lies.
        use_all(&pager, 700);
        let stats = pager.stats();
        assert_eq!((stats.pages_lost, stats.servers_lost, stats.over_budget), (0, 1, 0), "{what}");
        assert!(stats.max_resident <= 64, "{what}: {stats:?}");
        wait_for_events(&log, 1);
        let lost = log.lock().clone();
        let [PagerEvent::ServerLost { address, error, lost_pages: 0, servers_left: 1 }, rest @ ..] =
            &lost[..]
        else {
            panic!("{what}: {lost:?}")
        };
        assert!(matches!(error, RequestError::Invalid(_)), "{what}: {error}");
        assert_eq!(*address, addresses[0], "{what}");
        assert!(rest.iter().all(|event| matches!(event, PagerEvent::Repaired { .. })), "{what}: {lost:?}");
    }
}
