//! Stores and a server in this process, and clients of them.

use std::{
    ops::Deref,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pool::{Incarnation, Store, StoreOptions};
use rdmabox::{Address, Cancel, Key, ProviderKind, SessionOptions};
use rfs_client::{AttachOptions, Client, ClientError, Creator, RecallHandler};
use rfs_proto::{BLOCK, ROOT_INO, Recall, SetAttr};
use rfs_server::{Config, Membership, Server, StoresConfig, server::status::pool::StoreStatus};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const BY: Creator = Creator { uid: 0, gid: 0, umask: 0 };

/// A server, its stores, and the folder of their sockets and of the key.
pub(crate) struct Site {
    pub(crate) server: Option<Server>,
    pub(crate) stores: Vec<Option<Store>>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) provider: ProviderKind,
    pub(crate) dir: tempfile::TempDir,
}

/// A client with a thread that obeys recalls.
pub(crate) struct Mount {
    client: Arc<Client>,
    cancel: Arc<Cancel>,
    thread: Option<JoinHandle<()>>,
}

impl Deref for Mount {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Mount {
    /// Starts to obey recalls for a client.
    pub(crate) fn of(client: Client) -> Mount {
        let (client, cancel) = (Arc::new(client), Arc::new(Cancel::new()));
        let (obeys, until) = (Arc::clone(&client), Arc::clone(&cancel));
        // An error is the end of the session.
        let obey = move || drop(obeys.recalls.obey(&NoCache, &until));
        Mount { client, cancel, thread: Some(thread::spawn(obey)) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread of recalls");
        }
    }
}

struct NoCache;

impl RecallHandler for NoCache {
    fn drop_all(&self, _: &[Recall]) {}
}

pub(crate) fn connect(provider: ProviderKind, address: &Address) -> Client {
    let mut options = SessionOptions::default();
    options.provider = Some(provider);
    Client::connect(address, &options, &AttachOptions::default()).expect("a client")
}

pub(crate) fn store(address: &Address, key: &Path, memory: u64, run: u128) -> Store {
    let mut options = StoreOptions::new(memory, Incarnation(run));
    options.pool_key = Some(Key::load(key).expect("a key"));
    Store::listen(std::slice::from_ref(address), &options).expect("a store")
}

impl Site {
    pub(crate) fn start(provider: ProviderKind, count: usize, unit: u64) -> Site {
        Site::start_with(provider, count, unit, |_| {})
    }

    pub(crate) fn start_with(
        provider: ProviderKind,
        count: usize,
        unit: u64,
        edit: impl FnOnce(&mut Config),
    ) -> Site {
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
        edit(&mut config);
        let server = Server::start(config).expect("a server");
        let stores = stores.into_iter().map(Some).collect();
        Site { server: Some(server), stores, addresses, provider, dir }
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    pub(crate) fn client(&self) -> Client {
        connect(self.provider, &self.server().addresses()[0])
    }

    /// Returns a client that obeys recalls, as mounts do.
    pub(crate) fn mount(&self) -> Mount {
        Mount::of(self.client())
    }

    pub(crate) fn free(&self) -> u64 {
        self.server().statfs().blocks_free * BLOCK
    }
}

pub(crate) fn on_all_providers(count: usize, unit: u64, test: fn(Site)) {
    [ProviderKind::Shm, ProviderKind::Tcp]
        .into_iter()
        .for_each(|provider| test(Site::start(provider, count, unit)));
}

/// Returns the first result of `look`, which may take a while.
pub(crate) fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "it does not happen");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn create(client: &Client, name: &str) -> u64 {
    client.files.create(ROOT_INO, name.as_bytes(), 0o644, BY, true).expect("a file").ino
}

pub(crate) fn read(client: &Client, ino: u64) -> Vec<u8> {
    let mut bytes = vec![0; client.attributes.getattr(ino).expect("attributes").size as usize + 1];
    let len = client.reads.read_into(ino, 0, &mut bytes).expect("a read");
    bytes.truncate(len);
    bytes
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 97 + at) as u8 ^ seed).collect()
}

pub(crate) fn truncate(client: &Client, ino: u64, size: u64) -> Result<(), ClientError> {
    client.attributes.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(|_| ())
}

/// Returns the status of a store.
pub(crate) fn status(site: &Site, number: u16) -> StoreStatus {
    let pool = site.server().status_source().pool().expect("a pool");
    pool.stores.into_iter().find(|store| store.number == number).expect("a store")
}

impl Site {
    /// Starts another store, which is in no pool yet. Returns its address.
    pub(crate) fn start_store(&mut self) -> Address {
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
