//! `rstore status`.
//!
//! # Concurrency
//! One thread.

use std::{
    error::Error,
    io::{Write, stdout},
};

use comfy_table::{Table, presets::ASCII_MARKDOWN};
use rdmabox::{Key, SessionOptions};

use rstore::cli::StatusOptions;

/// Returns options of sessions with the key of the command line.
pub(crate) fn session(options: &StatusOptions) -> Result<SessionOptions, Box<dyn Error>> {
    let mut session = SessionOptions::default();
    session.key = options.key.as_deref().map(Key::load).transpose()?;
    Ok(session)
}

pub(crate) fn status(options: &StatusOptions) -> Result<(), Box<dyn Error>> {
    let session = session(options)?;
    let status = rstore::master_status(&options.master, &session)?;
    let size = |chunks: u64| byte_size::show(chunks.saturating_mul(status.chunk_bytes));
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(["store", "address", "state", "lends", "prepared", "free"]);
    for store in &status.stores {
        let state = if store.up { "up" } else { "down" };
        let (number, address) = (store.store.to_string(), store.address.clone());
        table.add_row([
            number,
            address,
            state.into(),
            size(store.capacity),
            size(store.prepared),
            size(store.free),
        ]);
    }
    writeln!(stdout(), "{table}")?;
    let chunks = status.chunks;
    writeln!(
        stdout(),
        "chunks of {}: {} free, {} reserved, {} bound, {} leased, {} fenced",
        byte_size::show(status.chunk_bytes),
        chunks.free,
        chunks.reserved,
        chunks.bound,
        chunks.leased,
        chunks.fenced
    )?;
    writeln!(
        stdout(),
        "{} namespaces, {} regions, {} clients, {} references",
        status.namespaces,
        status.regions,
        status.clients,
        status.references
    )?;
    Ok(())
}
