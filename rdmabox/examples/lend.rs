//! A host that exports memory until SIGTERM or Ctrl-C, for the `--connect` option of the other
//! examples.
//!
//! `cargo run --release -p rdmabox --example lend -- /tmp/lent.sock` prints
//!
//! ```text
//! lending 16777216 bytes at unix:/tmp/lent.sock
//! ```
//!
//! An address of the form `10.0.0.7:7450` exports to every machine that can reach it. A signal ends
//! the host in order: its clients lose their sessions, and its socket is removed. With
//! `RUST_LOG=rdmabox=info` in the environment, it prints the sessions that begin and end.

use std::error::Error;

use rdmabox::MemoryServer;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let address = std::env::args().nth(1).ok_or("usage: lend ADDRESS")?;
    let len = 16 << 20;
    let host = MemoryServer::listen(&[address.parse()?], len)?;
    println!("lending {len} bytes at {}", host.addresses()[0]);
    signals.forever().next();
    drop(host);
    Ok(())
}
