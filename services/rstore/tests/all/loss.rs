//! Clients, stores and masters that die, and the chunks that must not be lost with them.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rstore::{AllocFlags, Client, ClientOptions, Coordinator, Error, Namespace, Refusal, Worker};

use crate::support::{CHUNK, PROVIDERS, Pool, die_with_test, wait_for};

const SHORT: &[&str] = &["--grace", "1000"];

/// A client in a process of its own, which has reached a state and then only waits.
struct LostClient(Child);

impl LostClient {
    fn start(pool: &Pool, state: &str) -> LostClient {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "loss::the_client_of_other_tests", "--nocapture", "--test-threads", "1"]);
        command.env("RSTORE_STATE", state).env("RSTORE_MASTER", pool.master_address.to_string());
        command.env("RSTORE_PROVIDER", format!("{:?}", pool.provider)).stdout(Stdio::piped());
        die_with_test(&mut command);
        let mut child = command.spawn().expect("this program");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let reached = lines.map_while(Result::ok).any(|line| line.contains("state reached"));
        assert!(reached, "the client did not reach {state}");
        LostClient(child)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for LostClient {
    fn drop(&mut self) {
        self.kill();
    }
}

/// No test of its own: runs in the processes of [`LostClient`].
#[test]
fn the_client_of_other_tests() {
    let Ok(state) = std::env::var("RSTORE_STATE") else { return };
    let master = std::env::var("RSTORE_MASTER").expect("an address").parse().expect("an address");
    let mut options = ClientOptions::default();
    let is_tcp = std::env::var("RSTORE_PROVIDER").as_deref() == Ok("Tcp");
    options.session.provider = Some(if is_tcp { PROVIDERS[1] } else { PROVIDERS[0] });
    let client = Client::connect(&master, options).expect("a client");
    let kept: Box<dyn std::any::Any> = match state.as_str() {
        "coordinator" => {
            let namespace = client.create("barrier").expect("a namespace");
            Box::new(Coordinator::new(&namespace, 1).expect("a barrier"))
        }
        "worker" => {
            let namespace = client.join("barrier").expect("the namespace");
            Box::new(Worker::join(&namespace, namespace.first_address(), 0).expect("a worker"))
        }
        state => reach(state, &client.create("lost").expect("a namespace")),
    };
    println!("state reached");
    std::thread::sleep(Duration::from_secs(3600));
    drop(kept);
}

fn reach(state: &str, namespace: &rstore::Namespace) -> Box<dyn std::any::Any> {
    if state == "created" {
        return Box::new(());
    }
    namespace.reserve(4 * CHUNK).expect("memory");
    if state == "reserved" {
        return Box::new(());
    }
    let flags = if state.starts_with("lease") { AllocFlags::CopyOnWrite } else { AllocFlags::InPlace };
    let region = namespace.alloc(2 * CHUNK, flags).expect("a region");
    match state {
        "allocated" => Box::new(region),
        "mapped" => {
            let mut mapping = region.map_all().expect("a mapping");
            mapping.write(0..100).expect("a write");
            Box::new(mapping)
        }
        "leased" => Box::new(region.update(0..2).expect("a lease")),
        "lease written" => {
            let mut update = region.update(0..2).expect("a lease");
            update.write(0, &[7; 2 * CHUNK as usize]).expect("a write");
            Box::new(update)
        }
        other => panic!("state {other}"),
    }
}

#[test]
fn a_client_that_dies_in_any_state_leaves_no_reference_and_no_lease() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 4, SHORT);
        for state in ["created", "reserved", "allocated", "mapped", "leased", "lease written"] {
            let mut lost = LostClient::start(&pool, state);
            // Clients of the round before may still be ending.
            pool.wait(state, |status| status.clients == 1);
            lost.kill();
            pool.wait(state, |status| {
                status.clients == 0
                    && status.references == 0
                    && status.chunks.leased + status.chunks.fenced == 0
            });
            let namespace = pool.client().join("lost").expect("the namespace stays");
            namespace.delete().expect("no reference");
            pool.wait_free();
        }
    }
}

#[test]
fn chunks_of_a_stopped_client_are_not_used_again_before_it_is_cut_off() {
    // Over TCP: a stopped local client keeps its mapping until its process ends.
    let pool = Pool::start(PROVIDERS[1], 1, 4, SHORT);
    let stopped = LostClient::start(&pool, "mapped");
    let id = rustix::process::Pid::from_child(&stopped.0);
    rustix::process::kill_process(id, rustix::process::Signal::STOP).expect("a signal");
    pool.wait("the stopped client is lost", |status| status.clients == 0);
    pool.client().join("lost").expect("the namespace").delete().expect("no reference");
    pool.wait_free();
    rustix::process::kill_process(id, rustix::process::Signal::CONT).expect("a signal");
}

