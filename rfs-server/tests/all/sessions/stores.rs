//! Sessions that reach the stores of a server.

use std::{
    thread,
    time::{Duration, Instant},
};

use pool::{ChunkId, ClientId, Incarnation, LinkError, Store, StoreId, StoreOptions, Stores};
use rdmabox::{Address, Key, ProviderKind, Secret, SessionOptions};
use rfs_proto::{Reply, Request, StoreAccess};
use rfs_server::{Membership, Server, StoresConfig};

use crate::common::{Client, connect, start_with};

/// Starts stores with the numbers of their runs, and a server that uses the first ones.
fn pool(dir: &tempfile::TempDir, stores: u128, used: usize) -> (Vec<Store>, Server) {
    let key = dir.path().join("pool.key");
    std::fs::write(&key, "pool 00112233445566778899aabbccddeeff\n").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let store = |run| {
        let mut options = StoreOptions::new(2 << 20, Incarnation(run));
        options.pool_key = Some(Key::load(&key).unwrap());
        Store::listen(&["127.0.0.1:0".parse().unwrap()], &options).unwrap()
    };
    let stores: Vec<_> = (1..=stores).map(store).collect();
    let addresses = stores[..used].iter().map(|store| store.addresses()[0].clone()).collect();
    let members = Membership::Addresses(addresses);
    let server = start_with(dir, |config| {
        config.stores = Some(StoresConfig { members, key, unit: 4096 });
    });
    (stores, server)
}

fn access(client: &Client, store: u16) -> StoreAccess {
    match client.ask(Request::ReachStore { store }) {
        Reply::Store(access) => access,
        other => panic!("{other:?}"),
    }
}

/// Uses the server's answer about one store at a store.
fn reach(access: &StoreAccess, store: u16, address: &Address) -> Result<(), LinkError> {
    let mut options = SessionOptions::default();
    options.provider = Some(ProviderKind::Tcp);
    let (id, secret) = (access.ticket.parse().unwrap(), Secret::new(&access.secret).unwrap());
    options.key = Some(Key { id, secret });
    let stores = Stores::new(ClientId(access.client), options);
    stores.set(StoreId(store), address, 0);
    stores.link(&[ChunkId { store: StoreId(store), number: access.chunk }]).map(|_| ())
}

/// A session that ended before a store was added was not fenced there: its ticket has to be void.
#[test]
fn an_ended_session_does_not_reach_a_store_that_is_added_later() {
    let dir = tempfile::tempdir().unwrap();
    let (stores, server) = pool(&dir, 2, 1);
    let address = |at: usize| &stores[at].addresses()[0];
    let client = connect(&server, ProviderKind::Tcp, false);
    let ended = access(&client, 1);
    reach(&ended, 1, address(0)).expect("a ticket of this session");
    drop(client);
    while reach(&ended, 1, address(0)).is_ok() {
        // Until the server knows that the session has ended.
    }
    assert_eq!(server.status_source().add_store(address(1)), Ok(2));
    let refused = reach(&ended, 2, address(1)).expect_err("a session that has ended");
    assert!(refused.to_string().contains("no ticket for client"), "{refused}");
    let client = connect(&server, ProviderKind::Tcp, false);
    for store in [1, 2] {
        reach(&access(&client, store), store, address(usize::from(store) - 1)).expect("a ticket");
    }
    assert!(matches!(client.ask(Request::ReachStore { store: 3 }), Reply::Error(_)));
}

/// Asks for a new access until the server has ended the previous one.
fn next_access(client: &Client, before: &StoreAccess) -> StoreAccess {
    let give_up = Instant::now() + Duration::from_secs(20);
    loop {
        let next = access(client, 1);
        if next != *before {
            return next;
        }
        assert!(Instant::now() < give_up, "the access has not ended");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Catches a fence that voids the next access as well, and an end of the session that leaves one of
/// its accesses.
#[test]
fn a_session_ends_its_access_to_a_store_and_gets_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let (stores, server) = pool(&dir, 2, 2);
    let address = |at: usize| &stores[at].addresses()[0];
    let client = connect(&server, ProviderKind::Tcp, false);
    assert_eq!(client.ask(Request::FenceStore { store: 1 }), Reply::Done, "it has no access");
    let (first, other) = (access(&client, 1), access(&client, 2));
    reach(&first, 1, address(0)).expect("a ticket");
    assert_eq!(client.ask(Request::FenceStore { store: 1 }), Reply::Done);
    let second = next_access(&client, &first);
    assert!(matches!(reach(&first, 1, address(0)), Err(LinkError::Refused { .. })), "its access has ended");
    assert_eq!(access(&client, 2), other, "the access to another store goes on");
    assert_eq!(client.ask(Request::FenceStore { store: 0 }), Reply::Done);
    let third = next_access(&client, &second);
    for (ended, at) in [(&second, 0), (&second, 1), (&other, 1)] {
        let store = u16::try_from(at).unwrap() + 1;
        while !matches!(reach(ended, store, address(at)), Err(LinkError::Refused { .. })) {
            // All stores are told of a number that only one of them knows.
        }
    }
    reach(&third, 1, address(0)).expect("a ticket");
    drop(client);
    while reach(&third, 1, address(0)).is_ok() {
        // Until the server knows that the session has ended.
    }
}

#[test]
fn what_cannot_be_added_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (stores, server) = pool(&dir, 1, 0);
    let add = |address: &str| server.status_source().add_store(&address.parse().unwrap());
    let refused = add("tcp:127.0.0.1:1").expect_err("no store");
    assert!(refused.contains("store 1 at tcp:127.0.0.1:1"), "{refused}");
    let own = server.addresses().iter().find(|address| address.provider() == ProviderKind::Tcp).unwrap();
    add(&own.to_string()).expect_err("a server is no store");
    let before = server.statfs().blocks;
    assert_eq!(add(&stores[0].addresses()[0].to_string()), Ok(1));
    assert_eq!((server.statfs().blocks - before) * 4096, 2 << 20);
    drop(server);
    let server = start_with(&tempfile::tempdir().unwrap(), |_| {});
    let refused = server.status_source().add_store(&stores[0].addresses()[0]).expect_err("no pool");
    assert!(refused.contains("it has no stores: start it with --pool"), "{refused}");
}
