//! A client that connects to a store again: its earlier sessions end first, over shared memory and
//! TCP. The tests would find a store that welcomes the new session while WRITEs of an earlier one
//! are still under way.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use crate::support::{ID, LEN, Relay, Site, chunk, on_all_providers, options, pool_key, ticket};
use pool::{
    ClientId, Link, LinkError, OwnedStore, Piece, StoreAnswer, StoreRequest, Stores, TransferError,
    wire::Message,
};
use rdmabox::{Address, ProviderKind, Session};

/// Has the address of a store, in a process that this test has started.
const VARIABLE: &str = "POOL_TEST_STORE";
/// Time in which a reply that is not deferred has come.
const SOON: Duration = Duration::from_millis(700);

/// Returns the sessions of the client 1, without one yet.
fn client(provider: ProviderKind, address: &Address) -> Stores {
    let mut options = options(provider, ticket(1, 5).key(&pool_key()));
    options.operation_timeout = Duration::from_secs(60);
    let stores = Stores::new(ClientId(1), options);
    stores.set(ID, address, 0);
    stores
}

fn link(stores: &Stores, number: u32) -> Result<Link, LinkError> {
    Ok(stores.link(&chunk(number))?.remove(0))
}

fn write(link: &Link, offset: u64, data: &[u8]) -> Result<(), TransferError> {
    pool::write(&[Piece { link, offset, len: data.len() }], data)
}

/// Links in a thread of its own. The receiver gets the outcome.
fn link_apart(stores: Stores, number: u32) -> Receiver<Result<(Link, Stores), LinkError>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let linked = link(&stores, number);
        // The test may have ended.
        let _ = sender.send(linked.map(|link| (link, stores)));
    });
    receiver
}

/// Returns true if there is no outcome yet.
fn waits<T>(outcome: &Receiver<T>) -> bool {
    matches!(outcome.recv_timeout(SOON), Err(RecvTimeoutError::Timeout))
}

#[test]
fn a_second_session_of_a_client_ends_the_first() {
    on_all_providers(|site| {
        let owner = site.join(5).expect("a store");
        let (before, after) = (client(site.provider, &site.address), client(site.provider, &site.address));
        let first = link(&before, owner.chunk()).expect("a link");
        write(&first, 0, b"before").expect("a transfer");
        let second = link(&after, owner.chunk()).expect("a link");
        // Not 2: the first one has ended at the store before the welcome.
        assert_eq!(site.store.report().clients, 1);
        assert!(write(&first, 0, b"late").is_err(), "the first session still writes");
        write(&second, 0, b"after").expect("a transfer");
        // The first client finds its session ended, and is the later one from now on.
        let third = link(&before, owner.chunk()).expect("a link");
        assert!(write(&second, 0, b"late").is_err());
        write(&third, 0, b"third").expect("a transfer");
    });
}

#[test]
fn a_write_that_is_held_up_does_not_land_after_one_of_the_next_session() {
    let site = Site::new(ProviderKind::Tcp);
    let owner = site.join(5).expect("a store");
    let relay = Relay::to(&site.address);
    let before = client(ProviderKind::Tcp, relay.address());
    let first = link(&before, owner.chunk()).expect("a link");
    write(&first, 0, b"first").expect("a transfer");
    relay.hold(|_| true);
    let late = thread::spawn(move || write(&first, 0, &[b'L'; 4096]));
    relay.await_held(1);
    // The same client connects again, past the relay.
    let after = client(ProviderKind::Tcp, &site.address);
    let second = link(&after, owner.chunk()).expect("a link");
    write(&second, 0, &[b'N'; 4096]).expect("a transfer");
    relay.release();
    let outcome = late.join().expect("a thread");
    let mut found = [0; 4096];
    owner.read(0, &mut found).expect("a transfer");
    assert!(found == [b'N'; 4096], "a late write has landed: {outcome:?}");
    assert!(outcome.is_err(), "the store has executed a write of an ended session");
}

#[test]
fn a_write_of_the_owner_that_is_held_up_does_not_land_after_its_next_session() {
    let site = Site::new(ProviderKind::Tcp);
    let relay = Relay::to(&site.address);
    let mut patient = options(ProviderKind::Tcp, pool_key());
    patient.operation_timeout = Duration::from_secs(60);
    let owner = OwnedStore::join(ID, relay.address(), &patient, 5).expect("a store");
    let number = owner.chunk();
    relay.hold(|_| true);
    let late = thread::spawn(move || owner.write(0, &[b'L'; 4096]));
    relay.await_held(1);
    // The same owner connects again, past the relay, as it does when its session was lost.
    let session = Session::connect(&site.address, &patient).expect("a session");
    let mut reply = Vec::new();
    session.call(&StoreRequest::Own { epoch: 5 }.to_bytes(), &mut reply).expect("a reply");
    assert!(matches!(StoreAnswer::decode(&reply), Some(StoreAnswer::Owned { .. })));
    let other = client(ProviderKind::Tcp, &site.address);
    let link = link(&other, number).expect("a link");
    write(&link, 0, &[b'N'; 4096]).expect("a transfer");
    relay.release();
    assert!(late.join().expect("a thread").is_err(), "a write of an ended session of the owner");
    let mut found = [0; 4096];
    pool::read(&[Piece { link: &link, offset: 0, len: 4096 }], &mut found).expect("a transfer");
    assert!(found == [b'N'; 4096], "a late write of the owner has landed");
}

