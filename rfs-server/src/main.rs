//! The program `rfs-server`: command line, log, signals, and one line for what goes wrong.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use rdmabox::size;
use rfs_proto::{BLOCK, StatFs};
use rfs_server::{Config, Server, cli::Cli};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

fn main() -> ExitCode {
    let config = Cli::parse().into_config();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("rfs-server: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal says to stop.
fn serve(config: Config) -> Result<(), String> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|e| format!("cannot handle signals: {e}"))?;
    let server = Server::start(config).map_err(|e| e.to_string())?;
    if let Err(e) = announce(&server, &mut io::stdout().lock()) {
        // Whoever started it may have closed its output: no reason not to serve.
        log::debug!("cannot write to standard output: {e}");
    }
    signals.forever().next();
    server.shutdown();
    Ok(())
}

fn announce(server: &Server, out: &mut impl Write) -> io::Result<()> {
    for address in server.addresses() {
        writeln!(out, "listening on {address}")?;
    }
    let show = |totals: &StatFs| {
        let (bytes, inodes) = (totals.blocks * BLOCK, totals.inodes);
        format!("{} ({inodes} inodes)", size::show(bytes))
    };
    let exports: Vec<_> = server.exports().collect();
    if exports.len() > 1 {
        for (name, totals) in &exports {
            writeln!(out, "exporting {name}: {}", show(totals))?;
        }
    }
    let sum = |sum: StatFs, (_, totals): &(&str, StatFs)| StatFs {
        blocks: sum.blocks + totals.blocks,
        inodes: sum.inodes + totals.inodes,
        ..sum
    };
    writeln!(out, "ready: lending {}", show(&exports.iter().fold(StatFs::default(), sum)))?;
    out.flush()
}
