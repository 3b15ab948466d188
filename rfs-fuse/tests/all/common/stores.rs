//! Stores in this process, and servers that use their memory.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use pool::{Incarnation, Store, StoreOptions};
use rdmabox::{Address, Key};
use rfs_server::{Config, Membership, StoresConfig};
use tempfile::TempDir;

use super::{Over, TestServer, directory};

/// Running stores, with the folder of their sockets and of the key.
pub(crate) struct Stores {
    pub(crate) stores: Vec<Store>,
    pub(crate) key: PathBuf,
    _dir: TempDir,
}

impl Stores {
    /// Starts stores of `memory` bytes each, which listen on addresses of this provider.
    pub(crate) fn start(over: Over, count: usize, memory: u64) -> Stores {
        let dir = directory();
        let key = dir.path().join("pool.key");
        fs::write(&key, "pool 00112233445566778899aabbccddeeff\n").expect("a key file");
        fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("a mode");
        let store = |number: usize| {
            let address = match over {
                Over::Shm => Address::Unix(dir.path().join(format!("store{number}"))),
                _ => "127.0.0.1:0".parse().expect("an address"),
            };
            let mut options = StoreOptions::new(memory, Incarnation(number as u128));
            options.pool_key = Some(Key::load(&key).expect("a key"));
            Store::listen(&[address], &options).expect("a store")
        };
        Stores { stores: (1..=count).map(store).collect(), key, _dir: dir }
    }

    /// Starts a server that uses the stores, with pieces of `unit` bytes.
    pub(crate) fn server(&self, memory: u64, unit: u64, configure: impl FnOnce(&mut Config)) -> TestServer {
        let addresses = self.stores.iter().map(|store| store.addresses()[0].clone()).collect();
        let stores = StoresConfig { members: Membership::Addresses(addresses), key: self.key.clone(), unit };
        TestServer::with(memory, |config| {
            // A server with stores has no checksums.
            config.checksum = false;
            config.stores = Some(stores);
            configure(config);
        })
    }

    /// Returns the number of sessions of clients at each store.
    pub(crate) fn clients(&self) -> Vec<u32> {
        self.stores.iter().map(|store| store.report().clients).collect()
    }
}
