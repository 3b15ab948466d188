//! rfs over TCP with one or more stores, each a host of a simulated network.
//!
//! The memory of the server is the first store. Without a limit of the links, all programs are on
//! loopback.

use std::{env, path::PathBuf};

use measure::{network::Network, pool_key};

use super::{
    Running, Side, Target, WorkDir,
    rfs::ready,
    running_mounts::{START, Started},
};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};

/// The programs of a pool.
#[derive(Clone, Debug)]
pub struct PoolSetup {
    /// Directory of `rfs-server` and `rfs-fuse`.
    pub bin_dir: PathBuf,
    /// Number of stores, with the server; at least 1.
    pub stores: usize,
    /// Memory of each store in bytes.
    pub memory: u64,
    /// Number of mounts.
    pub mounts: u32,
    /// Bytes per second of each store's link, in each direction; `None` for loopback.
    pub link: Option<u64>,
    /// Length of the pieces of files [default: the server's].
    pub stripe_unit: Option<u64>,
    /// Options of the mounts.
    pub mount_args: Vec<String>,
}

/// A server with its stores.
#[derive(Debug)]
pub struct Pool {
    setup: PoolSetup,
    name: String,
    title: String,
}

impl Pool {
    /// Returns a target of these programs.
    pub fn new(setup: PoolSetup) -> Self {
        let title = match setup.stores {
            1 => "a server alone".to_owned(),
            n => format!("a server, and {} that lend memory", n - 1),
        };
        Self { name: Self::name_of(setup.stores as u64), setup, title }
    }

    /// Returns the name of a pool of so many stores.
    pub fn name_of(stores: u64) -> String {
        if stores == 1 { "1 store".into() } else { format!("{stores} stores") }
    }

    /// Returns the command of a store, or of the server, before its place in the network.
    fn serve(&self, listen: &str) -> Invocation {
        Invocation::new(self.setup.bin_dir.join("rfs-server"))
            .args(["--memory".to_owned(), self.setup.memory.to_string()])
            .args(["--listen".to_owned(), format!("tcp:{listen}:0")])
    }

    /// Starts a store, or the server, on a host. Returns the program, its address and its command
    /// line.
    fn start_on(
        &self,
        (started, host): (&Started, usize),
        command: impl Fn(Invocation) -> Invocation,
        interrupt: &Interrupt,
    ) -> Result<(Guarded, String, String)> {
        let placed = match started.network() {
            Some(network) => network.at_host(host, &command(self.serve(&network.address(host)))),
            None => command(self.serve("127.0.0.1")),
        };
        let mut program = Guarded::spawn(&placed, started.work().path())?;
        let addresses = program.wait_output(interrupt, START, ready)?;
        let address = addresses.into_iter().next();
        let address = address.ok_or_else(|| program.failure("ready, but without an address"))?;
        Ok((program, address, placed.line()))
    }

    fn start_servers(&self, started: &mut Started, interrupt: &Interrupt) -> Result<()> {
        let key = started.work().path().join("pool.key");
        pool_key::write(&key).map_err(Error::io(&key))?;
        let mut addresses = Vec::new();
        for host in 1..self.setup.stores {
            let lend = |serve: Invocation| serve.arg("--store").arg("--pool-key").arg(&key);
            let (store, address, line) = self.start_on((started, host), lend, interrupt)?;
            addresses.push(address);
            started.lend(store, line);
        }
        let use_stores = |serve: Invocation| {
            let serve = serve.args(["--allow-without-keys", "--prefault"]);
            match addresses.is_empty() {
                true => serve,
                false => serve
                    .args(["--store-at".to_owned(), addresses.join(",")])
                    .arg("--pool-key")
                    .arg(&key)
                    .args(self.setup.stripe_unit.map(|unit| format!("--stripe-unit={unit}"))),
            }
        };
        let (server, address, line) = self.start_on((started, 0), use_stores, interrupt)?;
        started.serve(server, address, line);
        Ok(())
    }
}

impl Target for Pool {
    fn name(&self) -> &str {
        &self.name
    }

    fn title(&self) -> &str {
        &self.title
    }

    fn side(&self) -> Side {
        Side::Ours
    }

    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>> {
        let work = WorkDir::new(&env::temp_dir())?;
        // From here on, an early return drops `started`, which ends and removes everything that
        // exists.
        let mut started = Started::new(work, None);
        if let Some(bytes) = self.setup.link {
            let network = Network::new(self.setup.stores, interrupt)?;
            network.limit(bytes, interrupt)?;
            started.keep(network);
        }
        self.start_servers(&mut started, interrupt)?;
        for n in 0..self.setup.mounts {
            let point = started.work().subdir(&format!("mnt{n}"))?;
            let server = started.server().unwrap_or_default().to_owned();
            let mount = Invocation::new(self.setup.bin_dir.join("rfs-fuse"))
                .arg(server)
                .arg(&point)
                .args(["--stats-on-exit", "--provider", "tcp"])
                .args(&self.setup.mount_args);
            let mount = started.network().map_or_else(|| mount.clone(), |network| network.at_client(&mount));
            started.mount(mount, point, interrupt)?;
        }
        Ok(Box::new(started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_one_of_the_stores() {
        let setup = PoolSetup {
            bin_dir: "/bin".into(),
            stores: 4,
            memory: 1 << 30,
            mounts: 1,
            link: None,
            stripe_unit: None,
            mount_args: vec![],
        };
        let pool = Pool::new(setup.clone());
        assert_eq!((pool.name(), pool.title()), ("4 stores", "a server, and 3 that lend memory"));
        assert_eq!(Pool::new(PoolSetup { stores: 1, ..setup }).title(), "a server alone");
        assert_eq!(
            pool.serve("10.78.0.1").line(),
            "/bin/rfs-server --memory 1073741824 --listen tcp:10.78.0.1:0"
        );
    }
}
