//! `rfs-server --store`: lends memory to a pool, and serves no files.
//!
//! # Concurrency
//! The main thread. It blocks on signals while the threads of the store work.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use pool::{Incarnation, Store, StoreOptions};
use rdmabox::{Address, Key};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

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

/// Lends memory until a stop signal.
///
/// # Errors
/// The store did not start.
pub(super) fn serve(arguments: StoreArguments) -> Result<(), String> {
    let StoreArguments { memory, listen, key, kill } = arguments;
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|e| format!("cannot handle signals: {e}"))?;
    rdmabox::memory::survive().map_err(|e| format!("cannot prepare for lost memory: {e}"))?;
    let mut run = [0; 16];
    getrandom::fill(&mut run).map_err(|e| format!("no random numbers: {e}"))?;
    let mut options = StoreOptions::new(memory, Incarnation(u128::from_le_bytes(run)));
    options.pool_key = Some(Key::load(&key).map_err(|e| e.to_string())?);
    options.kill = kill;
    let store = Store::listen(&listen, &options).map_err(|e| e.to_string())?;
    if let Err(e) = announce(&store, memory, &mut io::stdout().lock()) {
        // The program that started the store may have closed the pipe; lend nevertheless.
        log::debug!("cannot write to standard output: {e}");
    }
    for signal in signals.forever() {
        match signal {
            SIGHUP => log::info!("SIGHUP: a store has nothing to reload"),
            _ => break,
        }
    }
    log::info!("the store stops");
    Ok(())
}

fn announce(store: &Store, memory: u64, out: &mut impl Write) -> io::Result<()> {
    for address in store.addresses() {
        writeln!(out, "listening on {address}")?;
    }
    writeln!(out, "ready: lending {} to a pool", byte_size::show(memory))?;
    out.flush()
}
