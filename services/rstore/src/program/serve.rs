//! `rstore master` and `rstore store`.
//!
//! # Concurrency
//! One thread, which waits for a signal.

use std::{error::Error, path::PathBuf};

use rdmabox::{Address, Key, SessionOptions};
use rstore::{Master, MasterOptions, NodeOptions, StoreNode, cli, machine::Settings};
use service_program::{StopSignals, say};

fn keys(paths: &[PathBuf]) -> Result<Vec<Key>, Box<dyn Error>> {
    Ok(paths.iter().map(|path| Key::load(path)).collect::<Result<_, _>>()?)
}

fn session(keys: &[Key]) -> SessionOptions {
    let mut options = SessionOptions::default();
    options.key = keys.first().cloned();
    options
}

/// Prints where a program listens, and waits for a signal.
fn run(stop: StopSignals, addresses: &[Address], ready: &str) {
    addresses.iter().for_each(|address| say(&address.to_string()));
    say(&format!("ready: {ready}"));
    stop.wait();
}

pub(crate) fn master(options: &cli::MasterOptions) -> Result<(), Box<dyn Error>> {
    let stop = StopSignals::take()?;
    let mut settings = Settings::default();
    settings.chunk_bytes = options.chunk;
    settings.cache_chunks = options.cache.map_or(u64::MAX, |bytes| bytes / options.chunk);
    settings.lease_millis = options.lease;
    settings.grace_millis = options.grace;
    let mut of_master = MasterOptions::new(settings);
    of_master.keys = keys(&options.peers.key)?;
    of_master.session = session(&of_master.keys);
    of_master.allow_without_keys = options.peers.allow_without_keys;
    of_master.log = options.log.clone();
    let master = Master::listen(&options.peers.listen, &of_master)?;
    run(stop, master.addresses(), &format!("chunks of {}", byte_size::show(options.chunk)));
    Ok(())
}

pub(crate) fn store(options: &cli::StoreOptions) -> Result<(), Box<dyn Error>> {
    let stop = StopSignals::take()?;
    rdmabox::memory::survive()?;
    let mut node = NodeOptions::new(options.master.clone(), options.memory)?;
    node.advertise = options.advertise.clone();
    node.store.keys = keys(&options.peers.key)?;
    node.session = session(&node.store.keys);
    node.store.allow_without_keys = options.peers.allow_without_keys;
    node.store.kill = options.kill;
    let store = StoreNode::start(&options.peers.listen, &node)?;
    run(stop, store.addresses(), &format!("lends up to {}", byte_size::show(options.memory)));
    Ok(())
}
