//! Figures 2, 7 and 8: throughput while processors compute something else.

use std::{
    error::Error,
    io::{Write, stdout},
    time::Duration,
};

use nessie::{Node, ServerDriven};

use super::{table, thousands};
use crate::{
    children::{Deployment, Pinned, Process, hogs as start_hogs, pin},
    cli::Cli,
    load::{Keys, Load, Store, fill},
};

const WAIT: Duration = Duration::from_secs(60);

/// A client on processor 0, and a server on processor 1 that has all values.
struct Pair {
    client: Node,
    twin: ServerDriven,
    _servers: Vec<Process>,
    _deployments: Vec<Deployment>,
    _pinned: Pinned,
}

impl Pair {
    fn start(cli: &Cli) -> Result<Pair, Box<dyn Error>> {
        let pinned = pin(0);
        let value = vec![7; cli.value];
        let deployment = Deployment::new(cli, 2)?;
        let server = deployment.spawn(1)?;
        let client = deployment.start(0, 0)?;
        client.wait(WAIT)?;
        // The server's node stores the values, so they are in its data table.
        let through = ServerDriven::new(vec![deployment.session(1)?]);
        let filled = (0..1000).find_map(|_| match fill(&through, 0..1, &value) {
            Ok(()) => Some(()),
            Err(_) => {
                std::thread::sleep(Duration::from_millis(20));
                None
            }
        });
        filled.ok_or("the nodes do not meet")?;
        fill(&through, 1..cli.keys, &value)?;
        let twin_deployment = Deployment::new(cli, 1)?.server_driven();
        let twin_server = twin_deployment.spawn(0)?;
        let twin = ServerDriven::new(vec![twin_deployment.session(0)?]);
        fill(&twin, 0..cli.keys, &value)?;
        Ok(Pair {
            client,
            twin,
            _servers: vec![server, twin_server],
            _deployments: vec![deployment, twin_deployment],
            _pinned: pinned,
        })
    }
}

fn load(cli: &Cli, gets: u32, compute: u32) -> Load {
    Load { keys: Keys::Uniform(cli.keys), gets, value: vec![8; cli.value], compute }
}

/// Measures and prints figures 2 and 7.
pub(super) fn hogs(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let pair = Pair::start(cli)?;
    let time = Duration::from_millis(cli.cell_ms);
    let mut rows = table(
        "Figures 2 and 7: thousands of operations per second beside processes that compute on the \
         server's processor",
        &["hogs", "Nessie, GETs", "NessieSD, GETs", "Nessie, 90 % GETs", "NessieSD, 90 % GETs"],
    )?;
    for count in 0..=cli.hogs {
        let _hogs = start_hogs(count)?;
        std::thread::sleep(Duration::from_millis(50));
        let mut row = vec![count.to_string()];
        for gets in [1000, 900] {
            let stores: [&dyn Store; 2] = [&pair.client, &pair.twin];
            row.extend(load(cli, gets, 0).compare(stores, time)?.map(thousands));
        }
        rows.add_row(row);
    }
    writeln!(stdout(), "{rows}")?;
    Ok(())
}

/// Measures figure 8: the client computes between operations.
pub(super) fn compute(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let pair = Pair::start(cli)?;
    let time = Duration::from_millis(cli.cell_ms);
    let mut rows = table(
        "Figure 8: thousands of operations per second, 90 % GETs, with computation in the client",
        &["rounds between operations", "Nessie", "NessieSD"],
    )?;
    for rounds in [0, 1000, 10_000, 100_000] {
        let mut row = vec![rounds.to_string()];
        let stores: [&dyn Store; 2] = [&pair.client, &pair.twin];
        row.extend(load(cli, 900, rounds).compare(stores, time)?.map(thousands));
        rows.add_row(row);
    }
    writeln!(stdout(), "{rows}")?;
    Ok(())
}
