//! Stores whose data moves away while clients work, and stores that leave the pool.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use rdmabox::ProviderKind;
use rfs_client::Client;
use rfs_proto::{BLOCK, Errno, ROOT_INO};
use rfs_server::server::status::pool::StoreState;

use crate::{
    site::{MIB, Site, create, eventually, on_all_providers, pattern, read, status, store, truncate},
    steps::{apply, step},
};

impl Site {
    fn drain(&self, store: u16, is_on: bool) -> Result<(u16, bool), String> {
        self.server().status_source().drain_store(&store.to_string(), is_on)
    }

    fn drain_until_empty(&self, store: u16) {
        assert_eq!(self.drain(store, true), Ok((store, true)));
        eventually(|| (status(self, store).state == StoreState::Empty).then_some(()));
    }

    /// Moves data from one store to the other and back, until the work has ended. Returns how often
    /// it has emptied a store; the last time may have ended after the work.
    fn move_to_and_fro(&self, over: &AtomicBool) -> u32 {
        let mut rounds = 0;
        while rounds == 0 || !over.load(Ordering::Relaxed) {
            let store = 1 + (rounds % 2) as u16;
            self.drain_until_empty(store);
            assert_eq!(self.drain(store, false), Ok((store, true)));
            rounds += 1;
        }
        rounds
    }
}

/// Returns how long clients work while data moves: longer in ci/soak, which sets RFS_TEST_LONG.
fn time_of_work() -> Duration {
    Duration::from_secs(if std::env::var_os("RFS_TEST_LONG").is_some() { 16 } else { 5 })
}

/// Runs random operations on files of one client, and compares each with a copy in memory.
fn exercise(client: &Client, name: &str, give_up: Instant) {
    let mut runner = TestRunner::default();
    for number in (0_u32..).take_while(|_| Instant::now() < give_up) {
        let name = format!("{name}-{number}");
        let ino = create(client, &name);
        let steps = proptest::collection::vec(step(), 20..60).new_tree(&mut runner).expect("steps").current();
        let mut model = Vec::new();
        for step in &steps {
            apply(client, ino, &mut model, step);
        }
        assert!(read(client, ino) == model, "{name}, {steps:?}");
        truncate(client, ino, 0).expect("a truncation");
        client.files.close(ino).expect("a close");
        // A server of this size has few inodes.
        client.names.unlink(ROOT_INO, name.as_bytes()).expect("unlinked");
    }
}

#[test]
fn clients_work_while_data_moves_to_and_fro() {
    on_all_providers(2, BLOCK, |site| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let mover = scope.spawn(|| site.move_to_and_fro(&over));
            let give_up = Instant::now() + time_of_work();
            let workers = [0, 1, 2].map(|number| {
                let client = site.mount();
                scope.spawn(move || exercise(&client, &format!("file{number}"), give_up))
            });
            let outcomes = workers.map(|worker| worker.join());
            over.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.expect("a worker"));
            assert!(mover.join().expect("the mover") > 2);
        });
    });
}

