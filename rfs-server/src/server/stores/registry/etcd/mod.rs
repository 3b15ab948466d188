//! Membership in etcd, through its JSON gateway.
//!
//! The keys of a pool begin with `/rdmabox/NAME/`, where NAME is the name of the pool's key:
//!
//! - `stores/ADDRESS`: a store, under a lease that the store keeps alive.
//! - `server`: the server that has the pool, under a lease that the server keeps alive.
//! - `view`: the stores of the pool. It stays when the server ends.
//!
//! Invariant: the view changes only in a transaction that finds the view as this server wrote it,
//! and the record of this server.
//!
//! # Concurrency
//! See the modules. No lock that requests of clients need is held during a request to etcd.

mod answer;
#[cfg(test)]
mod fake;
mod gateway;
mod key_store;
mod registration;
mod registry;
mod renewal;
mod stores_watch;
mod tenure;
#[cfg(test)]
mod tests;
mod url;

pub use registration::Registration;
pub(crate) use registry::EtcdRegistry;
pub use url::EtcdUrl;

use std::time::Duration;

use key_store::KeyStoreError;

use super::RegistryError;

/// Time after the last sign of life at which the record of a store or a server ends.
const LEASE: Duration = Duration::from_secs(10);
/// Interval at which a lease is kept alive.
const RENEWAL: Duration = Duration::from_secs(3);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which a start waits for etcd.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The keys of a pool.
#[derive(Clone, Debug)]
struct PoolKeys {
    /// All keys begin so.
    prefix: String,
}

impl PoolKeys {
    /// Returns the keys of a pool of this name, which has no slashes.
    fn new(pool: &str) -> PoolKeys {
        PoolKeys { prefix: format!("/rdmabox/{pool}/") }
    }

    fn view(&self) -> String {
        format!("{}view", self.prefix)
    }

    fn server(&self) -> String {
        format!("{}server", self.prefix)
    }

    /// Returns the beginning of the keys of all stores.
    fn stores(&self) -> String {
        format!("{}stores/", self.prefix)
    }
}

/// Returns the error of a registry.
fn registry_error(place: &str, error: KeyStoreError) -> RegistryError {
    let place = place.to_owned();
    match error {
        KeyStoreError::Away(reason) => RegistryError::Away { place, reason },
        KeyStoreError::Refused(reason) => RegistryError::Refused { place, reason },
    }
}
