//! Figures 9 and 10: accesses to an own working set, and filter bits.

use std::{
    error::Error,
    io::{Write, stdout},
    thread,
    time::Duration,
};

use nessie::{Node, NodeStats};

use super::{table, thousands};
use crate::{
    children::Deployment,
    cli::Cli,
    load::{Keys, Load, fill},
};

const NODES: u16 = 3;
const WAIT: Duration = Duration::from_secs(60);

fn start(cli: &Cli, filter_bits: u32) -> Result<(Deployment, Vec<Node>), Box<dyn Error>> {
    let deployment = Deployment::new(cli, NODES.into())?.filter_bits(filter_bits);
    let nodes = (0..NODES).map(|node| deployment.start(node, 0)).collect::<Result<Vec<_>, _>>()?;
    nodes.iter().try_for_each(|node| node.wait(WAIT))?;
    let share = cli.keys / u32::from(NODES);
    for (node, first) in nodes.iter().zip((0..).step_by(share as usize)) {
        fill(node, first..first + share, &vec![7; cli.value])?;
    }
    Ok((deployment, nodes))
}

/// Runs a client on each node. Returns all operations per second, and the counters' growth.
fn run(cli: &Cli, nodes: &[Node], gets: u32, percent: u32) -> Result<(f64, NodeStats, f64), Box<dyn Error>> {
    let share = cli.keys / u32::from(NODES);
    let time = Duration::from_millis(cli.cell_ms);
    let before: Vec<NodeStats> = nodes.iter().map(Node::stats).collect();
    let rates = thread::scope(|scope| {
        let clients: Vec<_> = (0..)
            .zip(nodes)
            .map(|(number, node)| {
                scope.spawn(move || {
                    let own = number * share..(number + 1) * share;
                    let keys = Keys::Local { all: share * u32::from(NODES), own, percent };
                    let load = Load { keys, gets, value: vec![8; cli.value], compute: 0 };
                    load.run(node, time, number.into()).map_err(|e| e.to_string())
                })
            })
            .collect();
        let rates = clients.into_iter().map(|client| client.join().map_err(|_| "a panic".to_string())?);
        rates.collect::<Result<Vec<f64>, String>>()
    })?;
    let mut grown = NodeStats::default();
    let mut operations = 0;
    for (node, before) in nodes.iter().zip(before) {
        let after = node.stats();
        operations += after.gets + after.puts - before.gets - before.puts;
        grown.own_entries += after.own_entries - before.own_entries;
        grown.remote_entries += after.remote_entries - before.remote_entries;
    }
    Ok((rates.iter().sum(), grown, operations as f64))
}

/// Measures figure 9.
pub(super) fn locality(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let mut rows = table(
        "Figure 9: thousands of operations per second of three nodes, by the share of the working set",
        &["% of working set", "100 % GETs", "entries from own table", "90 % GETs", "50 % GETs"],
    )?;
    for percent in [0, 20, 40, 60, 80] {
        let mut row = vec![percent.to_string()];
        for gets in [1000, 900, 500] {
            // A start for each cell: PUTs of the cell before have moved values.
            let (_deployment, nodes) = start(cli, 15)?;
            let (rate, grown, _) = run(cli, &nodes, gets, percent)?;
            row.push(thousands(rate));
            if gets == 1000 {
                let all = grown.own_entries + grown.remote_entries;
                row.push(format!("{:.0} %", 100.0 * grown.own_entries as f64 / all as f64));
            }
        }
        rows.add_row(row);
    }
    writeln!(stdout(), "{rows}")?;
    Ok(())
}

/// Measures figure 10.
pub(super) fn filter(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let mut rows = table(
        "Figure 10: filter bits, 90 % GETs, three nodes",
        &["filter bits", "thousands of operations per second", "entries read per operation"],
    )?;
    for bits in [0, 1, 3, 7, 11] {
        let (_deployment, nodes) = start(cli, bits)?;
        let (rate, grown, operations) = run(cli, &nodes, 900, 0)?;
        let entries = (grown.own_entries + grown.remote_entries) as f64 / operations;
        rows.add_row([bits.to_string(), thousands(rate), format!("{entries:.3}")]);
    }
    writeln!(stdout(), "{rows}")?;
    Ok(())
}
