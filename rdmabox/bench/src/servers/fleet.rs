//! The servers of a run: child processes, hosts in this process, or external servers. Servers stay
//! running between runs; each run makes new sessions.

use std::{env, time::Duration};

use measure::{
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};
use rdmabox::{Address, HostHandle, ProviderKind, RdmaOptions};

use super::server;
use crate::{Error, Result, load::model::Model};

/// Time limit for a child to become ready. It allocates all its memory first.
const READY: Duration = Duration::from_secs(60);

/// Time for a dying process to exit after its connections have closed.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Where servers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Children of this program, so that its processor time is the client's alone.
    Children,
    /// Threads of this process.
    InProcess,
    /// Running already.
    Elsewhere(Vec<Address>),
}

/// The servers.
#[derive(Debug)]
pub struct Fleet {
    source: Source,
    memory: u64,
    rdma: RdmaOptions,
    model: Option<Model>,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    addresses: Vec<Address>,
    child: Option<Guarded>,
    /// Serves as long as it is there.
    _local: Option<HostHandle>,
}

impl Fleet {
    /// Returns a fleet that starts servers with `memory` bytes each when they are needed.
    pub fn new(source: Source, memory: u64, rdma: RdmaOptions) -> Fleet {
        Fleet { source, memory, rdma, model: None, servers: Vec::new() }
    }

    /// Sets the modelled card of the client. The servers' cards are part of the model.
    #[must_use]
    pub fn with_model(self, model: Option<Model>) -> Fleet {
        Fleet { model, ..self }
    }

    /// Returns the modelled card of the client, if there is one.
    pub fn model(&self) -> Option<&Model> {
        self.model.as_ref()
    }

    /// Returns the options of the RDMA device, for both ends.
    pub fn rdma(&self) -> &RdmaOptions {
        &self.rdma
    }

    /// Returns true if the servers run in this process.
    pub fn in_process(&self) -> bool {
        self.source == Source::InProcess
    }

    /// Returns the addresses of `peers` servers for a provider. Starts servers that are missing.
    pub fn addresses(
        &mut self,
        provider: ProviderKind,
        peers: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Address>> {
        let peers = peers as usize;
        if let Source::Elsewhere(addresses) = &self.source {
            return Ok(addresses.iter().take(peers).cloned().collect());
        }
        let fits = |address: &&Address| address.provider() == provider;
        // Servers that were started for other providers may not listen on this one.
        self.servers.retain(|server| server.addresses.iter().any(|address| fits(&address)));
        while self.servers.len() < peers {
            let server = self.start(provider, interrupt)?;
            self.servers.push(server);
        }
        let find = |server: &Server| server.addresses.iter().find(fits).cloned();
        self.servers[..peers]
            .iter()
            .map(|server| find(server).ok_or_else(|| Error::Stranger("a server without that address".into())))
            .collect()
    }

    /// Returns the error of a dead server instead of its effect on this process, if there is one.
    pub fn explain(&mut self, error: Error) -> Error {
        if matches!(error, Error::Connect(_) | Error::Request(_) | Error::Stranger(_)) {
            for server in &mut self.servers {
                if let Some(child) = &mut server.child
                    && let Ok(Some(_)) = child.wait_end(LAST_WORDS)
                {
                    return child.failure("ended").into();
                }
            }
        }
        error
    }

    /// Stops all servers.
    pub fn stop(mut self) -> Result<()> {
        for server in &mut self.servers {
            if let Some(child) = &mut server.child {
                child.stop()?;
            }
        }
        Ok(())
    }

    fn start(&mut self, provider: ProviderKind, interrupt: &Interrupt) -> Result<Server> {
        let is_rdma = provider == ProviderKind::Rdma;
        let rdma_address = Address::Rdma { host: "127.0.0.1".into(), port: 0 };
        if self.in_process() {
            let len = usize::try_from(self.memory).map_err(|_| Error::usage("--area is too large"))?;
            let mut listen = server::default_addresses(self.servers.len()).to_vec();
            listen.extend(is_rdma.then_some(rdma_address));
            let running = server::start(&listen, len, self.rdma.clone())?;
            return Ok(Server {
                addresses: running.addresses().to_vec(),
                child: None,
                _local: Some(running),
            });
        }
        let program = env::current_exe().map_err(measure::Error::io("the path of this program"))?;
        let mut command = Invocation::new(program).arg("serve").arg(format!("--memory={}", self.memory));
        if is_rdma {
            command = command.arg(format!("--listen={rdma_address}"));
            let RdmaOptions { device, port, gid_index, .. } = &self.rdma;
            command = command
                .args(device.as_ref().map(|name| format!("--device={name}")))
                .args(port.map(|number| format!("--port={number}")))
                .args(gid_index.map(|index| format!("--gid-index={index}")));
        }
        let mut child = Guarded::spawn(&command, &env::temp_dir())?;
        let addresses = child.wait_output(interrupt, READY, |text| {
            text.lines().any(|line| line.starts_with("ready:")).then(|| {
                let listening = text.lines().filter_map(|line| line.strip_prefix("listening on "));
                listening.filter_map(|address| address.parse().ok()).collect::<Vec<Address>>()
            })
        })?;
        Ok(Server { addresses, child: Some(child), _local: None })
    }
}
