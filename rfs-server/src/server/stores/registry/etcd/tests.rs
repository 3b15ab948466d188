//! The registry over an etcd in this process: tenure, outages, and the watch of stores.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, KeyId};

use super::{PoolKeys, fake::FakeEtcd, registration::Registration, registry::EtcdRegistry, tenure::Tenure};
use crate::server::stores::registry::{Health, PoolView, Registry, RegistryError, ServerRecord, StoreRecord};

const PAUSE: Duration = Duration::from_millis(1);

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

fn record(host: &str) -> ServerRecord {
    ServerRecord {
        run: format!("run of {host}"),
        host: host.into(),
        pid: 7,
        addresses: vec!["tcp:a:1".into()],
    }
}

fn pool_id() -> KeyId {
    "team".parse().expect("a name")
}

fn tenure(etcd: &Arc<FakeEtcd>, host: &str) -> Tenure {
    Tenure::new(Arc::<FakeEtcd>::clone(etcd), PoolKeys::new("team"), record(host), PAUSE)
}

fn view_of(etcd: &FakeEtcd) -> PoolView {
    serde_json::from_str(&etcd.value("/rdmabox/team/view").expect("a view")).expect("a view")
}

/// Waits until something is true.
fn eventually(mut is: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < give_up, "it did not happen");
        thread::sleep(PAUSE);
    }
}

#[test]
fn a_second_server_is_refused_while_the_first_shows_signs_of_life() {
    let etcd = Arc::<FakeEtcd>::default();
    let first = tenure(&etcd, "one");
    assert_eq!(first.take(1000).unwrap(), PoolView { epoch: 1000, ..PoolView::default() });
    let view = PoolView { view: 1, epoch: 1000, ..PoolView::of([address("tcp:s:1")]) };
    first.write(&view).unwrap();
    thread::scope(|scope| {
        // The first renews its lease while the second looks.
        let renewing = scope.spawn(|| {
            for _ in 0..8 {
                etcd.pass(3);
                thread::sleep(20 * PAUSE);
                assert!(matches!(first.renew(), Health::Up));
                thread::sleep(20 * PAUSE);
            }
        });
        let refused = tenure(&etcd, "two").take(2000).unwrap_err();
        assert!(matches!(refused, RegistryError::Taken { .. }), "{refused}");
        let text = refused.to_string();
        for words in ["process 7 on one at tcp:a:1", "Stop that server", "10 s"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        renewing.join().unwrap();
    });
    assert_eq!(view_of(&etcd), view);
    // A server that ends in order leaves the pool to the next at once.
    first.release();
    let second = tenure(&etcd, "two");
    let taken = second.take(900).unwrap();
    assert_eq!((taken.epoch, taken.addresses()), (1001, vec![address("tcp:s:1")]), "its clock is behind");
}

#[test]
fn a_server_that_has_failed_loses_the_pool_and_learns_it() {
    let etcd = Arc::<FakeEtcd>::default();
    let first = tenure(&etcd, "one");
    first.take(1000).unwrap();
    let second = thread::scope(|scope| {
        let second = scope.spawn(|| {
            let second = tenure(&etcd, "two");
            second.take(2000).map(|_| second)
        });
        for _ in 0..11 {
            thread::sleep(10 * PAUSE);
            etcd.pass(1);
        }
        second.join().unwrap().unwrap()
    });
    let view = PoolView { view: 5, epoch: 2000, ..PoolView::of([address("tcp:s:2")]) };
    second.write(&view).unwrap();
    // The first goes on after all, and must not change the pool of the second.
    let lost = first.write(&PoolView::default()).unwrap_err();
    assert!(matches!(&lost, RegistryError::Lost { by, .. } if by.contains("on two")), "{lost}");
    assert!(matches!(first.renew(), Health::Taken { .. }));
    assert_eq!(view_of(&etcd), view);
    assert!(matches!(second.renew(), Health::Up));
}

#[test]
fn a_lease_that_was_lost_comes_back_if_no_server_was_there() {
    let etcd = Arc::<FakeEtcd>::default();
    let server = tenure(&etcd, "one");
    server.take(1).unwrap();
    etcd.pass(60);
    assert_eq!(etcd.value("/rdmabox/team/server"), None);
    // A change notices it by itself.
    let view = PoolView { view: 1, epoch: 1, ..PoolView::of([address("tcp:s:1")]) };
    server.write(&view).unwrap();
    assert!(etcd.value("/rdmabox/team/server").is_some());
    etcd.pass(60);
    assert!(matches!(server.renew(), Health::Up));
    assert!(etcd.value("/rdmabox/team/server").is_some());
    // An etcd without its data gets all of it again.
    etcd.wipe();
    assert!(matches!(server.renew(), Health::Up));
    assert_eq!(view_of(&etcd), view);
}

#[test]
fn a_change_without_an_answer_is_undone() {
    let etcd = Arc::<FakeEtcd>::default();
    let server = tenure(&etcd, "one");
    server.take(1).unwrap();
    let old = PoolView { view: 1, epoch: 1, ..PoolView::of([address("tcp:s:1")]) };
    let new = PoolView { view: 2, epoch: 1, ..PoolView::of([address("tcp:s:1"), address("tcp:s:2")]) };
    server.write(&old).unwrap();
    etcd.set_loses_answers(true);
    assert!(matches!(server.write(&new), Err(RegistryError::Away { .. })));
    assert!(matches!(server.health(), Health::Away { .. }));
    assert_eq!(view_of(&etcd), new, "the answer was lost, not the change");
    etcd.set_loses_answers(false);
    assert!(matches!(server.renew(), Health::Up));
    assert_eq!(view_of(&etcd), old);
    etcd.set_away(true);
    let error = server.write(&new).unwrap_err().to_string();
    assert!(error.contains("Connection refused") && error.contains("try again"), "{error}");
    etcd.set_away(false);
    // The next attempt needs no renewal before.
    server.write(&new).unwrap();
    assert_eq!(view_of(&etcd), new);
}

#[test]
fn records_of_others_are_refused_or_passed_over() {
    let etcd = Arc::<FakeEtcd>::default();
    for (wrong, words) in [
        ("nonsense", "cannot be read"),
        ("{\"server\":{},\"epoch\":8796093022208}", "too high"),
        ("{\"server\":{},\"stores\":[{\"number\":1,\"address\":\"\"}]}", "no address"),
        (
            "{\"server\":{},\"stores\":[{\"number\":1,\"address\":\"tcp:a:1\"},{\"number\":1,\"address\":\"tcp:a:1\"}]}",
            "twice",
        ),
    ] {
        etcd.set("/rdmabox/team/view", wrong);
        let error = tenure(&etcd, "one").take(1).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("etcdctl get /rdmabox/team/view"), "{error}");
    }
    etcd.set("/rdmabox/team/view", "{\"server\":{},\"more\":1}");
    // A server writes its record with a lease.
    etcd.set("/rdmabox/team/server", "{}");
    etcd.set("/rdmabox/team/stores/tcp:wrong:1", "{\"address\":7}");
    let registry = EtcdRegistry::over(Arc::<FakeEtcd>::clone(&etcd), pool_id(), record("one"), PAUSE);
    registry.take(1).unwrap();
    assert!(registry.registered().unwrap().is_read);
    assert_eq!(registry.registered().unwrap().stores.len(), 0);
}

