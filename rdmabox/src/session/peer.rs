//! What a host's service sees: its peers, the memory it exports, and what it is asked.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Domain, KeyId, ProviderKind, straggler::ClientProcess};
use crate::{
    memory::Memory,
    rpc::Reply,
    verbs::{MrHandle, RemoteAddr},
};

/// A service that sessions connect to.
pub trait Service: Send + Sync + 'static {
    /// A session is up; calls follow. An error ends it, and is told to the client.
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        let _ = peer;
        Ok(())
    }

    /// Answers one call into `reply`, which comes empty, or promises the answer for [later](Reply::later). Runs on
    /// several threads at once, which are the only ones that there are for calls: who has to wait for something promises,
    /// and does not block. An error (a malformed request, say) ends the session and is logged.
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), String>;

    /// The session is over: no call of it is running or will run, and its queue pairs here are destroyed. Once for each
    /// `connected` that succeeded.
    ///
    /// Nothing of the session touches memory any more, whatever the client does. With shared memory this is called when the client
    /// has answered that its last request is over, which a running one does by itself, or when its process has ended: until
    /// then it is put off ([`Fencing`](super::Fencing)). Only a host that is being stopped does not wait for that
    /// ([`Peer::clings`]). Whoever used
    /// [`Session::map`](super::Session::map) and kept the memory can read there in any case.
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// A connected client.
#[derive(Debug)]
pub struct Peer {
    pub(crate) id: u64,
    pub(crate) provider: ProviderKind,
    pub(crate) name: String,
    pub(crate) key: Option<KeyId>,
    /// Its lease is over.
    pub(crate) expired: AtomicBool,
    /// The host did not wait until it had let go of mapped memory.
    pub(crate) clings: AtomicBool,
    /// Where memory is mapped.
    pub(super) process: Option<Arc<ClientProcess>>,
}

/// The process of a peer on this host.
#[derive(Clone, Debug)]
pub struct PeerProcess(Arc<ClientProcess>);

impl PeerProcess {
    /// True once the process has ended: nothing of it will ever come again.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Its number. While [`has_ended`](Self::has_ended) is false no other process has it.
    pub fn id(&self) -> i32 {
        self.0.pid()
    }
}

impl Peer {
    /// Number of the session, unique while the host runs.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What carries its requests.
    pub fn provider(&self) -> ProviderKind {
        self.provider
    }

    /// The key that it has proved to have; `None` where it needs none.
    pub fn key(&self) -> Option<&KeyId> {
        self.key.as_ref()
    }

    /// True if the session ends because nothing was heard of the peer for the length of its lease, and not because its connection did.
    pub fn has_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// True if the session is over because the host is being stopped, and the client had not let go of mapped memory by then: it may go on
    /// to write there.
    pub fn clings(&self) -> bool {
        self.clings.load(Ordering::Acquire)
    }

    /// Its process, where that is another one of this host and known: over shared memory.
    pub fn process(&self) -> Option<PeerProcess> {
        self.process.clone().map(PeerProcess)
    }

    /// Who it is, for people.
    pub fn description(&self) -> String {
        self.to_string()
    }

    /// Where this peer finds the first byte of an export of its domain.
    pub fn remote_addr(&self, export: &Export) -> RemoteAddr {
        let region = export.0.region(self.provider);
        RemoteAddr { addr: region.addr(), rkey: region.rkey() }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} ({} from {}", self.id, self.provider, self.name)?;
        match &self.key {
            Some(key) => write!(f, ", key {key})"),
            None => f.write_str(")"),
        }
    }
}

/// Memory that peers may reach. Dropping it takes the key back: later requests are refused.
#[derive(Debug)]
pub struct Export(pub(crate) Arc<Exported>);

/// Exported memory, registered with each device that the host serves.
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) memory: Arc<Memory>,
    pub(crate) region: MrHandle,
    /// With the RDMA device, from when the host listens there.
    pub(crate) rdma: OnceLock<MrHandle>,
    pub(crate) domain: Domain,
}

impl Exported {
    fn region(&self, provider: ProviderKind) -> &MrHandle {
        match provider {
            ProviderKind::Shm | ProviderKind::Tcp => &self.region,
            // Sessions over RDMA exist where the host listens there only.
            ProviderKind::Rdma => self.rdma.get().unwrap_or(&self.region),
        }
    }
}

impl Export {
    /// The memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }
}
