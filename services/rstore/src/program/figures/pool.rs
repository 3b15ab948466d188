//! A master and stores as child processes, on this host or on simulated ones.
//!
//! # Concurrency
//! One thread.

use std::{error::Error, path::Path, time::Duration};

use measure::{
    interrupt::Interrupt,
    network::Network,
    process::{Guarded, Invocation},
};
use rdmabox::{Address, ProviderKind};
use rstore::{Client, ClientOptions};
use tempfile::TempDir;

/// Time for a process to listen, and for the stores to register.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the processes of a pool run, and how they are reached.
#[derive(Clone, Copy)]
pub(super) enum Site<'a> {
    /// On this host, over shared memory.
    SharedMemory,
    /// On this host, over TCP.
    Loopback,
    /// Each store on a host of the network, the others at its client.
    Network(&'a Network),
}

/// The number and the memory of the stores.
pub(super) struct Extent {
    pub(super) stores: usize,
    /// Bytes of a chunk.
    pub(super) chunk: u64,
    /// Bytes that each store lends.
    pub(super) memory: u64,
}

/// A pool that ends when it is dropped.
pub(super) struct Pool {
    provider: ProviderKind,
    pub(super) master: Address,
    _children: Vec<Guarded>,
    _dir: TempDir,
}

impl Pool {
    pub(super) fn start(
        site: Site<'_>,
        extent: &Extent,
        interrupt: &Interrupt,
    ) -> Result<Pool, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let listen = |name: &str, host: Option<usize>| match (site, host) {
            (Site::SharedMemory, _) => format!("unix:{}/{name}.sock", dir.path().display()),
            (Site::Loopback, _) => "127.0.0.1:0".to_owned(),
            (Site::Network(network), None) => format!("{}:0", network.client_address()),
            (Site::Network(network), Some(host)) => format!("{}:0", network.address(host)),
        };
        let program = || Ok::<_, std::io::Error>(Invocation::new(std::env::current_exe()?));
        let master = program()?.args(["master", "--allow-without-keys", "--listen"]);
        let master = master.args([listen("master", None), "--chunk".into(), extent.chunk.to_string()]);
        let (child, master) = spawn(&master, interrupt)?;
        let mut children = vec![child];
        for store in 0..extent.stores {
            let command = program()?.args(["store", "--allow-without-keys", "--master"]);
            let command = command.args([master.to_string(), "--memory".into(), extent.memory.to_string()]);
            let command = command.args(["--listen".into(), listen(&store.to_string(), Some(store))]);
            let command = match site {
                Site::Network(network) => network.at_host(store, &command),
                _ => command,
            };
            children.push(spawn(&command, interrupt)?.0);
        }
        let provider = match site {
            Site::SharedMemory => ProviderKind::Shm,
            Site::Loopback | Site::Network(_) => ProviderKind::Tcp,
        };
        let pool = Pool { provider, master, _children: children, _dir: dir };
        if !pool.client()?.wait_for_stores(extent.stores, LIMIT)? {
            return Err("the stores do not register".into());
        }
        Ok(pool)
    }

    pub(super) fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::default();
        options.session.provider = Some(self.provider);
        options
    }

    pub(super) fn client(&self) -> Result<Client, rstore::Error> {
        Client::connect(&self.master, self.options())
    }
}

/// Starts a process. Returns its first address.
fn spawn(command: &Invocation, interrupt: &Interrupt) -> Result<(Guarded, Address), Box<dyn Error>> {
    let mut child = Guarded::spawn(command, Path::new("/"))?;
    let first = |text: &str| text.split_once('\n').map(|(line, _)| line.to_owned());
    let line = child.wait_output(interrupt, LIMIT, first)?;
    Ok((child, line.trim().parse()?))
}
