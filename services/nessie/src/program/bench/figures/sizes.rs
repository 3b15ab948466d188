//! Figure 1: the rate at which one client thread reads from one server, by READs and by calls.

use std::{
    error::Error,
    io::{Write, stdout},
    sync::Arc,
    time::{Duration, Instant},
};

use nessie::ServerDriven;
use rdmabox::MemoryServer;

use super::{table, thousands};
use crate::{
    children::{Deployment, pin},
    cli::{Cli, Over},
    load::{Keys, Load, Store, fill},
};

pub(super) fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let _pinned = pin(0);
    let mut rows = table(
        "Figure 1: thousands of requests per second of one client thread, by bytes",
        &["bytes", "READ", "call (server-driven GET)", "READ / call"],
    )?;
    let time = Duration::from_millis(cli.cell_ms);
    for bytes in [8, 64, 256, 1024, 4096, 8192] {
        let cli_of_size = Cli { value: bytes, keys: 64, ..copy(cli) };
        let deployment = Deployment::new(&cli_of_size, 1)?.server_driven();
        let _server = deployment.spawn(0)?;
        let session = deployment.session(0)?;
        let store = ServerDriven::new(vec![session]);
        fill(&store, 0..64, &vec![7; bytes])?;
        let load = Load { keys: Keys::Uniform(64), gets: 1000, value: Vec::new(), compute: 0 };
        let calls = load.run(&store as &dyn Store, time, 1)?;
        let reads = reads(cli.over, bytes, time)?;
        rows.add_row([
            bytes.to_string(),
            thousands(reads),
            thousands(calls),
            format!("{:.1}", reads / calls),
        ]);
    }
    writeln!(stdout(), "{rows}")?;
    Ok(())
}

fn copy(cli: &Cli) -> Cli {
    Cli { figure: Vec::new(), role: None, ..*cli }
}

/// Measures READs of `bytes` bytes of lent memory. Returns their number per second.
fn reads(over: Over, bytes: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
    let host = MemoryServer::listen(
        &[
            format!(
                "unix:{}",
                std::env::temp_dir().join(format!("nessie-bench-{}", std::process::id())).display()
            )
            .parse()?,
            "127.0.0.1:0".parse()?,
        ],
        64 << 10,
    )?;
    let address = &host.addresses()[usize::from(over == Over::Tcp)];
    let session: Arc<_> = rdmabox::Session::builder().provider(over.provider()).connect(address)?;
    let base = MemoryServer::locate(&session)?.base();
    let mut out = vec![0; bytes];
    let begun = Instant::now();
    let mut count = 0u64;
    while begun.elapsed() < time {
        for _ in 0..16 {
            session.read(base, &mut out)?;
            count += 1;
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