/// One client writes numbers into blocks of a file, and two others read them. A read that begins
/// after a write has ended finds the number of the write or a later number, wherever the block is.
#[test]
fn no_write_is_lost_and_no_read_is_stale_while_data_moves() {
    const BLOCKS: u64 = 24;
    on_all_providers(2, BLOCK, |site| {
        let writer = site.mount();
        let ino = create(&writer, "numbers");
        writer.writes.write(ino, 0, &[0; (BLOCKS * BLOCK) as usize]).expect("a write");
        let (over, written) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; BLOCKS as usize]);
        let (over, written) = (&over, &written);
        thread::scope(|scope| {
            let mover = scope.spawn(|| site.move_to_and_fro(over));
            let readers = [0, 1].map(|_| {
                let client = site.mount();
                client.files.open(ino, false).expect("an open file");
                scope.spawn(move || {
                    let mut bytes = [0; 8];
                    for at in (0..BLOCKS).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                        let least = written[at as usize].load(Ordering::SeqCst);
                        client.reads.read_into(ino, at * BLOCK + 100, &mut bytes).expect("a read");
                        let found = u64::from_le_bytes(bytes);
                        assert!(found >= least, "block {at} has {found}, and {least} was written before");
                    }
                })
            });
            let give_up = Instant::now() + time_of_work();
            for (number, at) in (1_u64..).zip((0..BLOCKS).cycle()).take_while(|_| Instant::now() < give_up) {
                writer.writes.write(ino, at * BLOCK + 100, &number.to_le_bytes()).expect("a write");
                written[at as usize].store(number, Ordering::SeqCst);
            }
            over.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
            assert!(mover.join().expect("the mover") > 2);
        });
        let bytes = read(&writer, ino);
        for (at, written) in written.iter().enumerate() {
            let found = &bytes[at * BLOCK as usize + 100..][..8];
            assert_eq!(found, written.load(Ordering::SeqCst).to_le_bytes(), "block {at}");
        }
    });
}

/// A request that takes longer than the move of a piece ends all the same: the next piece waits for
/// the client.
#[test]
fn long_requests_end_while_data_moves() {
    on_all_providers(2, BLOCK, |site| {
        let (client, over) = (site.mount(), AtomicBool::new(false));
        let ino = create(&client, "file");
        client.writes.write(ino, 0, &pattern(2 * MIB as usize, 0)).expect("a write");
        thread::scope(|scope| {
            let mover = scope.spawn(|| site.move_to_and_fro(&over));
            let give_up = Instant::now() + Duration::from_secs(4);
            let outcome =
                (1..=u8::MAX).cycle().take_while(|_| Instant::now() < give_up).try_for_each(|seed| {
                    let (data, mut found) = (pattern(MIB as usize, seed), vec![0; MIB as usize]);
                    client.writes.write(ino, MIB / 2, &data)?;
                    client.reads.read_into(ino, MIB / 2, &mut found)?;
                    assert!(found == data, "another write's bytes");
                    Ok::<_, rfs_client::ClientError>(())
                });
            over.store(true, Ordering::Relaxed);
            outcome.expect("requests");
            assert!(mover.join().expect("the mover") > 0);
        });
    });
}

#[test]
fn an_empty_store_leaves_the_pool_and_can_come_again() {
    on_all_providers(2, BLOCK, |site| {
        let client = site.mount();
        let ino = create(&client, "file");
        let data = pattern(100 * 4096 + 77, 3);
        client.writes.write(ino, 0, &data).expect("a write");
        let source = site.server().status_source();
        let remove = |name: &str| source.remove_store(name);
        let refused = remove("2").expect_err("it has data");
        assert!(refused.contains("drain it first (rfs-server pool drain 2)"), "{refused}");
        assert!(status(&site, 2).state == StoreState::Up, "it is used as before");
        let before = site.server().statfs().blocks;
        site.drain_until_empty(2);
        assert_eq!((status(&site, 2).used_bytes, site.drain(2, true)), (0, Ok((2, false))));
        client.writes.write(ino, data.len() as u64, &data).expect("a write");
        assert_eq!(status(&site, 2).state, StoreState::Empty, "new data goes elsewhere");
        let refused = source.give_up_store("2").expect_err("it answers");
        assert!(refused.contains("store 2 answers"), "{refused}");
        assert_eq!(remove(&site.addresses[1].to_string()), Ok(2));
        assert_eq!((before - site.server().statfs().blocks) * BLOCK, 4 * MIB);
        assert_eq!(site.stores[1].as_ref().map(|store| store.report().chunks), Some(0));
        assert!(remove("2").expect_err("it has left").contains("there is no store \"2\""));
        assert!(read(&client, ino) == [&data[..], &data].concat());
        assert_eq!(source.add_store(&site.addresses[1]), Ok(3), "under another number");
        truncate(&client, ino, 0).expect("a truncation");
        client.writes.write(ino, 0, &data).expect("a write");
        assert!(read(&client, ino) == data && status(&site, 3).used_bytes > 0);
    });
}

