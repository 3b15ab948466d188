//! Files whose data lies in the server's own memory and in stores, over shared memory and TCP. The
//! pieces have a block or two, so that most operations cross a boundary.
//!
//! Own program: the crate has no other. Its tests without stores are in `src/tests`.

mod drain;
mod drain_sessions;
mod late_writes;
#[path = "../../../pool/tests/support/relay.rs"]
mod relay;
mod site;
mod steps;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use rdmabox::ProviderKind;
use rfs_client::Client;
use rfs_proto::{BLOCK, Errno, FallocateFlags, ROOT_INO};
use rfs_server::server::status::pool::StoreState;

use site::{BY, MIB, Site, create, eventually, on_all_providers, pattern, read, status, store, truncate};
use steps::{apply, step};

#[test]
fn a_file_is_spread_over_all_stores() {
    on_all_providers(3, 64 << 10, |site| {
        let (first, second) = (site.client(), site.client());
        let before = site.free();
        assert_eq!(before, 16 * MIB, "the sum of the server and three stores");
        let ino = create(&first, "file");
        let data = pattern(8 << 20, 3);
        data.chunks(1 << 20).zip(0..).for_each(|(part, at)| {
            first.writes.write(ino, at * MIB, part).expect("a write");
        });
        assert!(read(&first, ino) == data);
        second.files.open(ino, false).expect("an open file");
        assert!(read(&second, ino) == data, "another client sees it");
        for store in site.stores.iter().flatten() {
            assert_eq!(store.report().clients, 2, "each client has a session to each store");
        }
        assert!(before - site.free() >= 8 * MIB);
        second.files.close(ino).expect("a close");
        truncate(&first, ino, 0).expect("a truncation");
        eventually(|| (site.free() == before).then_some(()));
        // Space that is used again is zero.
        truncate(&first, ino, 12 * MIB).expect("a file with a hole");
        first.writes.write(ino, 12 * MIB - 1, b"x").expect("a write");
        first.space.fallocate(ino, 0, 12 * MIB, FallocateFlags::empty()).expect("space");
        assert!(read(&first, ino)[..(12 * MIB - 1) as usize].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn appends_of_two_clients_cross_stores() {
    on_all_providers(3, BLOCK, |site| {
        let ino = create(&site.client(), "log");
        thread::scope(|scope| {
            for mark in [b'a', b'b'] {
                let client = site.client();
                scope.spawn(move || {
                    client.files.open(ino, true).expect("an open file");
                    for round in 0..40_u32 {
                        let len = 100 + round as usize * 150;
                        client.appends.append(ino, &vec![mark; len]).expect("an append");
                    }
                });
            }
        });
        let reader = site.client();
        reader.files.open(ino, false).expect("an open file");
        let bytes = read(&reader, ino);
        assert_eq!(bytes.len(), (0..40).map(|round| 2 * (100 + round * 150)).sum::<usize>());
        assert!(bytes.iter().all(|byte| b"ab".contains(byte)), "an append left a hole");
    });
}

#[test]
fn a_store_that_ends_fails_its_own_places_only() {
    on_all_providers(2, BLOCK, |mut site| {
        let client = site.client();
        let (small, large) = (create(&client, "small"), create_for_first(&client, ROOT_INO, "large"));
        client.writes.write(small, 0, &pattern(100, 1)).expect("a write");
        client.writes.write(large, 0, &pattern(3 * 4096, 2)).expect("a write");
        site.stores[0] = None;
        let mut part = [0; 4096];
        // Until the client notices, mapped memory of the store is still there.
        let error = eventually(|| client.reads.read_into(large, 4096, &mut part).err());
        assert_eq!(error.errno(), Errno::EIO);
        let text = error.to_string();
        assert!(text.contains("store 1") && text.contains(&site.addresses[0].to_string()), "{text}");
        let error = client.writes.write(large, 5000, b"x").expect_err("a lost store");
        assert_eq!(error.errno(), Errno::EIO);
        for at in [0, 8192] {
            assert_eq!(client.reads.read_into(large, at, &mut part).expect("a read"), 4096);
            assert!(part == pattern(3 * 4096, 2)[at as usize..][..4096]);
            client.writes.write(large, at, b"new").expect("a write");
        }
        assert_eq!(read(&client, small), pattern(100, 1));
        // Its extent cannot be zeroed in part, so the file stays as long as it was.
        assert_eq!(truncate(&client, large, 5000).expect_err("a lost store").errno(), Errno::EIO);
        assert_eq!(client.attributes.getattr(large).expect("attributes").size, 3 * 4096);
        // New data goes elsewhere, as soon as the server has noticed.
        let other = create(&client, "other");
        let mut pieces = (0_u64..).step_by(3);
        eventually(|| {
            let at = pieces.next().expect("a number") * 4096;
            client.writes.write(other, at, &pattern(3 * 4096, 4)).ok()
        });
        // A store that comes back without its memory is no store of the pool.
        let key = site.dir.path().join("pool.key");
        site.stores[0] = Some(store(&site.addresses[0], &key, 4 * MIB, 99));
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(client.reads.read_into(large, 4096, &mut part).expect_err("lost").errno(), Errno::EIO);
        // The remaining data can be removed.
        truncate(&client, large, 0).expect("a truncation");
    });
}

#[test]
fn the_files_of_a_lost_store_are_reported() {
    on_all_providers(2, BLOCK, |mut site| {
        let client = site.client();
        let directory = client.names.mkdir(ROOT_INO, b"deep", 0o755, BY).expect("a directory").ino;
        let file = |parent, name: &str, len| {
            let ino = create_for_first(&client, parent, name);
            client.writes.write(ino, 0, &pattern(len, 1)).expect("a write");
            ino
        };
        file(ROOT_INO, "small", 100);
        let large = file(directory, "large", 5 * 4096);
        let unlinked = file(ROOT_INO, "unlinked", 2 * 4096);
        client.names.unlink(ROOT_INO, b"unlinked").expect("unlinked");
        let up = status(&site, 1);
        assert_eq!((up.state, up.sessions, up.used_bytes), (StoreState::Up, 0, 3 * BLOCK), "not looked at");
        eventually(|| (status(&site, 1).sessions == 1).then_some(()));
        site.stores[0] = None;
        eventually(|| (status(&site, 1).state == StoreState::Unreachable).then_some(()));
        assert_eq!(status(&site, 1).lost, None, "it may come back");
        let key = site.dir.path().join("pool.key");
        site.stores[0] = Some(store(&site.addresses[0], &key, 4 * MIB, 99));
        let lost = eventually(|| status(&site, 1).lost);
        assert_eq!((status(&site, 1).state, status(&site, 2).state), (StoreState::Lost, StoreState::Up));
        assert_eq!((lost.files, lost.bytes), (2, 3 * BLOCK));
        let listed: Vec<_> = lost.listed.iter().map(|file| (file.inode, file.path.as_deref())).collect();
        assert_eq!(listed, [(large, Some("/deep/large")), (unlinked, None)]);
        // It is reported once, as of the loss.
        client.names.unlink(directory, b"large").expect("unlinked");
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(status(&site, 1).lost, Some(lost));
    });
}

/// Creates a file whose second piece lies in the first of two stores: where the turns of a file
/// begin depends on its number.
fn create_for_first(client: &Client, parent: u64, name: &str) -> u64 {
    let make =
        |name: String| client.files.create(parent, name.as_bytes(), 0o644, BY, true).expect("a file").ino;
    // The numbers follow each other.
    if make(format!("before {name}")).is_multiple_of(2) {
        make(format!("another before {name}"));
    }
    let ino = make(name.into());
    assert!(ino.is_multiple_of(2));
    ino
}

/// Writes files and reads them back until `over`. Returns the number of rounds.
fn write_and_read(client: &Client, name: &str, over: &AtomicBool) -> u32 {
    let ino = create(client, name);
    (1_u32..)
        .take_while(|round| {
            let data = pattern(20 * 4096 + *round as usize, *round as u8);
            truncate(client, ino, 0).expect("a truncation");
            client.writes.write(ino, 0, &data).expect("a write");
            assert!(read(client, ino) == data, "round {round}");
            !over.load(Ordering::Relaxed)
        })
        .count() as u32
}

#[test]
fn an_added_store_is_used_at_once_while_clients_work() {
    on_all_providers(1, BLOCK, |mut site| {
        let added = site.start_store();
        let (over, clients) = (AtomicBool::new(false), [site.client(), site.client()]);
        let before = site.free();
        thread::scope(|scope| {
            let workers = [0, 1].map(|number| {
                let (client, over) = (&clients[number], &over);
                scope.spawn(move || write_and_read(client, &format!("file{number}"), over))
            });
            thread::sleep(Duration::from_millis(200));
            let source = site.server().status_source();
            assert_eq!(source.add_store(&added), Ok(2));
            let again = source.add_store(&added).expect_err("it is known");
            assert!(again.contains("is store 2 of this pool already"), "{again}");
            drop(source);
            let last = Instant::now();
            eventually(|| (status(&site, 2).sessions == 2 && status(&site, 2).used_bytes > 0).then_some(()));
            assert!(last.elapsed() < Duration::from_secs(5), "{:?}", last.elapsed());
            over.store(true, Ordering::Relaxed);
            workers.into_iter().for_each(|worker| assert!(worker.join().expect("a worker") > 2));
        });
        let all = clients.iter().zip(["file0", "file1"]);
        all.for_each(|(client, name)| client.names.unlink(ROOT_INO, name.as_bytes()).expect("unlinked"));
        drop(clients);
        eventually(|| (site.free() == before + 4 * MIB).then_some(()));
    });
}

#[test]
fn a_client_that_has_ended_reaches_no_store() {
    on_all_providers(2, BLOCK, |site| {
        let client = site.client();
        let ino = create(&client, "file");
        client.writes.write(ino, 0, &pattern(4 * 4096, 1)).expect("a write");
        let clients = || site.stores.iter().flatten().map(|store| store.report().clients).sum::<u32>();
        assert_eq!(clients(), 2);
        client.close_session();
        drop(client);
        eventually(|| (clients() == 0 && site.server().stats().sessions == 0).then_some(()));
    });
}

#[test]
fn random_operations_agree_with_a_copy_in_memory() {
    for (provider, stores, unit) in [
        (ProviderKind::Shm, 1, BLOCK),
        (ProviderKind::Tcp, 1, 2 * BLOCK),
        (ProviderKind::Shm, 3, 2 * BLOCK),
        (ProviderKind::Tcp, 3, BLOCK),
    ] {
        let site = Site::start(provider, stores, unit);
        let client = site.client();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(30));
        let number = std::cell::Cell::new(0);
        let steps = proptest::collection::vec(step(), 1..40);
        let outcome = runner.run(&steps, |steps| {
            let ino = create(&client, &format!("file{}", number.replace(number.get() + 1)));
            let mut model = Vec::new();
            for step in &steps {
                apply(&client, ino, &mut model, step);
            }
            prop_assert!(read(&client, ino) == model);
            truncate(&client, ino, 0).expect("a truncation");
            client.files.close(ino).expect("a close");
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{provider:?}, {stores} stores: {error}"));
    }
}
