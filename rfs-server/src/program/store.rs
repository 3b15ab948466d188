//! `rfs-server --store`: lends memory to a pool, and serves no files.
//!
//! # Concurrency
//! The main thread. It blocks on signals while the threads of the store work.

use std::path::PathBuf;

use pool::{Incarnation, Store, StoreOptions};
use rdmabox::{Address, Key};
use service_program::{StopSignals, say};

/// What a store lends, and to which pool.
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
}

/// Lends memory until a stop signal. Other signals have no effect.
///
/// # Errors
/// The store did not start.
pub(super) fn serve(arguments: StoreArguments) -> Result<(), String> {
    let StoreArguments { memory, listen, key, kill } = arguments;
    let stop = StopSignals::take().map_err(|e| format!("cannot handle signals: {e}"))?;
    rdmabox::memory::survive().map_err(|e| format!("cannot prepare for lost memory: {e}"))?;
    let incarnation = Incarnation::random().map_err(|e| format!("no random numbers: {e}"))?;
    let mut options = StoreOptions::new(memory, incarnation);
    options.pool_key = Some(Key::load(&key).map_err(|e| e.to_string())?);
    options.kill = kill;
    let store = Store::listen(&listen, &options).map_err(|e| e.to_string())?;
    for address in store.addresses() {
        say(&format!("listening on {address}"));
    }
    say(&format!("ready: lending {} to a pool", byte_size::show(memory)));
    stop.wait();
    log::info!("the store stops");
    Ok(())
}
