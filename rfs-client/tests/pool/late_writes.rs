//! WRITEs that a network between one client and one store holds back until their client has given
//! up. Their space goes to another file meanwhile, which they must not reach.

use std::{
    io::{BufRead, BufReader, Write},
    ops::Range,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rdmabox::{Address, ProviderKind, SessionOptions};
use rfs_client::{AttachOptions, Client, QueueHint};
use rfs_proto::{BLOCK, Errno, ROOT_INO};
use rfs_server::{Config, Membership};

use crate::{
    relay::Relay,
    site::{MIB, Mount, Site, create, eventually, pattern, read, truncate},
};

/// Has the addresses of the server, in a process that a test has started.
const VARIABLE: &str = "POOL_TEST_LATE";
/// Operation timeout of the client whose network is held.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time in which bytes that were held back arrive.
const ARRIVAL: Duration = Duration::from_secs(1);
const LATE: [u8; BLOCK as usize] = [b'L'; BLOCK as usize];

/// A server with one store behind a relay. The first connections of the relay are those of the
/// server, and of a mount that has used the store. The others are those of the client that is cut
/// off, which may make more of them.
struct Testbed {
    other: Mount,
    site: Site,
    relay: Relay,
    before: u64,
    first: usize,
}

fn impatient(server: &Address, reconnects: bool) -> Mount {
    let mut options = SessionOptions::default();
    (options.provider, options.operation_timeout) = (Some(ProviderKind::Tcp), TIMEOUT);
    let attach = AttachOptions { reconnects, ..AttachOptions::default() };
    Mount::of(Client::connect(server, &options, &attach).expect("a client"))
}

impl Testbed {
    fn start() -> Testbed {
        Testbed::with_lease(Duration::from_secs(20))
    }

    fn with_lease(lease: Duration) -> Testbed {
        let mut relay = None;
        let site = Site::start_with(ProviderKind::Tcp, 1, BLOCK, |config: &mut Config| {
            config.fencing.lease = Some(lease);
            let stores = config.stores.as_mut().expect("a pool");
            let Membership::Addresses(addresses) = &mut stores.members else { panic!("no addresses") };
            let relayed = Relay::to(&addresses[0]);
            addresses[0] = relayed.address().clone();
            relay = Some(relayed);
        });
        let (relay, before) = (relay.expect("a relay"), site.free());
        let other = site.mount();
        let ino = create(&other, "first");
        other.writes.write(ino, 0, &pattern(2 * BLOCK as usize, 1)).expect("a write");
        truncate(&other, ino, 0).expect("a truncation");
        let first = relay.connections();
        Testbed { other, site, relay, before, first }
    }

    /// Cuts the client off.
    fn cut_off(&self) {
        let first = self.first;
        self.relay.hold(move |connection| connection >= first);
    }

    fn server(&self) -> &Address {
        &self.site.server().addresses()[0]
    }

    /// Creates a file whose second block is in the store. Returns it with the numbers of the
    /// connections that the client has made for that.
    fn written(&self, client: &Client) -> (u64, Range<usize>) {
        let first = self.first;
        let ino = create(client, "victim");
        client.writes.write(ino, 0, &pattern(2 * BLOCK as usize, 1)).expect("a write");
        let last = self.relay.connections();
        assert!(last > first, "the client has no session at the store");
        (ino, first..last)
    }

    /// Fills all space with another file, and lets the late bytes go. They must not reach it.
    ///
    /// The data comes first. The end of the client's control stream, which is its first connection
    /// of `held`, would end its session.
    fn reuse_and_release(&self, held: &Range<usize>) {
        let other = &self.other;
        eventually(|| (self.site.free() == self.before).then_some(()));
        let ino = create(other, "other");
        let data = pattern(self.before as usize, 7);
        data.chunks(MIB as usize).zip(0..).for_each(|(part, at)| {
            other.writes.write(ino, at * MIB, part).expect("a write");
        });
        assert_eq!(self.site.free(), 0, "the other file has all space");
        let Range { start, end } = *held;
        self.relay.hold(move |connection| connection == start || connection >= end);
        thread::sleep(ARRIVAL);
        self.relay.release();
        let found = read(other, ino);
        let wrong = found.iter().zip(&data).position(|(is, should)| is != should);
        assert_eq!((found.len(), wrong), (data.len(), None), "late bytes are in another file");
    }
}

/// Writes to the second block of a file, while the network to the store is held.
fn fail_to_write(client: &Client, ino: u64) {
    let error = client.writes.write(ino, BLOCK, &LATE).expect_err("the network is held");
    assert_eq!(error.errno(), Errno::EIO, "{error}");
}

#[test]
fn the_client_truncates_the_file_itself() {
    let bed = Testbed::start();
    let client = impatient(bed.server(), false);
    let (ino, connections) = bed.written(&client);
    bed.cut_off();
    fail_to_write(&client, ino);
    bed.relay.await_held(LATE.len());
    truncate(&client, ino, 0).expect("a truncation");
    bed.reuse_and_release(&connections);
    // The client is another client of the store from now on.
    client.writes.write(ino, 0, b"x").expect_err("no space is left");
    drop(bed.other);
    client.names.unlink(ROOT_INO, b"other").expect("unlinked");
    eventually(|| client.writes.write(ino, 0, &pattern(2 * BLOCK as usize, 3)).ok());
    assert!(read(&client, ino) == pattern(2 * BLOCK as usize, 3));
}

#[test]
fn another_client_truncates_the_file() {
    let bed = Testbed::start();
    let (client, second) = (impatient(bed.server(), false), &bed.other);
    let (ino, connections) = bed.written(&client);
    second.files.open(ino, true).expect("an open file");
    bed.cut_off();
    thread::scope(|scope| {
        let writer = scope.spawn(|| fail_to_write(&client, ino));
        bed.relay.await_held(LATE.len());
        // The recall waits for the write.
        truncate(second, ino, 0).expect("a truncation");
        writer.join().expect("a writer");
    });
    bed.reuse_and_release(&connections);
}

#[test]
fn a_started_write_fails_and_the_file_is_removed() {
    let bed = Testbed::start();
    let client = impatient(bed.server(), false);
    let (ino, connections) = bed.written(&client);
    let write = eventually(|| {
        read(&client, ino);
        client.async_io.prepare_write_alone(ino, BLOCK, &LATE, QueueHint::Nothing)
    });
    bed.cut_off();
    let (sender, ended) = std::sync::mpsc::channel();
    write.start(move |outcome| sender.send(outcome).expect("the test waits"));
    let outcome = ended.recv_timeout(Duration::from_secs(30)).expect("an outcome");
    assert_eq!(outcome.expect_err("the network is held").errno(), Errno::EIO);
    client.files.close(ino).expect("a close");
    client.names.unlink(ROOT_INO, b"victim").expect("unlinked");
    bed.reuse_and_release(&connections);
}

/// The server does not know that the store is unharmed either. Space is not used again before the
/// fence, and all of it comes back.
#[test]
fn the_server_does_not_reach_the_store_either() {
    let bed = Testbed::start();
    let client = impatient(bed.server(), false);
    let (ino, connections) = bed.written(&client);
    bed.relay.hold(|_| true);
    fail_to_write(&client, ino);
    bed.relay.await_held(LATE.len());
    truncate(&client, ino, 0).expect("a truncation");
    let second = bed.site.mount();
    let small = create(&second, "small");
    second.writes.write(small, 0, b"others go on").expect("a write");
    // The server has noticed. It counts no space there.
    eventually(|| (bed.site.free() <= bed.before - 4 * MIB).then_some(()));
    second.names.unlink(ROOT_INO, b"small").expect("unlinked");
    drop(second);
    // The server is back first.
    let held = connections.clone();
    bed.relay.hold(move |connection| held.contains(&connection));
    bed.reuse_and_release(&connections);
}

/// A mount that reconnects to its server does not know the fate of the writes in its previous
/// session.
#[test]
fn the_client_loses_the_server_meanwhile() {
    let bed = Testbed::start();
    let way = Relay::to(bed.server());
    let client = impatient(way.address(), true);
    let (ino, connections) = bed.written(&client);
    bed.cut_off();
    thread::scope(|scope| {
        let writer = scope.spawn(|| client.writes.write(ino, BLOCK, &LATE));
        bed.relay.await_held(LATE.len());
        way.hold(|_| true);
        let outcome = writer.join().expect("a writer");
        assert!(outcome.is_err(), "the network is held");
        way.cut();
        way.release();
    });
    let truncated = || truncate(&client, ino, 0).ok();
    eventually(truncated);
    bed.reuse_and_release(&connections);
}

/// Makes a write that fails, in a process that stays until it is killed.
fn write_in_vain(server: &str) -> ! {
    let client = impatient(&server.parse().expect("an address"), true);
    let ino = create(&client, "victim");
    client.writes.write(ino, 0, &pattern(2 * BLOCK as usize, 1)).expect("a write");
    println!("\nwritten");
    std::io::stdout().flush().expect("an output");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let _ = client.writes.write(ino, BLOCK, &LATE);
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

fn process(server: &Address) -> Child {
    Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "late_writes::the_process_dies_meanwhile", "--nocapture"])
        .env(VARIABLE, server.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

#[test]
fn the_process_dies_meanwhile() {
    if let Ok(server) = std::env::var(VARIABLE) {
        write_in_vain(&server);
    }
    let bed = Testbed::with_lease(Duration::from_secs(2));
    let mut child = process(bed.server());
    let output = BufReader::new(child.stdout.take().expect("its output"));
    assert!(output.lines().map_while(Result::ok).any(|line| line == "written"));
    let connections = bed.first..bed.relay.connections();
    bed.cut_off();
    child.stdin.take().expect("its input").write_all(b"\n").expect("a line");
    bed.relay.await_held(LATE.len());
    child.kill().expect("a process");
    child.wait().expect("a process");
    bed.site.mount().names.unlink(ROOT_INO, b"victim").expect("unlinked");
    bed.reuse_and_release(&connections);
}
