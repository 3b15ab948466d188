//! Fuzzes calls to stores and to the master of RStore, and the log of the master.

use std::time::Duration;

use ::rstore::{
    AllocFlags, Client, ClientOptions, NodeOptions, Refusal, StoreNode,
    machine::Settings,
    proto::{Answer, NamespaceId, Reply, Request, StoreCard},
};
use pool::{
    ClientId, Incarnation, Introduction, Order, Outcome, StoreAnswer, StoreId, StoreRequest, wire::Message,
};

/// Decodes bytes as each kind of message. A decoded message has an encoding of its own.
pub(in crate::targets) fn calls(bytes: &[u8]) {
    fn check<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Some(message) = M::decode(bytes) {
            assert_eq!(M::decode(&message.to_bytes()), Some(message));
        }
    }
    check::<StoreRequest>(bytes);
    check::<StoreAnswer>(bytes);
    check::<Request>(bytes);
    check::<Reply>(bytes);
}

/// Returns valid messages.
pub(in crate::targets) fn calls_seeds() -> Vec<Vec<u8>> {
    let introduction = Introduction { store: StoreId(1), client: ClientId(2), epoch: 3 };
    let order = Order::Prepare { count: 4, bytes: 1 << 26 };
    let card =
        StoreCard { address: "unix:/run/store".into(), incarnation: Incarnation(7), capacity: 1 << 30 };
    let chunks = StoreAnswer::Outcome(Outcome::Chunks(vec![1, 2, 3]));
    let alloc = Request::Alloc { namespace: NamespaceId(1), bytes: 1 << 20, copy_on_write: true };
    let refused = Reply { epoch: 1, answer: Answer::Refused(Refusal::NamespaceExists("a".into())) };
    vec![
        StoreRequest::Introduce(introduction).to_bytes(),
        StoreRequest::Order(order).to_bytes(),
        chunks.to_bytes(),
        Request::Register(card).to_bytes(),
        Request::Lost(vec![ClientId(1), ClientId(300)]).to_bytes(),
        alloc.to_bytes(),
        refused.to_bytes(),
    ]
}

/// Restores a master from bytes, as they are and with right checksums: a state that holds its
/// invariants, or an error.
pub(in crate::targets) fn log(bytes: &[u8]) {
    let mut repaired = bytes.to_vec();
    ::rstore::repair_checksums(&mut repaired);
    for bytes in [bytes, &repaired] {
        if let Ok(machine) = ::rstore::restore_log(bytes, &settings()) {
            assert_eq!(machine.check(), Ok(()));
        }
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.chunk_bytes = 4096;
    settings
}

/// Returns a log with the inputs of a client and a store, and the log of a master that starts with
/// it: a snapshot.
pub(in crate::targets) fn log_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a folder");
    let address = |name: &str| rdmabox::Address::Unix(dir.path().join(name));
    let path = dir.path().join("log");
    let mut options = ::rstore::MasterOptions::new(settings());
    options.log = Some(path.clone());
    let master = ::rstore::Master::listen(&[address("master")], &options).expect("a master");
    let of_store = NodeOptions::new(address("master"), 8 * 4096).expect("random numbers");
    let store = StoreNode::start(&[address("store")], &of_store).expect("a store");
    let client = Client::connect(&address("master"), ClientOptions::default()).expect("a client");
    assert!(client.wait_for_stores(1, Duration::from_secs(60)).expect("the status"));
    let namespace = client.create("a").expect("a namespace");
    namespace.reserve(6 * 4096).expect("memory");
    let region = namespace.alloc(2 * 4096, AllocFlags::CopyOnWrite).expect("a region");
    let newest = region.update(0..1).expect("a lease").commit().expect("a version");
    let update = newest.update(1..2).expect("a lease");
    let read = || std::fs::read(&path).expect("a log");
    let inputs = read();
    drop(master);
    drop(::rstore::Master::listen(&[address("next")], &options).expect("a master"));
    let snapshot = read();
    drop((update, newest, region, namespace, client, store));
    vec![inputs, snapshot]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_state_with_right_checksums_is_checked() {
        let snapshot = log_seeds().remove(1);
        let mut restored = 0;
        for at in 0..snapshot.len() {
            let mut changed = snapshot.clone();
            changed[at] = changed[at].wrapping_add(1);
            log(&changed);
            ::rstore::repair_checksums(&mut changed);
            restored += u32::from(::rstore::restore_log(&changed, &settings()).is_ok());
        }
        assert!(restored > 10, "only {restored} changed logs reach the code behind the checksums");
    }
}
