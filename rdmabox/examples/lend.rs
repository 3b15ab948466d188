//! A host that exports memory until Ctrl-C, for the `--connect` option of the other examples.
//!
//! `cargo run --release -p rdmabox --example lend -- /tmp/lent.sock` prints
//!
//! ```text
//! lending 16777216 bytes at unix:/tmp/lent.sock
//! ```
//!
//! An address of the form `10.0.0.7:7450` exports to every machine that can reach it.

use std::error::Error;

use rdmabox::MemoryServer;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: lend ADDRESS")?;
    let len = 16 << 20;
    let host = MemoryServer::listen(&[address.parse()?], len)?;
    println!("lending {len} bytes at {}", host.addresses()[0]);
    loop {
        std::thread::park();
    }
}
