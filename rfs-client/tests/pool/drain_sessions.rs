//! Sessions that do not acknowledge the recalls of a drain.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rdmabox::ProviderKind;
use rfs_proto::BLOCK;
use rfs_server::{Config, server::status::pool::StoreState};

use crate::site::{Mount, Site, connect, create, eventually, pattern, read, status};

/// Has the address of the server and the number of a file, in a process that a test has started.
const VARIABLE: &str = "POOL_TEST_FILE";
const RECALL_TIMEOUT: Duration = Duration::from_secs(1);

fn impatient(config: &mut Config) {
    config.recall_timeout = Some(RECALL_TIMEOUT);
    config.fencing.kill = false;
}

impl Site {
    fn begin_drain(&self, store: u16) {
        let begun = self.server().status_source().drain_store(&store.to_string(), true);
        assert_eq!(begun, Ok((store, true)));
    }

    fn moved(&self, store: u16) -> u64 {
        status(self, store).drain.expect("a drain").moved_bytes
    }
}

/// Mounts in a process that reads the file, and stays until it is killed.
fn hold_the_file(of: &str) -> ! {
    let (address, ino) = of.rsplit_once(' ').expect("an address and a number");
    let ino = ino.parse().expect("a number");
    let mount = Mount::of(connect(ProviderKind::Shm, &address.parse().expect("an address")));
    mount.files.open(ino, true).expect("an open file");
    assert!(!read(&mount, ino).is_empty());
    println!("\nread");
    std::io::stdout().flush().expect("an output");
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Starts such a process, and stops it.
fn stopped_mount(test: &str, site: &Site, ino: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", test, "--nocapture"])
        .env(VARIABLE, format!("{} {ino}", site.server().addresses()[0]))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    assert!(output.lines().map_while(Result::ok).any(|line| line == "read"), "the process has not read");
    let stopped = Command::new("kill").args(["-STOP", &child.id().to_string()]).status().expect("kill");
    assert!(stopped.success());
    child
}

/// A session that was given up may still write to the places that it knows, until its stores have
/// ended it. A drain that does not wait would free these places, or lose the write.
#[test]
fn a_drain_waits_until_stores_have_ended_a_session_that_was_given_up() {
    if let Ok(of) = std::env::var(VARIABLE) {
        hold_the_file(&of);
    }
    let site = Site::start_with(ProviderKind::Shm, 2, BLOCK, impatient);
    let client = site.mount();
    let ino = create(&client, "file");
    let data = pattern(40 * BLOCK as usize, 1);
    client.writes.write(ino, 0, &data).expect("a write");
    let test = "drain_sessions::a_drain_waits_until_stores_have_ended_a_session_that_was_given_up";
    let mut stopped = stopped_mount(test, &site, ino);
    site.begin_drain(1);
    // The process does not acknowledge, and no store can end its session while it has the memory
    // mapped.
    thread::sleep(RECALL_TIMEOUT * 3);
    assert_eq!(site.moved(1), 0, "data has moved while a session could write to its place");
    assert_eq!(status(&site, 1).state, StoreState::Draining);
    let mut part = [0; 100];
    client.reads.read_into(ino, BLOCK, &mut part).expect("a read, while the drain waits");
    stopped.kill().expect("a process");
    stopped.wait().expect("a process");
    eventually(|| (status(&site, 1).state == StoreState::Empty).then_some(()));
    assert!(site.moved(1) > 0 && read(&client, ino) == data);
}

/// A session that never asks for recalls would hold the old places until it closes the file.
#[test]
fn a_session_that_takes_no_recalls_holds_a_drain_for_the_recall_timeout_at_most() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let site = Site::start_with(provider, 2, BLOCK, impatient);
        let (client, silent) = (site.mount(), site.client());
        let ino = create(&client, "file");
        let data = pattern(40 * BLOCK as usize, 1);
        client.writes.write(ino, 0, &data).expect("a write");
        silent.files.open(ino, false).expect("an open file");
        assert!(read(&silent, ino) == data);
        site.begin_drain(1);
        let began = Instant::now();
        eventually(|| (status(&site, 1).state == StoreState::Empty).then_some(()));
        let took = began.elapsed();
        assert!(took > RECALL_TIMEOUT, "the silent session has layouts with these places: {took:?}");
        assert!(took < RECALL_TIMEOUT * 5, "{took:?}");
        assert_eq!(site.server().stats().sessions, 1, "the silent session has ended");
        assert!(read(&client, ino) == data);
    }
}
