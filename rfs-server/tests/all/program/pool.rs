//! `rfs-server pool` against running programs: a server, and stores that end and come back.

use std::{
    path::Path,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use rfs_server::server::{
    PoolStatus,
    status::pool::{StoreState, StoreStatus},
};

use crate::common::program::{self, Running, piped, refuses, text};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.args(arguments);
    piped(&mut command);
    command
}

/// A folder with the sockets and the key of a pool.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Site {
        let site = Site(tempfile::tempdir().unwrap());
        let key = site.path("pool.key");
        std::fs::write(&key, "pool 00112233445566778899aabbccddeeff\n").unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        site
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}", self.path(name))
    }

    fn store(&self, name: &str) -> Running {
        let (key, address) = (self.path("pool.key"), self.address(name));
        Running::start(&mut program(&["--store", "--memory=2m", "--pool-key", &key, "--listen", &address]))
    }

    /// Starts a server with more options.
    fn server(&self, options: &[&str]) -> Running {
        let address = self.address("server");
        let listen = ["--memory=4m", "--listen", &address];
        Running::start(&mut program(&[&listen, options].concat()))
    }

    /// Runs `rfs-server pool` for the server.
    fn pool(&self, arguments: &[&str]) -> Output {
        let server = self.path("server");
        program(&[&["pool"], arguments, &[&server]].concat()).output().unwrap()
    }

    fn stores(&self) -> Vec<StoreStatus> {
        let output = self.pool(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<PoolStatus>(&output.stdout).unwrap().stores
    }

    /// Waits until the stores are in these states. The server itself is the first.
    fn eventually(&self, states: &[StoreState]) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while self.stores().iter().map(|store| store.state).ne(states.iter().copied()) {
            assert!(Instant::now() < give_up, "{:?}", self.stores());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Checks that a command fails with one line on stderr that contains these words.
fn fails(output: &Output, words: &[&str]) {
    program::fails(output, "rfs-server pool: server at unix:/", words);
}

#[test]
fn the_state_of_each_store_is_shown() {
    let site = Site::new();
    let (first, second) = (site.store("s1"), site.store("s2"));
    let at = format!("{},{}", site.address("s1"), site.address("s2"));
    let _server = site.server(&["--store-at", &at, "--pool-key", &site.path("pool.key")]);
    let stores = site.stores();
    let shown: Vec<_> = stores.iter().map(|store| (store.number, store.size_bytes >> 20)).collect();
    assert_eq!(shown, [(0, 4), (1, 2), (2, 2)]);
    assert_eq!((stores[0].address.as_str(), &stores[2].address), ("", &site.address("s2")));
    let table = text(&site.pool(&["status"]));
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("this server") && table.contains(&site.address("s1")), "{table}");
    let up = StoreState::Up;
    site.eventually(&[up, up, up]);
    drop(first);
    site.eventually(&[up, StoreState::Unreachable, up]);
    let _first = site.store("s1");
    site.eventually(&[up, StoreState::Lost, up]);
    drop(second);
    // The status of the whole server has the stores, too.
    let whole = program(&["status", &site.path("server")]).output().unwrap();
    let whole = text(&whole);
    assert!(whole.contains("\nStores\n") && whole.contains("lost"), "{whole}");
}

/// The pool file says which stores a server has, also the next one.
#[test]
fn stores_of_the_pool_file_are_those_of_the_next_server() {
    let site = Site::new();
    let (_first, _second) = (site.store("s1"), site.store("s2"));
    let (file, key) = (site.path("pool"), site.path("pool.key"));
    let options = ["--pool", &file, "--pool-key", &key];
    let address = site.address("server");
    let mut missing = program(&[&["--memory=4m", "--listen", &address], &options[..]].concat());
    refuses(&mut missing, &["--pool", "no such file: create it"]);
    std::fs::write(&file, "# stores\n").unwrap();
    let server = site.server(&options);
    assert_eq!(site.stores().len(), 1);
    let added = site.pool(&["add", &site.address("s2")]);
    assert_eq!(text(&added), format!("store 1 at {} is in use; {file} has it\n", site.address("s2")));
    assert_eq!(text(&site.pool(&["add", &site.address("s1")])).lines().count(), 1);
    fails(&site.pool(&["add", &site.address("s1")]), &["is store 2 of this pool already"]);
    fails(&site.pool(&["add", &site.address("none")]), &["cannot take a store over", "none"]);
    let [s1, s2] = ["s1", "s2"].map(|name| site.address(name));
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written, format!("view 2\n# stores\n{s2}\n{s1}\n"));
    drop(server);
    std::fs::remove_file(site.path("server.status")).unwrap();
    let _server = site.server(&options);
    let shown: Vec<_> = site.stores().into_iter().map(|store| store.address).collect();
    assert_eq!(shown, [String::new(), s2, s1]);
    let table = text(&site.pool(&["status"]));
    assert!(table.contains("2 MiB"), "{table}");
}

#[test]
fn stores_are_drained_and_removed_by_commands() {
    let site = Site::new();
    let (first, _second) = (site.store("s1"), site.store("s2"));
    let file = site.path("pool");
    let [s1, s2] = ["s1", "s2"].map(|name| site.address(name));
    std::fs::write(&file, format!("{s1}\n{s2}\n")).unwrap();
    let _server = site.server(&["--pool", &file, "--pool-key", &site.path("pool.key")]);
    fails(&site.pool(&["drain", "7"]), &["there is no store \"7\""]);
    fails(&site.pool(&["remove", "--lost", "2"]), &["store 2 answers"]);
    let drained = text(&site.pool(&["drain", &s2]));
    assert_eq!(drained, "store 2 drains: no new data goes there\nstore 2: 0 B moved, empty\n");
    site.eventually(&[StoreState::Up, StoreState::Up, StoreState::Empty]);
    let stopped = text(&site.pool(&["drain", "--stop", "2"]));
    assert_eq!(stopped, "store 2 drains no more: new data goes there\n");
    assert!(text(&site.pool(&["drain", "--stop", "2"])).contains("did not drain"));
    assert_eq!(text(&site.pool(&["remove", "2"])), "store 2 is removed\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("view 3\n{s1}\n"));
    fails(&site.pool(&["remove", "2"]), &["there is no store \"2\""]);
    drop(first);
    site.eventually(&[StoreState::Up, StoreState::Unreachable]);
    fails(&site.pool(&["remove", "1"]), &["store 1 does not answer", "--lost"]);
    let removed = text(&site.pool(&["remove", "--lost", "1"]));
    assert!(removed.starts_with("store 1 is removed; 0 files have lost data"), "{removed}");
    assert_eq!((site.stores().len(), std::fs::read_to_string(&file).unwrap()), (1, "view 4\n".into()));
}

#[test]
fn servers_without_stores_and_dead_servers_have_no_answer() {
    let site = Site::new();
    fails(&site.pool(&["status"]), &["no such control socket"]);
    let _server = site.server(&[]);
    fails(&site.pool(&["status"]), &["it has no stores", "--pool"]);
    assert!(Path::new(&site.path("server.status")).exists());
    assert_eq!(program(&["pool", "nonsense"]).output().unwrap().status.code(), Some(2));
}