#[test]
fn clients_carry_on_while_the_master_is_away_and_after_it_is_back() {
    for provider in PROVIDERS {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("log").display().to_string();
        let mut pool = Pool::start(provider, 2, 4, &["--log", &log, "--grace", "60000"]);
        let client = pool.client();
        let namespace = client.create("kept").expect("a namespace");
        let region = namespace.alloc_reserved(3 * CHUNK, AllocFlags::InPlace).expect("a region");
        let mut mapping = region.map_all().expect("a mapping");
        mapping.local_mut().fill(9);
        mapping.write(0..3 * CHUNK).expect("a write");
        pool.master.as_mut().expect("a master").kill();
        mapping.local_mut().fill(0);
        assert!(mapping.read(0..3 * CHUNK).expect("a read").iter().all(|byte| *byte == 9));
        assert!(matches!(namespace.reserve(1), Err(Error::Connect(_) | Error::MasterLost(_))));
        pool.start_master();
        wait_for("the client comes back", || client.join("kept").ok());
        pool.wait("the stores come back", |status| {
            status.stores.iter().filter(|store| store.up).count() == 2
        });
        assert_eq!(pool.status().chunks.bound, 3);
        assert_eq!(pool.status().references, 1);
        namespace.reserve(5 * CHUNK).expect("the rest of the memory");
        mapping.write(0..10).expect("a write");
        drop(mapping);
        region.free().expect("the only handle");
        namespace.delete().expect("no handle");
        pool.wait_free();
    }
}

#[test]
fn a_master_without_its_log_knows_no_client_and_says_so() {
    let mut pool = Pool::start(PROVIDERS[0], 2, 4, SHORT);
    let client = pool.client();
    let namespace = client.create("lost").expect("a namespace");
    let region = namespace.alloc_reserved(2 * CHUNK, AllocFlags::InPlace).expect("a region");
    let mut mapping = region.map_all().expect("a mapping");
    pool.master.as_mut().expect("a master").kill();
    pool.start_master();
    let refused = wait_for("the master answers", || match client.join("lost") {
        Err(Error::Refused(refusal)) => Some(refusal),
        _ => None,
    });
    assert_eq!(refused, Refusal::UnknownClient);
    mapping.write(0..2 * CHUNK).expect("mapped memory stays");
    // Stores with chunks of the other master are not used.
    let other = pool.client().create("new").expect("a namespace");
    assert!(matches!(other.reserve(CHUNK), Err(Error::Refused(Refusal::NotEnoughMemory { .. }))));
}

#[test]
fn a_store_that_vanishes_takes_its_chunks_and_nothing_else() {
    for provider in PROVIDERS {
        let mut pool = Pool::start(provider, 3, 4, SHORT);
        let client = pool.client();
        let namespace = client.create("a").expect("a namespace");
        let region = namespace.alloc_reserved(3 * CHUNK, AllocFlags::InPlace).expect("a region");
        let mut mapping = region.map_all().expect("a mapping");
        mapping.write(0..3 * CHUNK).expect("a write");
        pool.stores.remove(0).kill();
        let failed = wait_for("a transfer fails", || mapping.read(0..3 * CHUNK).map(<[u8]>::len).err());
        assert!(matches!(failed, Error::Transfer(_)), "{failed}");
        pool.wait("the store is lost", |status| status.stores.len() == 2);
        let lost = namespace.open(region.address(), 3 * CHUNK);
        assert!(matches!(lost, Err(Error::Refused(Refusal::RegionLost(_)))), "{lost:?}");
        drop(mapping);
        region.free().expect("the only handle");
        namespace.reserve(6 * CHUNK).expect("the rest of the memory");
        assert!(namespace.reserve(CHUNK).is_err(), "8 chunks are left, 2 of them of the region");
        namespace.delete().expect("no handle");
        pool.wait_free();
        pool.add_store();
        pool.wait("a new store", |status| status.stores.iter().filter(|store| store.up).count() == 3);
    }
}

