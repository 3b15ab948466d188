//! Figure 11: Zipf-distributed keys, with and without a cache, against NessieSD.

use std::{
    error::Error,
    io::{Write, stdout},
    time::Duration,
};

use nessie::{Node, ServerDriven};

use super::{table, thousands};
use crate::{
    children::{Deployment, pin},
    cli::Cli,
    load::{Keys, Load, Store, fill},
};

const WAIT: Duration = Duration::from_secs(60);

/// Returns a client without values of its own, beside a node that has all of them.
fn start(cli: &Cli, cache: usize) -> Result<(Deployment, Vec<Node>), Box<dyn Error>> {
    let deployment = Deployment::new(cli, 2)?;
    let nodes = vec![deployment.start(0, cache)?, deployment.start(1, 0)?];
    nodes.iter().try_for_each(|node| node.wait(WAIT))?;
    fill(&nodes[1], 0..cli.keys, &vec![7; cli.value])?;
    Ok((deployment, nodes))
}

pub(super) fn run(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let _pinned = pin(0);
    let time = Duration::from_millis(cli.cell_ms);
    let mut rows = table(
        "Figure 11: thousands of operations per second of one client, Zipf-distributed keys",
        &["exponent", "% GETs", "Nessie", "with a cache of 1 %", "cache hits", "NessieSD"],
    )?;
    for exponent in [0.7, 0.9] {
        for gets in [1000, 999, 900] {
            let keys = Keys::zipf(cli.keys, exponent);
            let load = Load { keys, gets, value: vec![8; cli.value], compute: 0 };
            let (_plain, nodes) = start(cli, 0)?;
            let (_cached, cached_nodes) = start(cli, (cli.keys / 100) as usize)?;
            let deployment = Deployment::new(cli, 1)?.server_driven();
            let _server = deployment.spawn(0)?;
            let twin = ServerDriven::new(vec![deployment.session(0)?]);
            fill(&twin, 0..cli.keys, &vec![7; cli.value])?;
            let before = cached_nodes[0].stats();
            let stores: [&dyn Store; 3] = [&nodes[0], &cached_nodes[0], &twin];
            let [plain, cached, driven] = load.compare(stores, time)?;
            let after = cached_nodes[0].stats();
            let hits = after.cache_hits - before.cache_hits;
            let misses = after.remote_entries - before.remote_entries;
            rows.add_row([
                exponent.to_string(),
                format!("{:.1}", f64::from(gets) / 10.0),
                thousands(plain),
                thousands(cached),
                format!("{:.0} %", 100.0 * hits as f64 / (hits + misses).max(1) as f64),
                thousands(driven),
            ]);
        }
    }
    writeln!(stdout(), "{rows}")?;
    Ok(())
}
