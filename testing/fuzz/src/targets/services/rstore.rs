//! Fuzzes calls to stores and to the master of RStore, and the log of the master.

use ::rstore::{
    Refusal,
    machine::{Machine, Settings},
    proto::{Answer, NamespaceId, Reply, Request, StoreCard},
};
use pool::{ClientId, Incarnation, Introduction, Order, Outcome, StoreAnswer, StoreId, StoreRequest};

/// Decodes bytes as each kind of message. A decoded message has an encoding of its own.
pub(in crate::targets) fn calls(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Some(request) = StoreRequest::decode(bytes) {
        request.encode(&mut again);
        assert_eq!(StoreRequest::decode(&again), Some(request));
    }
    again.clear();
    if let Some(answer) = StoreAnswer::decode(bytes) {
        answer.encode(&mut again);
        assert_eq!(StoreAnswer::decode(&again), Some(answer));
    }
    again.clear();
    if let Some(request) = Request::decode(bytes) {
        request.encode(&mut again);
        assert_eq!(Request::decode(&again), Some(request));
    }
    again.clear();
    if let Some(reply) = Reply::decode(bytes) {
        reply.encode(&mut again);
        assert_eq!(Reply::decode(&again), Some(reply));
    }
}

/// Returns valid messages.
pub(in crate::targets) fn calls_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut seed = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        seeds.push(bytes);
    };
    let introduction = Introduction { store: StoreId(1), client: ClientId(2), epoch: 3 };
    let order = Order::Prepare { count: 4, bytes: 1 << 26 };
    let card =
        StoreCard { address: "unix:/run/store".into(), incarnation: Incarnation(7), capacity: 1 << 30 };
    let chunks = StoreAnswer::Outcome(Outcome::Chunks(vec![1, 2, 3]));
    let alloc = Request::Alloc { namespace: NamespaceId(1), bytes: 1 << 20, copy_on_write: true };
    let refused = Reply { epoch: 1, answer: Answer::Refused(Refusal::NamespaceExists("a".into())) };
    seed(&|out| StoreRequest::Introduce(introduction).encode(out));
    seed(&|out| StoreRequest::Order(order.clone()).encode(out));
    seed(&|out| chunks.encode(out));
    seed(&|out| Request::Register(card.clone()).encode(out));
    seed(&|out| alloc.encode(out));
    seed(&|out| refused.encode(out));
    seeds
}

/// Restores a master from bytes: a state that holds its invariants, or an error.
pub(in crate::targets) fn log(bytes: &[u8]) {
    if let Ok(machine) = ::rstore::restore_log(bytes, &Settings::default()) {
        assert_eq!(machine.check(), Ok(()));
    }
}

/// Returns the log of a new master.
pub(in crate::targets) fn log_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("log");
    let address = rdmabox::Address::Unix(dir.path().join("master"));
    let mut options = ::rstore::MasterOptions::new(Machine::new(Settings::default()).settings().clone());
    options.log = Some(path.clone());
    drop(::rstore::Master::listen(&[address], &options).expect("a master"));
    vec![std::fs::read(path).expect("a log")]
}
