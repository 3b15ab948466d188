//! Files whose data lies in the server's own memory and in stores, over shared memory and TCP, with
//! pieces of a block or two so that most operations cross a boundary.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pool::{Incarnation, Store, StoreOptions};
use proptest::prelude::*;
use rdmabox::{Address, Key, ProviderKind, SessionOptions};
use rfs_client::{AttachOptions, Client, ClientError, Creator};
use rfs_proto::{BLOCK, Errno, FallocateFlags, ROOT_INO, SetAttr};
use rfs_server::{
    Config, Membership, Server, StoresConfig,
    server::status::pool::{StoreState, StoreStatus},
};

const MIB: u64 = 1 << 20;
const BY: Creator = Creator { uid: 0, gid: 0, umask: 0 };

/// A server, its stores, and the folder of their sockets and of the key.
struct Site {
    server: Option<Server>,
    stores: Vec<Option<Store>>,
    addresses: Vec<Address>,
    provider: ProviderKind,
    dir: tempfile::TempDir,
}

fn store(address: &Address, key: &Path, memory: u64, run: u128) -> Store {
    let mut options = StoreOptions::new(memory, Incarnation(run));
    options.pool_key = Some(Key::load(key).expect("a key"));
    Store::listen(std::slice::from_ref(address), &options).expect("a store")
}

impl Site {
    fn start(provider: ProviderKind, count: usize, unit: u64) -> Site {
        let dir = tempfile::tempdir().expect("a folder");
        let key = dir.path().join("pool.key");
        let secret = "00112233445566778899aabbccddeeff";
        std::fs::write(&key, format!("pool {secret}\n")).expect("a key file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).expect("a mode");
        let address = |name: String| match provider {
            ProviderKind::Shm => Address::Unix(dir.path().join(name)),
            _ => "127.0.0.1:0".parse().expect("an address"),
        };
        let of = |number: usize| store(&address(format!("store{number}")), &key, 4 * MIB, number as u128);
        let stores: Vec<_> = (1..=count).map(of).collect();
        let addresses: Vec<_> = stores.iter().map(|store| store.addresses()[0].clone()).collect();
        let mut config = Config::new(4 * MIB);
        config.listen = vec![address("server".into())];
        config.allow_without_keys = true;
        config.stores = Some(StoresConfig { members: Membership::Addresses(addresses.clone()), key, unit });
        let server = Server::start(config).expect("a server");
        let stores = stores.into_iter().map(Some).collect();
        Site { server: Some(server), stores, addresses, provider, dir }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn client(&self) -> Client {
        let mut options = SessionOptions::default();
        options.provider = Some(self.provider);
        let address = &self.server().addresses()[0];
        Client::connect(address, &options, &AttachOptions::default()).expect("a client")
    }

    fn free(&self) -> u64 {
        self.server().statfs().blocks_free * BLOCK
    }
}

fn on_all_providers(count: usize, unit: u64, test: fn(Site)) {
    [ProviderKind::Shm, ProviderKind::Tcp]
        .into_iter()
        .for_each(|provider| test(Site::start(provider, count, unit)));
}

/// Returns the first result of `look`, which may take a while.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "it does not happen");
        thread::sleep(Duration::from_millis(50));
    }
}

fn create(client: &Client, name: &str) -> u64 {
    client.files.create(ROOT_INO, name.as_bytes(), 0o644, BY, true).expect("a file").ino
}

fn read(client: &Client, ino: u64) -> Vec<u8> {
    let mut bytes = vec![0; client.attributes.getattr(ino).expect("attributes").size as usize + 1];
    let len = client.reads.read_into(ino, 0, &mut bytes).expect("a read");
    bytes.truncate(len);
    bytes
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 97 + at) as u8 ^ seed).collect()
}

fn truncate(client: &Client, ino: u64, size: u64) -> Result<(), ClientError> {
    client.attributes.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(|_| ())
}

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
        let (small, large) = (create(&client, "small"), create(&client, "large"));
        client.writes.write(small, 0, &pattern(100, 1)).expect("a write");
        client.writes.write(large, 0, &pattern(3 * 4096, 2)).expect("a write");
        // The second piece of a file lies in the first store.
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
        // What is left can be removed.
        truncate(&client, large, 0).expect("a truncation");
    });
}

/// Returns the status of a store.
fn status(site: &Site, number: u16) -> StoreStatus {
    let pool = site.server().status_source().pool().expect("a pool");
    pool.stores.into_iter().find(|store| store.number == number).expect("a store")
}

