//! `rfs-server --store`: lends memory to a pool, and serves no files.
//!
//! # Concurrency
//! The main thread. It blocks on signals while the threads of the store work.

use std::{net::IpAddr, path::PathBuf};

use pool::{Incarnation, Store, StoreOptions};
use rdmabox::{Address, Key, KeyId};
use service_program::{StopSignals, say};

use crate::server::stores::registry::{EtcdUrl, Registration, StoreRecord};

/// The memory that a store lends, and its pool.
#[derive(Debug)]
pub(super) struct StoreArguments {
    /// Bytes that it lends at most.
    pub(super) memory: u64,
    /// Addresses to listen on.
    pub(super) listen: Vec<Address>,
    /// File with the key of the pool.
    pub(super) key: PathBuf,
    /// Kill clients that keep memory mapped after their access was ended.
    pub(super) kill: bool,
    /// Where it registers.
    pub(super) registration: RegistrationArguments,
}

/// Where a store registers.
#[derive(Clone, Debug)]
pub(super) struct RegistrationArguments {
    /// Addresses of etcd; empty if the store does not register.
    pub(super) urls: Vec<EtcdUrl>,
    /// Address that it registers; `None` for its first address.
    pub(super) address: Option<Address>,
}

impl RegistrationArguments {
    /// Registers a store that listens on `addresses`.
    ///
    /// # Errors
    /// No other machine could use the address, or etcd does not answer or refuses.
    fn register(
        self,
        addresses: &[Address],
        memory: u64,
        pool: KeyId,
    ) -> Result<Option<Registration>, String> {
        if self.urls.is_empty() {
            return Ok(None);
        }
        let first = || addresses.first().cloned().ok_or("a store needs an address to register");
        let address = self.address.map_or_else(first, Ok)?;
        if is_wildcard(&address) {
            return Err(format!(
                "{address} is no address that another machine can use: name one with --register-as, such as \
                 tcp:10.0.0.8:7450"
            ));
        }
        let record = StoreRecord::of_this_process(address.clone(), memory);
        let record = record.map_err(|e| format!("cannot register: {e}"))?;
        let registration = Registration::start(&self.urls, pool, &record).map_err(|e| e.to_string())?;
        say(&format!("registered as {address} in {}", registration.place()));
        Ok(Some(registration))
    }
}

/// Returns true for an address that stands for all addresses of a machine.
fn is_wildcard(address: &Address) -> bool {
    let (Address::Tcp { host, .. } | Address::Rdma { host, .. }) = address else { return false };
    host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

/// Lends memory until a stop signal. Other signals have no effect.
///
/// # Errors
/// The store did not start.
pub(super) fn serve(arguments: StoreArguments) -> Result<(), String> {
    let StoreArguments { memory, listen, key, kill, registration } = arguments;
    let stop = StopSignals::take().map_err(|e| format!("cannot handle signals: {e}"))?;
    rdmabox::memory::survive().map_err(|e| format!("cannot prepare for lost memory: {e}"))?;
    let incarnation = Incarnation::random().map_err(|e| format!("no random numbers: {e}"))?;
    let mut options = StoreOptions::new(memory, incarnation);
    let key = Key::load(&key).map_err(|e| e.to_string())?;
    let pool = key.id;
    options.pool_key = Some(key);
    options.kill = kill;
    let store = Store::listen(&listen, &options).map_err(|e| e.to_string())?;
    for address in store.addresses() {
        say(&format!("listening on {address}"));
    }
    // Dropped first: the pool learns that the store stops before its connections end.
    let _registration = registration.register(store.addresses(), memory, pool)?;
    say(&format!("ready: lending {} to a pool", byte_size::show(memory)));
    stop.wait();
    log::info!("the store stops");
    Ok(())
}
