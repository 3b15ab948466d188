//! `--registry` of stores and servers, with Debian's etcd.

use std::{
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use rfs_server::server::{
    PoolStatus,
    status::pool::{RegistryState, StoreState},
};

use crate::common::program::{self, Running, piped, refuses, text};

#[path = "../../support/etcd.rs"]
mod etcd;
use etcd::Etcd;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.args(arguments);
    piped(&mut command);
    command
}

/// A folder with sockets and a key, and an etcd.
struct Site {
    dir: tempfile::TempDir,
    etcd: Etcd,
}

impl Site {
    /// Returns `None` if this machine has no etcd.
    fn new() -> Option<Site> {
        let site = Site { etcd: Etcd::start()?, dir: tempfile::tempdir().unwrap() };
        let key = site.path("pool.key");
        std::fs::write(&key, "team 00112233445566778899aabbccddeeff\n").unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        Some(site)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}", self.path(name))
    }

    /// Returns a program of this pool that listens on this socket.
    fn command(&self, name: &str, options: &[&str]) -> Command {
        let (key, address, url) = (self.path("pool.key"), self.address(name), self.etcd.url());
        let mut command =
            program(&["--memory=4m", "--pool-key", &key, "--listen", &address, "--registry", &url]);
        command.args(options);
        command
    }

    fn store(&self, name: &str) -> Running {
        Running::start(&mut self.command(name, &["--store"]))
    }

    /// Runs `rfs-server pool` for the server at the socket `server`.
    fn pool(&self, arguments: &[&str]) -> Output {
        program(&[&["pool"], arguments, &[&self.path("server")]].concat()).output().unwrap()
    }

    fn status(&self) -> PoolStatus {
        let output = self.pool(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the status is as asked for.
    fn eventually(&self, is: impl Fn(&PoolStatus) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while !is(&self.status()) {
            assert!(Instant::now() < give_up, "{:?}", self.status());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn addresses(status: &PoolStatus) -> Vec<&str> {
    status.stores.iter().skip(1).map(|store| store.address.as_str()).collect()
}

fn fails(output: &Output, words: &[&str]) {
    program::fails(output, "rfs-server pool: server at unix:/", words);
}

/// Stores come and go, and commands are obeyed in spite of registrations.
#[test]
fn stores_that_register_are_used() {
    let Some(site) = Site::new() else { return };
    let [one, two, three] = ["one", "two", "three"].map(|name| site.address(name));
    let first = site.store("one");
    let server = Running::start(&mut site.command("server", &[]));
    assert_eq!(addresses(&site.status()), [&one], "the server is ready with what is registered");
    let second = site.store("two");
    site.eventually(|status| addresses(status) == [&one, &two]);
    let table = text(&site.pool(&["status"]));
    assert!(table.contains(&format!("registry: etcd at {}, pool team\n", site.etcd.url())), "{table}");
    // A store that was removed is not added by its old registration, but by a command.
    assert!(text(&site.pool(&["drain", "2"])).contains("empty"));
    assert_eq!(text(&site.pool(&["remove", "2"])), "store 2 is removed\n");
    thread::sleep(Duration::from_secs(1));
    assert_eq!(addresses(&site.status()), [&one]);
    let added = text(&site.pool(&["add", &two]));
    assert!(added.contains("store 3") && added.contains("pool team has it"), "{added}");
    // A store that was restarted has lost its data. Its next run is another store.
    drop(second);
    let _second = site.store("two");
    site.eventually(|status| status.stores[2].state == StoreState::Lost);
    assert!(text(&site.pool(&["remove", "--lost", "3"])).starts_with("store 3 is removed"));
    site.eventually(|status| status.stores.iter().any(|store| store.number == 4));
    // The next server has the same stores. A server that ends in order gives the pool up.
    server.signal("TERM");
    assert!(server.end().success());
    let _third = site.store("three");
    let _server = Running::start(&mut site.command("server", &[]));
    assert_eq!(addresses(&site.status()), [&one, &two, &three]);
    // A store that ends is not registered any more, and its data is expected back.
    drop(first);
    site.eventually(|status| status.stores[1].state == StoreState::Unreachable);
    site.eventually(|status| status.stores[1].registered == Some(false));
    assert_eq!(addresses(&site.status()).len(), 3);
}

#[test]
fn a_second_server_is_refused_until_the_first_has_failed() {
    let Some(site) = Site::new() else { return };
    let _store = site.store("one");
    let server = Running::start(&mut site.command("server", &[]));
    let pid = format!("process {}", server.0.id());
    refuses(&mut site.command("other", &[]), &["the pool has a server", &pid, "Stop that server"]);
    site.eventually(|status| addresses(status).len() == 1);
    // Killed, it cannot give the pool up: the next server waits for the end of its lease.
    drop(server);
    std::fs::remove_file(site.path("server.status")).unwrap();
    let _server = Running::start(&mut site.command("server", &[]));
    assert_eq!(addresses(&site.status()), [site.address("one")]);
}

#[test]
fn a_pool_goes_on_without_etcd_and_changes_when_it_is_back() {
    let Some(mut site) = Site::new() else { return };
    let _store = site.store("one");
    let _server = Running::start(&mut site.command("server", &[]));
    site.etcd.kill();
    let view = site.status().view;
    let refusal = site.pool(&["drain", "1"]);
    fails(&refusal, &["etcd at http://127.0.0.1", "does not answer", "try again"]);
    let state = |status: &PoolStatus| status.registry.as_ref().map(|registry| registry.state);
    site.eventually(|status| state(status) == Some(RegistryState::Away));
    fails(&site.pool(&["add", &site.address("none")]), &["does not answer"]);
    fails(&site.pool(&["remove", "1"]), &["does not answer"]);
    let status = site.status();
    assert_eq!((status.view, status.stores[1].state), (view, StoreState::Up), "nothing is half done");
    let table = text(&site.pool(&["status"]));
    assert!(table.contains("away for") && table.contains("reads and writes go on"), "{table}");
    site.etcd.restart();
    site.eventually(|status| state(status) == Some(RegistryState::Up));
    let _second = site.store("two");
    site.eventually(|status| addresses(status).len() == 2);
    assert!(text(&site.pool(&["drain", "1"])).contains("empty"));
}

#[test]
fn programs_say_why_they_cannot_register() {
    let wrong = |options: &[&str]| {
        let output = program(&[&["--memory=4m", "--pool-key=/none"], options].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = wrong(&["--registry=127.0.0.1:2379"]);
    assert!(code == Some(2) && error.contains("http://127.0.0.1:2379"), "{error}");
    let (code, error) = wrong(&["--registry=http://a:1", "--store-at=tcp:a:1"]);
    assert!(code == Some(2) && error.contains("--store-at"), "{error}");
    let (code, error) = wrong(&["--register-as=tcp:a:1", "--registry=http://a:1"]);
    assert!(code == Some(2) && error.contains("--store"), "{error}");
    let Some(site) = Site::new() else { return };
    let mut everywhere = site.command("one", &["--store", "--listen=tcp:0.0.0.0:0"]);
    assert!(Running::start(&mut everywhere).0.id() > 0, "its first address is its socket");
    let (key, url) = (site.path("pool.key"), site.etcd.url());
    let tail = ["--store", "--memory=4m", "--pool-key", &key, "--registry", &url];
    let mut wildcard = program(&[&tail[..], &["--listen=tcp:0.0.0.0:0"]].concat());
    refuses(&mut wildcard, &["--register-as", "another machine"]);
    let named = ["--listen=tcp:0.0.0.0:0", "--register-as=tcp:127.0.0.1:7"];
    let _named = Running::start(&mut program(&[&tail[..], &named].concat()));
}