/// Runs a test of this file in a process of its own.
fn child(test: &str, address: &Address) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", &format!("earlier_sessions::{test}"), "--nocapture"])
        .env(VARIABLE, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    (child, output)
}

/// Returns the address of the store if this is the process of a client.
fn address_for_child() -> Option<Address> {
    Some(std::env::var(VARIABLE).ok()?.parse().expect("an address"))
}

fn signal(child: &Child, signal: &str) {
    let done = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
    assert!(done.success());
}

/// Runs a client over shared memory, which has a session until it is killed.
fn stay(address: &Address) -> ! {
    let stores = client(ProviderKind::Shm, address);
    let link = link(&stores, 0).expect("a link");
    write(&link, 0, b"before").expect("a transfer");
    println!("\nlinked");
    std::io::stdout().flush().expect("an output");
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Starts a client over shared memory, and stops its process while it has a session.
fn stopped_client(test: &str, site: &Site) -> Child {
    let (child, output) = child(test, &site.address);
    assert!(output.lines().map_while(Result::ok).any(|line| line == "linked"), "the client has no session");
    signal(&child, "-STOP");
    child
}

fn end(mut child: Child) {
    child.kill().expect("a process");
    child.wait().expect("a process");
}

#[test]
fn the_welcome_waits_for_a_stopped_process_that_has_the_memory_mapped() {
    if let Some(address) = address_for_child() {
        stay(&address);
    }
    let site = Site::new(ProviderKind::Shm);
    let owner = site.join(5).expect("a store");
    let test = "the_welcome_waits_for_a_stopped_process_that_has_the_memory_mapped";
    let stopped = stopped_client(test, &site);
    let welcome = link_apart(client(ProviderKind::Shm, &site.address), owner.chunk());
    let early = welcome.recv_timeout(SOON);
    assert!(
        matches!(early, Err(RecvTimeoutError::Timeout)),
        "the stopped process can still write: {early:?}"
    );
    // A third session waits for both, and the second ends.
    let last = link_apart(client(ProviderKind::Shm, &site.address), owner.chunk());
    let second = welcome.recv_timeout(Duration::from_secs(20)).expect("an outcome");
    assert!(second.is_err(), "a session was welcome that a later one follows");
    let early = last.recv_timeout(SOON);
    assert!(
        matches!(early, Err(RecvTimeoutError::Timeout)),
        "the stopped process can still write: {early:?}"
    );
    end(stopped);
    let (link, _stores) = last.recv_timeout(Duration::from_secs(20)).expect("an outcome").expect("a link");
    write(&link, 0, b"after").expect("a transfer");
    assert_eq!(site.store.report().clients, 1);
}

#[test]
fn a_store_ends_while_a_welcome_waits() {
    if let Some(address) = address_for_child() {
        stay(&address);
    }
    let site = Site::new(ProviderKind::Shm);
    let owner = site.join(5).expect("a store");
    let stopped = stopped_client("a_store_ends_while_a_welcome_waits", &site);
    let welcome = link_apart(client(ProviderKind::Shm, &site.address), owner.chunk());
    assert!(waits(&welcome), "a welcome while the stopped process can still write");
    let began = Instant::now();
    drop(site);
    // The host waits 3 s for the stopped process.
    assert!(began.elapsed() < Duration::from_secs(10), "the store took {:?} to end", began.elapsed());
    let outcome = welcome.recv_timeout(Duration::from_secs(10)).expect("an outcome");
    assert!(outcome.is_err(), "a store that has ended has welcomed a client");
    end(stopped);
}

/// Makes a second session while the first one writes, which can write no more then.
fn connect_twice(address: &Address) {
    let (before, after) = (client(ProviderKind::Shm, address), client(ProviderKind::Shm, address));
    let first = link(&before, 0).expect("a link");
    let (sender, wrote) = channel();
    let writer = thread::spawn(move || {
        let (data, began) = (vec![1; LEN as usize], Instant::now());
        while write(&first, 0, &data).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(20), "the first session still writes");
            // The other thread may have all that it needs.
            let _ = sender.send(());
        }
    });
    wrote.recv().expect("a write");
    let second = link(&after, 0).expect("a link");
    writer.join().expect("a thread");
    write(&second, 0, b"after").expect("a transfer");
}

#[test]
fn a_process_that_connects_again_over_shared_memory_is_not_killed() {
    if let Some(address) = address_for_child() {
        return connect_twice(&address);
    }
    let site = Site::with(ProviderKind::Shm, |options| options.kill = true);
    let _owner = site.join(5).expect("a store");
    let (mut child, output) =
        child("a_process_that_connects_again_over_shared_memory_is_not_killed", &site.address);
    let lines: Vec<String> = output.lines().map_while(Result::ok).collect();
    let status = child.wait().expect("a process");
    assert!(status.success(), "{status}: {lines:#?}");
}