#[test]
fn a_drain_waits_for_space_and_can_be_stopped() {
    on_all_providers(1, BLOCK, |site| {
        let client = site.mount();
        let (kept, other) = (create(&client, "kept"), create(&client, "other"));
        let data = pattern(3 * MIB as usize, 1);
        for ino in [kept, other] {
            data.chunks(1 << 18).zip(0..).for_each(|(part, at)| {
                client.writes.write(ino, at << 18, part).expect("a write");
            });
        }
        site.drain(1, true).expect("a drain");
        let waits = || status(&site, 1).drain?.waits_for;
        assert_eq!(eventually(waits), "no other store has space");
        assert!(status(&site, 1).drain_line().contains("waits: no other store has space"));
        assert_eq!(client.writes.write(kept, 4 * MIB, &data).expect_err("no space").errno(), Errno::ENOSPC);
        assert_eq!(site.drain(1, false), Ok((1, true)));
        assert_eq!((status(&site, 1).drain, status(&site, 1).state), (None, StoreState::Up));
        assert!(read(&client, kept) == data && read(&client, other) == data);
        truncate(&client, other, 0).expect("a truncation");
        site.drain_until_empty(1);
        assert!(read(&client, kept) == data);
    });
}

/// A store that will not come back is given up. Sessions that wait for their end at the store end,
/// and its space no longer counts.
#[test]
fn a_store_that_is_given_up_holds_nothing_back() {
    on_all_providers(2, BLOCK, |mut site| {
        let (client, other) = (site.mount(), site.mount());
        let ino = create(&client, "file");
        client.writes.write(ino, 0, &pattern(9 * 4096, 1)).expect("a write");
        let before = site.server().statfs().blocks;
        site.stores[0] = None;
        eventually(|| (status(&site, 1).state == StoreState::Unreachable).then_some(()));
        client.close_session();
        drop(client);
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(site.server().stats().sessions, 2, "it waits for the store");
        let source = site.server().status_source();
        assert_eq!(source.give_up_store("1"), Ok((1, 1)));
        eventually(|| (site.server().stats().sessions == 1).then_some(()));
        assert_eq!((before - site.server().statfs().blocks) * BLOCK, 4 * MIB);
        let mut part = [0; 4096];
        other.files.open(ino, true).expect("an open file");
        let read = |at: u64, part: &mut [u8]| other.reads.read_into(ino, at, part).map_err(|e| e.errno());
        assert_eq!((read(0, &mut part), read(8192, &mut part)), (Ok(4096), Ok(4096)));
        assert_eq!(read(4096, &mut part), Err(Errno::EIO));
        truncate(&other, ino, 0).expect("a truncation");
        let ino = create(&other, "next");
        other.writes.write(ino, 0, &pattern(30 * 4096, 2)).expect("a write");
        // Another run of the store is another store.
        let key = site.dir.path().join("pool.key");
        let address = site.addresses[0].clone();
        site.stores[0] = Some(store(&address, &key, 4 * MIB, 99));
        assert_eq!(source.add_store(&address), Ok(3));
        drop(source);
    });
}

#[test]
fn files_without_a_name_move_as_well() {
    let site = Site::start(ProviderKind::Tcp, 2, BLOCK);
    let client = site.mount();
    let ino = create(&client, "file");
    let data = pattern(50 * 4096, 3);
    client.writes.write(ino, 0, &data).expect("a write");
    client.names.unlink(ROOT_INO, b"file").expect("unlinked");
    site.drain_until_empty(1);
    site.drain_until_empty(2);
    assert!(read(&client, ino) == data);
    client.files.close(ino).expect("a close");
}
