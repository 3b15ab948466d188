//! The service's view of a host: peers, exports, and the [`Service`] trait.
//!
//! # Concurrency
//! [`Peer`] and [`Export`] may be shared by any number of threads; no locks.

mod export;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub use export::Export;
pub(crate) use export::Exported;

use crate::{
    auth::{Domain, KeyId},
    provider::soft::ConnectedProcess,
    rpc::{CallError, Reply},
    session::address::ProviderKind,
    verbs::{Access, RemoteAddr, RemoteMr},
};

/// The application of a host: it answers the calls of clients.
/// [`Host::listen`](crate::Host::listen) takes it. [`MemoryServer`](crate::MemoryServer) only lends
/// memory. The guide has examples: [a first service](crate::guide#quick-start), and one that
/// [defers replies](crate::guide#calls-and-deferred-replies).
///
/// A program implements it. Methods that a later version adds have a default.
pub trait Service: Send + Sync + 'static {
    /// Accepts or refuses a new session, before its first call. An error ends the session, and its
    /// text is sent to the client.
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        let _ = peer;
        Ok(())
    }

    /// Answers one call into `reply`, which is empty, or [defers](Reply::defer) the reply. Runs
    /// concurrently on the few threads that serve all calls, so it must not block: a call that has
    /// to wait defers its reply.
    ///
    /// # Errors
    /// [`CallError::Rejected`] refuses the call, and its reason reaches the caller. The session
    /// goes on. [`CallError::EndSession`] ends the session, for example after a request that no
    /// correct client sends. The host logs the reason.
    ///
    /// # Panics
    /// A panic ends the session of `peer`, and the host logs its message ([Log](crate#log)). Other
    /// sessions and the threads of the host go on, so the state of the service must tolerate a
    /// panic.
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError>;

    /// Handles the end of a session, once for each successful `connected`. No call of the session
    /// is running or will run, and its queue pairs at this host are destroyed.
    ///
    /// No request of the session accesses memory any more. With shared memory the host calls this
    /// after the client has reported the end of its last request, or after its process has ended
    /// ([`Fencing`](crate::Fencing)). Only a host that stops does not wait ([`Peer::clings`]). A
    /// client that keeps memory from [`Session::map`](crate::Session::map) can still read it.
    ///
    /// Without a lease it is never called for a client that is stopped or cut off. This is the
    /// place to free the client's claims in memory: [Claims and lost
    /// clients](crate::guide#claims-and-lost-clients).
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// A connected client, as its host sees it. Each method of a [`Service`] gets it.
#[derive(Debug)]
pub struct Peer {
    pub(crate) id: u64,
    pub(crate) provider: ProviderKind,
    pub(crate) name: String,
    pub(crate) key: Option<KeyId>,
    /// Domain of its queue pairs.
    pub(crate) domain: Domain,
    /// True if the session ended with its lease.
    pub(crate) expired: AtomicBool,
    /// True if the host stopped waiting for the client to release mapped memory.
    pub(crate) still_maps: AtomicBool,
    /// The client's process, if it maps memory.
    pub(crate) process: Option<Arc<ConnectedProcess>>,
    pub(crate) heartbeat: Heartbeat,
}

/// How long ago a client renewed its lease. It outlives the session, and then stands still.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    begin: Instant,
    /// Milliseconds from `begin` to the last renewal.
    last: AtomicU64,
}

impl Heartbeat {
    pub(crate) fn new() -> Heartbeat {
        Heartbeat(Arc::new(Beats { begin: Instant::now(), last: AtomicU64::new(0) }))
    }

    /// Records a renewal.
    pub(crate) fn beat(&self) {
        let since = u64::try_from(self.0.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.store(since, Ordering::Relaxed);
    }

    /// Returns the time since the last renewal, or since the connection if there was none. Clients
    /// renew three times per lease. Without a lease ([`Fencing`](crate::Fencing)) there are no
    /// renewals.
    pub fn age(&self) -> Duration {
        let last = Duration::from_millis(self.0.last.load(Ordering::Relaxed));
        self.0.begin.elapsed().saturating_sub(last)
    }

    /// Returns the time since the connection.
    pub fn connected(&self) -> Duration {
        self.0.begin.elapsed()
    }
}

/// The process of a peer on this host.
#[derive(Clone, Debug)]
pub struct PeerProcess(Arc<ConnectedProcess>);

impl PeerProcess {
    /// Returns true once the process has ended.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Returns the pid. No other process has it while [`has_ended`](Self::has_ended) is false.
    pub fn id(&self) -> i32 {
        self.0.pid
    }
}

impl Peer {
    /// Returns the number of the session, at least 1. It is unique while the host runs: all threads
    /// and handles of the session have the same, and a reconnected session has another. A
    /// restarted host counts from 1 again. The client has no method for it: hand it over in a
    /// reply.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the provider of the session's requests.
    pub fn provider(&self) -> ProviderKind {
        self.provider
    }

    /// Returns the key that the peer has proved; `None` if it needed none.
    pub fn key(&self) -> Option<&KeyId> {
        self.key.as_ref()
    }

    /// Returns true if the session ended because its lease expired, not because its connection
    /// ended.
    pub fn has_expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }

    /// Returns true if the host stopped before the client released mapped memory. The client may
    /// still write there.
    pub fn clings(&self) -> bool {
        self.still_maps.load(Ordering::Acquire)
    }

    /// Returns the peer's process, if it is another known process of this machine: over shared
    /// memory.
    pub fn process(&self) -> Option<PeerProcess> {
        self.process.clone().map(PeerProcess)
    }

    /// Returns a handle that tells how long the peer has been silent.
    pub fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    /// Returns the network address of the peer as `provider:address:port`, or `this host` for a
    /// Unix socket.
    pub fn address(&self) -> &str {
        &self.name
    }

    /// Describes the peer, for people.
    pub fn description(&self) -> String {
        self.to_string()
    }

    /// Returns the address at which this peer finds the first byte of an export of its domain. It
    /// is that of [`remote_mr`](Self::remote_mr), without length and rights.
    pub fn remote_addr(&self, export: &Export) -> RemoteAddr {
        self.remote_mr(export).base()
    }

    /// Returns an export as this peer sees it: its address, its length and the peer's rights. The
    /// peer has no right to an export of another [domain](crate::Domain).
    ///
    /// A service hands the value to its client in a reply ([`RemoteMr::to_le_bytes`]). It is valid
    /// until the export ends, for all sessions of this peer's provider and domain.
    pub fn remote_mr(&self, export: &Export) -> RemoteMr {
        let region = export.0.region(self.provider);
        let base = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
        let access = if export.0.domain == self.domain { region.access() } else { Access::empty() };
        RemoteMr::of_region(base, region.length(), access)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_ages_until_the_next_renewal() {
        let heartbeat = Heartbeat::new();
        std::thread::sleep(Duration::from_millis(5));
        assert!(heartbeat.age() >= Duration::from_millis(5));
        let other = heartbeat.clone();
        let before = heartbeat.connected();
        heartbeat.beat();
        std::thread::sleep(Duration::from_millis(2));
        // The renewal counts for all clones. Ages have a resolution of a millisecond.
        assert!(other.age() + before <= other.connected() + Duration::from_millis(1));
        assert!(other.age() >= Duration::from_millis(2));
    }
}
