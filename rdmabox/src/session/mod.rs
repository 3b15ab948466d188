//! STUB of the public session API, being replaced by the real one.
#![allow(missing_docs, unused_variables, clippy::unimplemented)]
use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use crate::memory::Memory;
pub use crate::verbs::{Access, RemoteAddr, WcStatus};

/// `unix:/path`, `tcp:host:port`, `/path` or `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Unix(std::path::PathBuf),
    Tcp { host: String, port: u16 },
}
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no address: write unix:/path/to/socket, /path/to/socket, tcp:host:port or host:port")]
pub struct AddressError { pub text: String }
impl FromStr for Address { type Err = AddressError; fn from_str(s: &str) -> Result<Self, AddressError> { unimplemented!() } }
impl fmt::Display for Address { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { unimplemented!() } }

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderKind { Shm, Tcp }
impl FromStr for ProviderKind { type Err = String; fn from_str(s: &str) -> Result<Self, String> { unimplemented!() } }
impl fmt::Display for ProviderKind { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { unimplemented!() } }

pub use crate::{batch::BatchMode, polling::PollingMode, stats::StatsSnapshot};

#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Force a provider, fail rather than fall back. None: shared memory on the same host, else TCP.
    pub provider: Option<ProviderKind>,
    /// Data queue pairs.
    pub queue_pairs: usize,
    /// Admission window in bytes, both directions together.
    pub window_bytes: u64,
    pub batch: BatchMode,
    /// At or below: stage through preMR; above: register the caller's buffer (dynMR).
    pub pre_mr_threshold: u64,
    pub polling: PollingMode,
    /// Polls that find nothing before adaptive polling goes to sleep.
    pub max_retry: u32,
    /// No blocking call takes longer.
    pub operation_timeout: Duration,
    pub connect_timeout: Duration,
}
impl Default for SessionOptions { fn default() -> Self { unimplemented!() } }

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{address}: {source}")]
    Io { address: Address, source: std::io::Error },
    #[error("{address}: no answer within {timeout:?}")]
    Timeout { address: Address, timeout: Duration },
    #[error("{address}: {reason}")]
    Refused { address: Address, reason: String },
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{0}")]
    Completion(WcStatus),
    #[error("no completion within {0:?}")]
    Timeout(Duration),
    #[error("the session is closed: the peer is gone")]
    Disconnected,
    #[error("{0}")]
    Invalid(String),
}

/// One step of an ordered list.
#[derive(Debug)]
pub enum Op<'a> {
    Write { remote: RemoteAddr, data: &'a [u8] },
    Read { remote: RemoteAddr, out: &'a mut [u8] },
    /// `old` gets what was there; the swap took place if it equals `compare`.
    CompareSwap { remote: RemoteAddr, compare: u64, swap: u64, old: &'a mut u64 },
    FetchAdd { remote: RemoteAddr, add: u64, old: &'a mut u64 },
}

#[derive(Debug)]
pub struct Session(());
impl Session {
    pub fn connect(address: &Address, options: &SessionOptions) -> Result<Arc<Session>, ConnectError> { unimplemented!() }
    pub fn provider(&self) -> ProviderKind { unimplemented!() }
    /// What it runs on, for people: "shared memory via unix:/run/x" ...
    pub fn description(&self) -> String { unimplemented!() }
    pub fn is_connected(&self) -> bool { unimplemented!() }
    /// Blocking one-sided write through the merge queue.
    pub fn write(&self, remote: RemoteAddr, data: &[u8]) -> Result<(), RequestError> { unimplemented!() }
    pub fn read(&self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), RequestError> { unimplemented!() }
    /// Several independent requests in one submission: they merge and chain with each other. Returns when all
    /// are done, with the first error.
    pub fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError> { unimplemented!() }
    pub fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError> { unimplemented!() }
    /// Runs the list in order on one queue pair with one doorbell. (A WRITE then a CAS: the CAS is executed
    /// after the WRITE has been placed.)
    pub fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> { unimplemented!() }
    /// The peer's memory in place, where the provider maps it (shared memory) and allows READ: the mapping and
    /// the offset of `remote` in it. None elsewhere.
    pub fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> { unimplemented!() }
    /// Remote procedure call: request and reply at most 64 KiB. Blocks; many threads may call at once.
    pub fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> { unimplemented!() }
    pub fn stats(&self) -> StatsSnapshot { unimplemented!() }
    /// Closes: outstanding requests fail with Disconnected.
    pub fn close(&self) { unimplemented!() }
}

/// A service that sessions connect to.
pub trait Service: Send + Sync + 'static {
    /// A session is up. An error ends it and is logged.
    fn connected(&self, peer: &Peer) -> Result<(), String> { Ok(()) }
    /// Handles one call. May run on several threads at once. Err ends the session with that logged reason
    /// (malformed request).
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Vec<u8>) -> Result<(), String>;
    /// The session is gone (closed, died, or ended by us); its queue pairs are destroyed: nothing of it can touch memory any more. Called once per connected().
    fn disconnected(&self, peer: &Peer) {}
}
#[derive(Debug)]
pub struct Peer(());
impl Peer {
    /// Unique in the life of the host.
    pub fn id(&self) -> u64 { unimplemented!() }
    pub fn provider(&self) -> ProviderKind { unimplemented!() }
    pub fn description(&self) -> String { unimplemented!() }
    /// How this peer names the exported memory: address and rkey of its first byte.
    pub fn remote_addr(&self, export: &Export) -> RemoteAddr { unimplemented!() }
}
/// Memory that peers may reach; revoked when dropped.
#[derive(Debug)]
pub struct Export(());
impl Export { pub fn memory(&self) -> &Arc<Memory> { unimplemented!() } }

#[derive(Debug)]
pub struct Host(());
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: Address, source: std::io::Error },
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
}
impl Host {
    pub fn new() -> Result<Host, HostError> { unimplemented!() }
    pub fn export(&self, memory: &Arc<Memory>, access: Access) -> Result<Export, HostError> { unimplemented!() }
    /// Binds every address (all or nothing) and starts serving on background threads. A stale Unix socket file
    /// of a dead server is replaced; a live one is an error (AddrInUse).
    pub fn listen(self, addresses: &[Address], service: Arc<dyn Service>) -> Result<Running, HostError> { unimplemented!() }
}
/// A serving host. Dropping it ends every session, removes Unix sockets and joins its threads.
#[derive(Debug)]
pub struct Running(());
impl Running {
    /// The addresses really bound (port 0 resolved).
    pub fn addresses(&self) -> &[Address] { unimplemented!() }
}