#[test]
fn the_files_of_a_lost_store_are_reported() {
    on_all_providers(2, BLOCK, |mut site| {
        let client = site.client();
        let directory = client.names.mkdir(ROOT_INO, b"deep", 0o755, BY).expect("a directory").ino;
        let file = |parent, name: &str, len| {
            let ino = client.files.create(parent, name.as_bytes(), 0o644, BY, true).expect("a file").ino;
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

impl Site {
    /// Starts another store, which is in no pool yet. Returns its address.
    fn start_store(&mut self) -> Address {
        let number = self.stores.len() + 1;
        let address = match self.provider {
            ProviderKind::Shm => Address::Unix(self.dir.path().join(format!("store{number}"))),
            _ => "127.0.0.1:0".parse().expect("an address"),
        };
        let store = store(&address, &self.dir.path().join("pool.key"), 4 * MIB, number as u128);
        let address = store.addresses()[0].clone();
        self.stores.push(Some(store));
        self.addresses.push(address.clone());
        address
    }
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

/// An operation on a file and on a copy in memory.
#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Append(usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64),
    Allocate(u64, u64),
    Copy(u64, u64, u64),
    Read(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (at, len) = (0..100_000_u64, 1..40_000_u64);
    prop_oneof![
        4 => (at.clone(), 1..40_000_usize, any::<u8>()).prop_map(|(at, len, seed)| Step::Write(at, len, seed)),
        2 => (1..20_000_usize, any::<u8>()).prop_map(|(len, seed)| Step::Append(len, seed)),
        2 => at.clone().prop_map(Step::Truncate),
        2 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Zero(at, len)),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Allocate(at, len)),
        1 => (at.clone(), at.clone(), len).prop_map(|(from, to, len)| Step::Copy(from, to, len)),
        3 => (at, 1..40_000_usize).prop_map(|(at, len)| Step::Read(at, len)),
    ]
}

fn grow(model: &mut Vec<u8>, end: u64) {
    if model.len() < end as usize {
        model.resize(end as usize, 0);
    }
}

fn zero(model: &mut [u8], at: u64, len: u64) {
    let end = model.len().min((at + len) as usize);
    if let Some(part) = model.get_mut(at as usize..end) {
        part.fill(0);
    }
}

fn apply(client: &Client, ino: u64, model: &mut Vec<u8>, step: &Step) {
    match *step {
        Step::Write(at, len, seed) => {
            client.writes.write(ino, at, &pattern(len, seed)).expect("a write");
            grow(model, at + len as u64);
            model[at as usize..][..len].copy_from_slice(&pattern(len, seed));
        }
        Step::Append(len, seed) => {
            let at = client.appends.append(ino, &pattern(len, seed)).expect("an append");
            assert_eq!(at, model.len() as u64);
            model.extend(pattern(len, seed));
        }
        Step::Truncate(size) => {
            truncate(client, ino, size).expect("a truncation");
            model.resize(size as usize, 0);
        }
        Step::Punch(at, len) => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            client.space.fallocate(ino, at, len, flags).expect("a hole");
            zero(model, at, len);
        }
        Step::Zero(at, len) => {
            client.space.fallocate(ino, at, len, FallocateFlags::ZERO_RANGE).expect("zeroes");
            grow(model, at + len);
            zero(model, at, len);
        }
        Step::Allocate(at, len) => {
            client.space.fallocate(ino, at, len, FallocateFlags::empty()).expect("space");
            grow(model, at + len);
        }
        Step::Copy(from, to, len) => {
            let overlaps = from < to + len && to < from + len;
            if overlaps {
                return;
            }
            let copied = client.space.copy((ino, from), (ino, to), len).expect("a copy");
            let bytes = model.get(from as usize..).unwrap_or_default();
            let bytes = bytes[..bytes.len().min(len as usize)].to_vec();
            assert_eq!(copied, bytes.len() as u64);
            if !bytes.is_empty() {
                grow(model, to + copied);
                model[to as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        Step::Read(at, len) => {
            let mut out = vec![7; len];
            let found = client.reads.read_into(ino, at, &mut out).expect("a read");
            let expected = model.get(at as usize..).unwrap_or_default();
            assert!(out[..found] == expected[..expected.len().min(len)], "{len} bytes at {at}");
        }
    }
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
