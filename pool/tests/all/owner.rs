//! An owner with the key of the pool, and clients with tickets, over shared memory and TCP.

use std::time::{Duration, Instant};

use crate::support::{ID, LEN, Site, on_all_providers, options, pool_key, start, ticket};
use pool::{ChunkId, ClientId, LinkError, OwnedStore, OwnerError, Piece, Stores, Ticket};
use rdmabox::Secret;

fn chunk(owner: &OwnedStore) -> [ChunkId; 1] {
    crate::support::chunk(owner.chunk())
}

fn refused(stores: &Stores, chunk: &[ChunkId]) -> String {
    match stores.link(chunk) {
        Err(error @ (LinkError::Refused { .. } | LinkError::Connect { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_owner_and_its_clients_share_one_memory() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        assert_eq!((owner.len(), site.store.report().chunks), (LEN, 1));
        let client = site.client(9, ticket(9, 5));
        let link = client.link(&chunk(&owner)).expect("a link").remove(0);
        let last = Piece { link: &link, offset: LEN - 4, len: 4 };
        pool::write(&[last], b"data").expect("a transfer");
        let mut out = [0; 4];
        owner.read(LEN - 4, &mut out).expect("a transfer");
        assert_eq!(&out, b"data");
        owner.write(0, b"more").expect("a transfer");
        owner.zero(LEN - 3, 2).expect("an order");
        pool::read(&[last], &mut out).expect("a transfer");
        assert_eq!(&out, b"d\0\0a");
        for (offset, len) in [(LEN - 1, 2), (u64::MAX, 2), (LEN + 1, 0)] {
            assert!(matches!(owner.zero(offset, len), Err(OwnerError::Refused { .. })), "{len} at {offset}");
        }
    });
}

#[test]
fn a_fenced_client_reaches_nothing_and_does_not_come_back() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        let (fenced, other) = (site.client(1, ticket(1, 5)), site.client(2, ticket(2, 5)));
        let links = [&fenced, &other].map(|client| client.link(&chunk(&owner)).expect("a link").remove(0));
        let write = |at: usize| pool::write(&[Piece { link: &links[at], offset: 0, len: 4 }], b"data");
        assert_eq!((write(0), write(1)), (Ok(()), Ok(())));
        owner.fence(ClientId(1)).expect("an order");
        assert!(write(0).is_err(), "a fenced client writes");
        assert_eq!(write(1), Ok(()));
        let text = refused(&site.client(1, ticket(1, 5)), &chunk(&owner));
        assert!(text.contains("the access of client 1 in epoch 0 has ended"), "{text}");
    });
}

#[test]
fn a_ticket_to_read_does_not_let_write() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        owner.write(0, b"data").expect("a transfer");
        let reader = site.client(1, Ticket { may_write: false, ..ticket(1, 5) });
        let link = reader.link(&chunk(&owner)).expect("a link").remove(0);
        let piece = [Piece { link: &link, offset: 0, len: 4 }];
        let mut out = [0; 4];
        pool::read(&piece, &mut out).expect("a transfer");
        assert_eq!(&out, b"data");
        assert!(pool::write(&piece, b"late").is_err());
        assert!(link.memory().for_write(0, 4).is_err());
    });
}

#[test]
fn only_the_ticket_of_this_client_and_epoch_admits() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        let text = refused(&site.client(1, ticket(2, 5)), &chunk(&owner));
        assert!(text.contains("no ticket for client 1"), "{text}");
        let text = refused(&site.client(1, ticket(1, 4)), &chunk(&owner));
        assert!(text.contains("no ticket for client 1"), "{text}");
        let mut forged = ticket(1, 5).key(&pool_key());
        forged.secret = Secret::new(&[8; 32]).expect("a secret");
        let stores = Stores::new(ClientId(1), options(site.provider, forged));
        stores.set(ID, &site.address, 0);
        refused(&stores, &chunk(&owner));
        // A ticket is not the key of the pool.
        let ticket = options(site.provider, ticket(1, 5).key(&pool_key()));
        let error = OwnedStore::join(ID, &site.address, &ticket, 6).expect_err("a client");
        assert!(error.to_string().contains("only a program with the key of the pool"), "{error}");
    });
}

#[test]
fn the_next_owner_begins_anew() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        let client = site.client(1, ticket(1, 5));
        let link = client.link(&chunk(&owner)).expect("a link").remove(0);
        let piece = [Piece { link: &link, offset: 0, len: 4 }];
        pool::write(&piece, b"data").expect("a transfer");
        let error = site.join(6).expect_err("the owner is connected");
        assert!(error.to_string().contains("another server uses this store"), "{error}");
        drop(owner);
        let next = site.join_after(6);
        let mut out = [1; 4];
        next.read(0, &mut out).expect("a transfer");
        assert_eq!(out, [0; 4], "the memory of the next owner is zero");
        let give_up = Instant::now() + Duration::from_secs(20);
        while pool::write(&piece, b"late").is_ok() {
            // Shared memory that a client has mapped stays, but it is no memory of the store.
            assert!(Instant::now() < give_up, "the client of the previous owner still has a session");
        }
        next.read(0, &mut out).expect("a transfer");
        assert_eq!(out, [0; 4]);
        let error = site.join(5).expect_err("an old owner");
        assert!(error.to_string().contains("a later server uses this store"), "{error}");
        next.check().expect("the store obeys the later owner");
    });
}

#[test]
fn an_owner_that_leaves_returns_the_memory() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        let client = site.client(1, ticket(1, 5));
        let link = client.link(&chunk(&owner)).expect("a link").remove(0);
        let report = owner.report().expect("numbers");
        assert_eq!((report.chunks, report.clients), (1, 1));
        owner.leave().expect("an order");
        assert_eq!(site.store.report().chunks, 0);
        assert!(matches!(owner.write(0, b"late"), Err(OwnerError::Lost { .. })));
        assert!(owner.leave().is_err(), "it has left");
        // The ticket of the earlier epoch is void for the next owner, and so is the session.
        let next = site.join_after(6);
        refused(&site.client(1, ticket(1, 5)), &chunk(&next));
        // Mapped memory stays with the client, but it is no memory of the store.
        let _ = pool::write(&[Piece { link: &link, offset: 0, len: 4 }], b"late");
        let mut out = [1; 4];
        next.read(0, &mut out).expect("a transfer");
        assert_eq!(out, [0; 4]);
    });
}

#[test]
fn a_restarted_store_is_lost() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        owner.write(0, b"data").expect("a transfer");
        let Site { store, address, provider, _dir } = site;
        drop(store);
        let error = owner.write(0, b"data").expect_err("the store has ended");
        assert!(matches!(error, OwnerError::Unreachable { .. }), "{error}");
        let _store = start(&address, 2, |_| {});
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            match owner.check() {
                Err(OwnerError::Lost { .. }) => break,
                other => assert!(Instant::now() < give_up, "{provider:?}: {other:?}"),
            }
        }
        assert!(matches!(owner.read(0, &mut [0]), Err(OwnerError::Lost { .. })));
    });
}
