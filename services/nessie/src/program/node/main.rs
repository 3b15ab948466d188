//! `nessie-node`: see `nessie-node --help`.

use std::{path::Path, process::ExitCode, time::Duration};

use nessie::{JoinOptions, Members, NessieError, Node, NodeOptions, cli::node::Cli};
use program_version::Build;
use rdmabox::Key;
use service_program::{StopSignals, say};

/// The build that `--version` prints.
const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("RFS_COMMIT"),
    protocols: &[("runtime protocol", rdmabox::PROTOCOL)],
};

fn main() -> ExitCode {
    let cli = BUILD.parse::<Cli>();
    cli.log.start("info");
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nessie-node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(cli: &Cli) -> Result<NodeOptions, NessieError> {
    // The command line has required these three.
    let (nodes, id) = (cli.nodes.as_deref().unwrap_or_else(|| Path::new("")), cli.id.unwrap_or(0));
    let mut options = NodeOptions::new(id, Members::load(nodes)?);
    options.listen = cli.listen.clone();
    options.spare = cli.spare;
    options.key = key(cli)?;
    options.allow_without_keys = cli.allow_without_keys;
    options.index_bytes = cli.index.unwrap_or(0);
    options.data_bytes = cli.data;
    options.ways = cli.ways;
    options.max_key = cli.max_key as usize;
    options.max_value = cli.max_value as usize;
    options.filter_bits = cli.filter_bits;
    options.cache_entries = cli.cache;
    options.max_depth = cli.depth;
    options.reuse_delay = Duration::from_millis(cli.reuse_delay_ms);
    options.lease = Duration::from_millis(cli.lease_ms);
    options.patience = Duration::from_millis(cli.patience_ms);
    Ok(options)
}

fn key(cli: &Cli) -> Result<Option<Key>, NessieError> {
    cli.key.as_deref().map(Key::load).transpose().map_err(|e| {
        let path = cli.key.as_deref().unwrap_or_else(|| Path::new("")).display();
        NessieError::InvalidOption(format!("key {path}: {e}"))
    })
}

fn start(cli: &Cli) -> Result<Node, NessieError> {
    let Some(seed) = &cli.join else { return Node::start(options(cli)?) };
    let listen =
        cli.listen.first().ok_or_else(|| NessieError::InvalidOption("--join needs --listen".into()))?;
    let mut options = JoinOptions::new(listen.clone());
    options.key = key(cli)?;
    options.allow_without_keys = cli.allow_without_keys;
    options.data_bytes = cli.data;
    options.cache_entries = cli.cache;
    Node::join(seed, &options)
}

fn run(cli: &Cli) -> Result<(), NessieError> {
    let stop = StopSignals::take().map_err(|e| NessieError::Host(format!("signals: {e}")))?;
    let node = start(cli)?;
    node.addresses().iter().for_each(|address| say(&address.to_string()));
    match node.wait(Duration::from_secs(cli.wait_s)) {
        Ok(()) => say(&format!("ready: node {}", node.number())),
        Err(e @ NessieError::Condemned { .. }) => return Err(e),
        Err(e) => say(&format!("waiting: {e}")),
    }
    stop.wait();
    Ok(())
}