#[test]
fn stores_register_and_are_seen() {
    let etcd = Arc::<FakeEtcd>::default();
    let keys = || Arc::<FakeEtcd>::clone(&etcd);
    let store = |port| StoreRecord::of_this_process(address(&format!("tcp:s:{port}")), 4096).unwrap();
    let (one, two) = (store(1), store(2));
    let first = Registration::over(keys(), pool_id(), &one).unwrap();
    let registry = EtcdRegistry::over(keys(), pool_id(), record("server"), PAUSE);
    registry.take(1).unwrap();
    let seen = || registry.registered().unwrap().stores.to_vec();
    assert_eq!(seen(), std::slice::from_ref(&one), "known when the pool is taken");
    let second = Registration::over(keys(), pool_id(), &two).unwrap();
    eventually(|| seen() == [one.clone(), two.clone()]);
    drop(first);
    eventually(|| seen() == std::slice::from_ref(&two));
    // After an outage the stores are listed again.
    etcd.set_away(true);
    etcd.set_away(false);
    let _third = Registration::over(keys(), pool_id(), &one).unwrap();
    eventually(|| seen() == [one.clone(), two.clone()]);
    // A store that fails is gone with its lease.
    std::mem::forget(second);
    drop(registry);
    assert_eq!(etcd.value("/rdmabox/team/server"), None, "a server that ends gives the pool up");
}
