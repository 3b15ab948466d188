//! The hosts of a server, and their service.
//!
//! The hosts of the later partitions listen first. So the address of a partition is known when a
//! client reaches the first one.
//!
//! # Concurrency
//! One thread of each host makes its calls. Threads of sessions report their end.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use rdmabox::{
    Address, AnswerCounts, CallError, Domain, Fencing, Grant, Host, HostHandle, Key, Limits, Peer, Reply,
    Service, tls::TlsServer,
};

use super::{addresses::partition_address, error::ServerError, executor::Executor};
use crate::{
    protocol::{Hello, MAX_ADDRESS, MAX_ADDRESSES, Request},
    store::{Store, StoreOptions},
};

/// Time after which the session of a silent client ends, with the transfers that hold memory.
const LEASE: Duration = Duration::from_secs(30);

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Memory and partitions.
    pub store: StoreOptions,
    /// Keys of clients.
    pub keys: Vec<Key>,
    /// Serves every program that reaches a network address, and every user of this machine, if
    /// there are no keys.
    pub allow_without_keys: bool,
    /// TLS for streams over TCP.
    pub tls: Option<Arc<TlsServer>>,
    /// Maximum number of clients.
    pub clients: usize,
    /// Minimum time for which a thread polls for the next request of a client that fetches replies.
    /// `None`: as long as polling has found requests lately, at most 0.1 ms.
    pub poll: Option<Duration>,
}

impl ServerOptions {
    /// Serves a store to programs of this user and of root on this machine, through Unix sockets.
    pub fn new(store: StoreOptions) -> ServerOptions {
        let clients = Limits::default().sessions;
        ServerOptions { store, keys: Vec::new(), allow_without_keys: false, tls: None, clients, poll: None }
    }

    /// Sets the keys of clients.
    #[must_use]
    pub fn keys(self, keys: Vec<Key>) -> ServerOptions {
        ServerOptions { keys, ..self }
    }

    /// Permits network addresses without keys.
    #[must_use]
    pub fn allow_without_keys(self, allow: bool) -> ServerOptions {
        ServerOptions { allow_without_keys: allow, ..self }
    }

    /// Sets TLS for streams over TCP.
    #[must_use]
    pub fn tls(self, tls: Arc<TlsServer>) -> ServerOptions {
        ServerOptions { tls: Some(tls), ..self }
    }

    /// Sets the maximum number of clients.
    #[must_use]
    pub fn clients(self, clients: usize) -> ServerOptions {
        ServerOptions { clients, ..self }
    }

    /// Sets the time for which threads poll for requests.
    #[must_use]
    pub fn poll(self, poll: Option<Duration>) -> ServerOptions {
        ServerOptions { poll, ..self }
    }
}

/// A store that this process serves, until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// The first host stops first: no client finds a part of the partitions.
    hosts: Vec<HostHandle>,
    store: Arc<Store>,
}

impl Server {
    /// Starts to serve an empty store. Partition `i` listens at the given ports plus `i`, and at
    /// the given Unix sockets with the suffix `.i`. With port 0 each has a free port.
    ///
    /// # Errors
    /// As [`ServerError`] says; nothing is left behind.
    pub fn listen(addresses: &[Address], options: &ServerOptions) -> Result<Server, ServerError> {
        if !(1..=MAX_ADDRESSES).contains(&addresses.len()) {
            return Err(ServerError::Addresses(addresses.len()));
        }
        let needs_keys = options.keys.is_empty() && !options.allow_without_keys;
        if let Some(address) = addresses.iter().find(|address| needs_keys && address.is_network()) {
            return Err(ServerError::WithoutKeys(address.clone()));
        }
        let store = Arc::new(Store::new(&options.store)?);
        let known = Arc::new(OnceLock::new());
        let mut hosts = Vec::new();
        let started = start(addresses, options, &store, &known, &mut hosts);
        // A client that has reached a partition already gets an answer, also after a failure.
        let text = |host: &HostHandle| host.addresses().iter().map(Address::to_string).collect();
        let _ = known.set(if started.is_ok() { hosts.iter().rev().map(text).collect() } else { Vec::new() });
        started?;
        hosts.reverse();
        Ok(Server { hosts, store })
    }

    /// Returns the addresses of the first partition, at which clients connect. Port 0 is replaced
    /// by the actual port.
    pub fn addresses(&self) -> &[Address] {
        self.hosts[0].addresses()
    }

    /// Returns the counts of the answers to requests, of all partitions.
    pub fn answers(&self) -> AnswerCounts {
        self.hosts.iter().map(HostHandle::answers).fold(AnswerCounts::default(), |sum, host| sum + host)
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
}

/// The addresses of all partitions, once all listen.
type Known = Arc<OnceLock<Vec<Vec<String>>>>;

/// Starts the host of each partition, the last one first, and adds it to `hosts`.
fn start(
    addresses: &[Address],
    options: &ServerOptions,
    store: &Arc<Store>,
    known: &Known,
    hosts: &mut Vec<HostHandle>,
) -> Result<(), ServerError> {
    for index in (0..store.partitions()).rev() {
        let address = |first: &Address| {
            partition_address(first, index).ok_or_else(|| ServerError::Ports(first.clone()))
        };
        let own = addresses.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        if let Some(long) = own.iter().find(|address| address.to_string().len() > MAX_ADDRESS) {
            return Err(ServerError::LongAddress(long.clone()));
        }
        let (store, known) = (Arc::clone(store), Arc::clone(known));
        let service =
            PartitionService { executor: Executor::new(Arc::clone(&store), index), index, store, known };
        hosts.push(host(options)?.listen(&own, Arc::new(service))?);
    }
    Ok(())
}

/// Makes a host of one partition.
fn host(options: &ServerOptions) -> Result<Host, ServerError> {
    let mut limits = Limits::default();
    // The thread owns the partition: no other thread executes calls.
    limits.call_threads = Some(1);
    limits.sessions = options.clients;
    limits.call_poll = options.poll;
    let mut host = Host::new()?
        .limits(limits)
        .fencing(Fencing::new(LEASE, false))
        .any_local_user(options.allow_without_keys);
    if let Some(tls) = &options.tls {
        host = host.tls(Arc::clone(tls));
    }
    if !options.keys.is_empty() {
        host = host.keys(Grant::keyring(&options.keys, Domain::default()));
    }
    Ok(host)
}

/// The service of one partition.
struct PartitionService {
    executor: Executor,
    index: usize,
    store: Arc<Store>,
    known: Known,
}

impl PartitionService {
    fn hello(&self) -> Hello {
        Hello {
            seed: self.store.seed(),
            max_value: self.store.max_value() as u32,
            partition: self.index as u16,
            addresses: self.known.wait().clone(),
        }
    }
}

impl Service for PartitionService {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        match Request::decode(request) {
            Ok(Request::Hello) => {
                self.hello().encode(reply);
                Ok(())
            }
            Ok(request) => self.executor.execute(peer.id(), &request, reply),
            Err(error) => Err(error.to_string().into()),
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.executor.end_session(peer.id());
    }
}
