//! A server with stores, and the command that changes its pool.
//!
//! # Concurrency
//! The main thread, as for all processes of a trial.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use measure::{
    pool_key,
    process::{Guarded, Invocation},
};
use serde_json::Value;

use super::{Host, Network, Plan, Testbed, address, directory, listen, server};
use crate::error::{Error, Result};

/// Limit of a command. A drain of some GiB takes a minute on a slow machine.
const COMMAND: Duration = Duration::from_secs(600);

/// The stores of a testbed, and the files that they need.
#[derive(Debug)]
pub(super) struct Stores<'a> {
    plan: &'a Plan,
    network: Option<&'a Network>,
    /// Address of the server, from which those of the stores are made.
    listen: String,
    key: PathBuf,
    dir: PathBuf,
    running: Vec<(String, Guarded)>,
}

/// The state of a store, as a server tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreNumbers {
    /// Bytes that files have there.
    pub(crate) used: u64,
    /// Bytes that a drain has moved away.
    pub(crate) moved: u64,
}

impl<'a> Stores<'a> {
    fn new(plan: &'a Plan, network: Option<&'a Network>, listen: &str, dir: &Path) -> Result<Stores<'a>> {
        let (key, dir) = (dir.join("pool.key"), dir.to_owned());
        pool_key::write(&key).map_err(Error::io("the key of the pool"))?;
        Ok(Stores { plan, network, listen: listen.to_owned(), key, dir, running: Vec::new() })
    }

    /// Starts another store. Returns its address.
    fn start(&mut self) -> Result<String> {
        // A Unix socket has a name of its own. A network address has the port 0.
        let listen = self.listen.replace("/socket", &format!("/store{}", self.running.len() + 1));
        let command = Invocation::new(self.plan.bin_dir.join("rfs-server"))
            .args(["--store", "--memory", &self.plan.memory.to_string(), "--listen", &listen, "--pool-key"])
            .arg(&self.key);
        let command = match self.network {
            Some(network) => network.at(Host::Server, &command),
            None => command,
        };
        let mut store = Guarded::spawn(&command, &self.dir)?;
        let address = address(self.plan, &mut store)?;
        self.running.push((address.clone(), store));
        Ok(address)
    }

    /// Writes the file of the pool. Returns the arguments of the server.
    fn arguments(&self) -> Result<[OsString; 4]> {
        let members = self.dir.join("stores");
        let lines: String = self.running.iter().map(|(address, _)| format!("{address}\n")).collect();
        fs::write(&members, lines).map_err(Error::io("the file of the pool"))?;
        let [pool, key] = ["--pool", "--pool-key"].map(OsString::from);
        Ok([pool, members.into(), key, self.key.clone().into()])
    }
}

impl<'a> Testbed<'a> {
    /// Starts a server with so many stores. Each has as much memory as the server. `more` are
    /// arguments of the server.
    pub(crate) fn start_pool(
        plan: &'a Plan,
        network: Option<&'a Network>,
        stores: usize,
        more: &[String],
    ) -> Result<Testbed<'a>> {
        let dir = directory()?;
        let listen = match network {
            Some(_) => format!("tcp:{}:0", Host::Server.address()),
            None => listen(plan, dir.path()),
        };
        let mut command = server(plan, None, &listen).args(more);
        let mut pool = None;
        if stores > 0 {
            let mut running = Stores::new(plan, network, &listen, dir.path())?;
            (0..stores).try_for_each(|_| running.start().map(drop))?;
            command = command.args(running.arguments()?);
            pool = Some(running);
        }
        if let Some(network) = network {
            command = network.at(Host::Server, &command);
        }
        let mut testbed = Testbed::start_with(plan, dir, &command)?;
        (testbed.network, testbed.stores) = (network, pool);
        Ok(testbed)
    }

    fn stores(&mut self) -> Result<&mut Stores<'a>> {
        self.stores.as_mut().ok_or_else(|| Error::Wrong("the server has no stores".into()))
    }

    /// Starts another store, which is in no pool yet. Returns its address.
    pub(crate) fn start_store(&mut self) -> Result<String> {
        self.stores()?.start()
    }

    /// Returns the address of the first store.
    pub(crate) fn first_store(&mut self) -> Result<String> {
        let first = self.stores()?.running.first().map(|(address, _)| address.clone());
        first.ok_or_else(|| Error::Wrong("there is no store".into()))
    }

    /// Ends a store. Returns an error if it does not end cleanly.
    pub(crate) fn stop_store(&mut self, address: &str) -> Result<()> {
        let store = self.stores()?.running.iter_mut().find(|(other, _)| other == address);
        let (_, store) = store.ok_or_else(|| Error::Wrong(format!("no store at {address}")))?;
        Ok(store.stop()?)
    }

    /// Runs `rfs-server pool` for the server. Returns its output.
    pub(crate) fn pool(&self, arguments: &[&str]) -> Result<String> {
        let command = Invocation::new(self.plan.bin_dir.join("rfs-server")).arg("pool").args(arguments);
        let mut running = Guarded::spawn(&command.arg(&self.address), Path::new("/"))?;
        Ok(running.wait_success(&self.plan.interrupt, COMMAND, |_| {})?)
    }

    /// Returns the numbers of the store at an address.
    pub(crate) fn store(&self, address: &str) -> Result<StoreNumbers> {
        let text = self.pool(&["status", "--json"])?;
        let pool: Value = serde_json::from_str(&text).map_err(|e| Error::Wrong(format!("{e}: {text}")))?;
        let stores = pool["stores"].as_array().map(Vec::as_slice).unwrap_or_default();
        let store = stores.iter().find(|store| store["address"] == address);
        let store = store.ok_or_else(|| Error::Wrong(format!("no store at {address}: {text}")))?;
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Ok(StoreNumbers { used: number(&store["used_bytes"]), moved: number(&store["drain"]["moved_bytes"]) })
    }
}
