//! Options of a pool: of the server that uses its stores, and of a store.
//!
//! # Concurrency
//! Plain values.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use rdmabox::Address;

use super::addresses::from_anywhere;
use crate::server::stores::{Membership, StoresConfig, registry::EtcdUrl};

/// The pool that lends memory to the server, or that a store lends to.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("pool_use").multiple(true)))]
pub struct PoolArguments {
    /// Lend the memory to a pool instead of serving files. An rfs-server uses the memory if it
    /// names the address in --store-at, or has the same --registry. The store keeps no names, and
    /// its memory is lost when it ends. Needs --memory and --pool-key
    #[arg(long, group = "pool_use", requires_all = ["memory", "pool_key"], conflicts_with_all = ["store_at",
        "pool", "memory_dir", "checksum", "persist", "exports", "keys", "allow_without_keys", "tls_cert",
        "metrics", "inodes", "max_memory", "socket_mode", "socket_group"])]
    pub store: bool,

    /// Use the memory of these stores, too: addresses of running `rfs-server --store`, separated by
    /// commas. Clients connect to them under the same addresses. Large files are cut into pieces,
    /// and the stores take turns. Data of a store that ends is lost
    #[arg(
        long,
        value_name = "ADDRESS,...",
        value_delimiter = ',',
        group = "pool_use",
        requires = "pool_key"
    )]
    pub store_at: Vec<Address>,

    /// Use the memory of the stores in this file, too: the address of a store in each line. The
    /// file may be empty. `rfs-server pool add` and `remove` change it. Only this user and root may
    /// be able to change it
    #[arg(long, value_name = "FILE", group = "pool_use", requires = "pool_key", conflicts_with = "store_at")]
    pub pool: Option<PathBuf>,

    /// Find the stores of the pool in etcd at this address, such as http://127.0.0.1:2379; several
    /// of one cluster are separated by commas. A store (--store) registers there, and the server of
    /// the pool uses each store that is registered. A second server of the pool is refused. The
    /// pool has the name of its key. Reads and writes need no etcd, and go on while it is away
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        group = "pool_use",
        requires = "pool_key",
        conflicts_with_all = ["store_at", "pool"]
    )]
    pub registry: Vec<EtcdUrl>,

    /// Address under which the server and its clients reach this store. For --store with --registry
    /// [default: the first --listen address]
    #[arg(long, value_name = "ADDRESS", requires_all = ["store", "registry"])]
    pub register_as: Option<Address>,

    /// File with the key of the pool, of mode 600: a name and a secret in hexadecimal digits. All
    /// stores of a pool and its server have the same key. Clients do not need it. For --store,
    /// --store-at, --pool and --registry
    #[arg(long, value_name = "FILE", requires = "pool_use")]
    pub pool_key: Option<PathBuf>,

    /// Length of the pieces of a file that stores take in turn: a multiple of 4096 bytes. For
    /// --store-at, --pool and --registry
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse, default_value = "256k", requires = "pool_key",
        conflicts_with = "store")]
    pub stripe_unit: u64,
}

impl PoolArguments {
    /// Returns the stores that the server uses; `None` for a server without, and for a store.
    pub(super) fn stores(self) -> Option<StoresConfig> {
        // Clients get these addresses, too.
        let store_at: Vec<Address> = self.store_at.into_iter().map(from_anywhere).collect();
        let at = Some(store_at).filter(|addresses| !addresses.is_empty()).map(Membership::Addresses);
        let etcd = Some(self.registry).filter(|urls| !urls.is_empty() && !self.store);
        let members = at.or(self.pool.map(Membership::File)).or(etcd.map(Membership::Etcd));
        let unit = self.stripe_unit;
        self.pool_key.zip(members).map(|(key, members)| StoresConfig { members, key, unit })
    }
}