#[test]
fn a_store_that_vanishes_during_a_reservation_fails_it_without_a_leak() {
    for provider in PROVIDERS {
        for round in 0..4 {
            let mut pool = Pool::start(provider, 2, 512, SHORT);
            let client = pool.client();
            let namespace = client.create("a").expect("a namespace");
            let outcome = std::thread::scope(|scope| {
                let reserving = scope.spawn(|| namespace.reserve(1024 * CHUNK));
                std::thread::sleep(Duration::from_millis(round * 10));
                pool.stores.remove(0).kill();
                reserving.join().expect("no panic")
            });
            match outcome {
                Ok(()) => {}
                Err(Error::Refused(Refusal::StoreLost(_) | Refusal::NotEnoughMemory { .. })) => {}
                Err(other) => panic!("{other}"),
            }
            pool.wait("the store is lost", |status| status.stores.len() == 1);
            namespace.delete().expect("no region");
            pool.wait_free();
        }
    }
}

#[test]
fn the_others_at_a_barrier_learn_of_a_member_that_dies() {
    // Without the master they would wait for an hour.
    const HOUR: Duration = Duration::from_secs(3600);
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 1, 4, SHORT);
        let namespace = pool.client().create("barrier").expect("a namespace");
        let mut coordinator = Coordinator::new(&namespace, 1).expect("a barrier");
        let mut worker = LostClient::start(&pool, "worker");
        coordinator.start().expect("a write");
        worker.kill();
        let lost = coordinator.wait(HOUR);
        assert!(matches!(lost, Err(Error::WorkerLost(0))), "{lost:?}");
        drop(coordinator);
        namespace.delete().expect("no reference");

        let mut coordinator = LostClient::start(&pool, "coordinator");
        let namespace = pool.client().join("barrier").expect("the namespace");
        let mut worker = Worker::join(&namespace, namespace.first_address(), 0).expect("a worker");
        coordinator.kill();
        let lost = worker.wait(HOUR);
        assert!(matches!(lost, Err(Error::CoordinatorLost)), "{lost:?}");
    }
}

#[test]
fn a_master_serves_again_when_its_disk_has_space() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log").display().to_string();
    // 64 KiB in units of 512 bytes.
    // Over TCP: the limit also holds for shared memory.
    let mut pool = Pool::start_limited(PROVIDERS[1], 1, 4, &["--log", &log, "--grace", "60000"], 128);
    let client = pool.client();
    let mut failures = 0;
    for round in 0..3000 {
        match client.create(&format!("n{round}")).and_then(Namespace::delete) {
            Ok(()) => {}
            Err(Error::Refused(Refusal::Log(_))) => {
                failures += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            // The namespace of a refused deletion.
            Err(other) => panic!("{other}"),
        }
        if failures > 0 && round % 50 == 0 && client.create("last").is_ok() {
            break;
        }
    }
    assert!(failures > 0, "the limit was not reached");
    client.join("last").expect("the master serves again");
    pool.master.as_mut().expect("a master").kill();
    pool.start_master();
    wait_for("the client comes back", || client.join("last").ok());
}

#[test]
fn a_second_master_is_refused_and_the_first_one_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log").display().to_string();
    let mut pool = Pool::start(PROVIDERS[0], 1, 4, &["--log", &log, "--grace", "60000"]);
    let client = pool.client();
    client.create("one").expect("a namespace");
    let listen = format!("unix:{}", dir.path().join("second").display());
    let second = Command::new(env!("CARGO_BIN_EXE_rstore"))
        .args(["master", "--listen", &listen, "--chunk", &CHUNK.to_string(), "--log", &log])
        .output()
        .expect("the program");
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && text.contains(&log) && text.contains("end that master"), "{text}");
    client.create("two").expect("a namespace");
    pool.master.as_mut().expect("a master").kill();
    pool.start_master();
    wait_for("the client comes back", || client.join("one").ok());
    client.join("two").expect("the namespace");
}

#[test]
fn a_store_with_many_chunks_comes_back_to_a_restarted_master() {
    // More than one message lists.
    const CHUNKS: u64 = 4000;
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log").display().to_string();
    let options = ["--log", &log, "--grace", "60000", "--chunk", "4096"];
    let mut pool = Pool::start(PROVIDERS[0], 1, CHUNKS.div_ceil(CHUNK / 4096), &options);
    let client = pool.client();
    let namespace = client.create("many").expect("a namespace");
    namespace.reserve(CHUNKS * 4096).expect("memory");
    pool.master.as_mut().expect("a master").kill();
    pool.start_master();
    pool.wait("the store comes back", |status| status.stores.iter().any(|store| store.up));
    assert_eq!(pool.status().chunks.reserved, CHUNKS);
}
