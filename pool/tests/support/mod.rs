//! A store with the key of the pool, and a relay in front of it.

#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod relay;

use std::time::{Duration, Instant};

use pool::{
    ChunkId, ClientId, Incarnation, OwnedStore, OwnerError, Store, StoreId, StoreOptions, Stores, Ticket,
};
use rdmabox::{Address, Key, ProviderKind, Secret, SessionOptions};

pub(crate) use relay::Relay;

pub(crate) const ID: StoreId = StoreId(2);
pub(crate) const LEN: u64 = 64 << 10;

pub(crate) fn pool_key() -> Key {
    Key { id: "pool".parse().expect("a name"), secret: Secret::new(&[7; 32]).expect("a secret") }
}

pub(crate) fn options(provider: ProviderKind, key: Key) -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.provider, options.key) = (Some(provider), Some(key));
    options
}

pub(crate) fn ticket(client: u64, epoch: u64) -> Ticket {
    Ticket { client: ClientId(client), epoch, may_write: true }
}

pub(crate) fn chunk(number: u32) -> [ChunkId; 1] {
    [ChunkId { store: ID, number }]
}

pub(crate) fn start(address: &Address, run: u128, edit: impl FnOnce(&mut StoreOptions)) -> Store {
    let mut options = StoreOptions::new(LEN, Incarnation(run));
    options.pool_key = Some(pool_key());
    edit(&mut options);
    Store::listen(std::slice::from_ref(address), &options).expect("a store")
}

/// A store, and where it listens.
pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) address: Address,
    pub(crate) provider: ProviderKind,
    pub(crate) _dir: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new(provider: ProviderKind) -> Site {
        Site::with(provider, |_| {})
    }

    pub(crate) fn with(provider: ProviderKind, edit: impl FnOnce(&mut StoreOptions)) -> Site {
        let dir = tempfile::tempdir().expect("a folder");
        let address = match provider {
            ProviderKind::Shm => Address::Unix(dir.path().join("store.sock")),
            _ => "127.0.0.1:0".parse().expect("an address"),
        };
        let store = start(&address, 1, edit);
        let address = store.addresses()[0].clone();
        Site { store, address, provider, _dir: dir }
    }

    pub(crate) fn join(&self, epoch: u64) -> Result<OwnedStore, OwnerError> {
        OwnedStore::join(ID, &self.address, &options(self.provider, pool_key()), epoch)
    }

    /// Joins as soon as the store knows that the previous owner has gone.
    pub(crate) fn join_after(&self, epoch: u64) -> OwnedStore {
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            match self.join(epoch) {
                Ok(store) => return store,
                Err(error) => assert!(Instant::now() < give_up, "{error}"),
            }
        }
    }

    pub(crate) fn client(&self, client: u64, ticket: Ticket) -> Stores {
        let stores = Stores::new(ClientId(client), options(self.provider, ticket.key(&pool_key())));
        stores.set(ID, &self.address, 0);
        stores
    }
}

pub(crate) fn on_all_providers(test: fn(Site)) {
    [ProviderKind::Shm, ProviderKind::Tcp].into_iter().for_each(|provider| test(Site::new(provider)));
}
