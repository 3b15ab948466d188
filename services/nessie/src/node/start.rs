//! [`Node`]: the public interface of a node, and its start and end.
//!
//! # Concurrency
//! Any number of threads may call the methods of a node.

use std::{
    sync::{Arc, Weak, atomic::AtomicBool},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rdmabox::{Address, HostHandle};

use super::{
    cluster::{
        membership::Membership,
        peer::{Link, Peer},
        watch::{Stop, Watch},
    },
    driver::Driver,
    enrollment::{JoinOptions, claim},
    listen::listen,
    memory::table::OwnTable,
    options::NodeOptions,
    service::Execute,
    stats::{Counters, NodeStats},
    store::{Store, Value},
};
use crate::error::NessieError;

/// A node that runs in this process.
///
/// It lends its part of the index and its data table, and is a client of all nodes. Operations are
/// linearizable. Dropping a node ends it; its values are lost with it.
pub struct Node {
    inner: Arc<Store>,
    addresses: Vec<Address>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    host: Option<HostHandle>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Node {
    /// Starts a node. It returns before the other nodes have answered: [`Self::wait`] waits for
    /// them.
    ///
    /// # Errors
    /// [`NessieError::InvalidOption`], [`NessieError::Host`] and [`NessieError::Atomics`].
    pub fn start(options: NodeOptions) -> Result<Node, NessieError> {
        Node::start_as(options, random_incarnation()?)
    }

    /// Starts a node that is not in the list. A seed, which is any listed node, gives it a number
    /// and the sizes of the deployment. The node has a data table and no part of the index.
    ///
    /// # Errors
    /// [`NessieError::Refused`] tells why the seed has no number, and [`NessieError::Seed`] that it
    /// does not answer. Others as for [`start`](Self::start).
    pub fn join(seed: &Address, options: &JoinOptions) -> Result<Node, NessieError> {
        let incarnation = random_incarnation()?;
        Node::start_as(claim(seed, options, incarnation)?, incarnation)
    }

    fn start_as(options: NodeOptions, incarnation: u64) -> Result<Node, NessieError> {
        options.check()?;
        let counters = Arc::new(Counters::default());
        let table =
            OwnTable::new(&options, incarnation).map_err(|e| NessieError::Host(format!("memory: {e}")))?;
        let table = Arc::new(table);
        let (host, commands, executor) = listen(&options, &table, &counters)?;
        let addresses = host.addresses().to_vec();
        table.open();
        let peers: Arc<[Peer]> = (0..options.tables() as u16)
            .map(|node| Peer::new(node, options.members.address(node).cloned()))
            .collect();
        peers[usize::from(options.id)].set_address(&addresses[0]);
        // The node's own link goes to where it listens.
        let own_link = Link::connect(options.id, &addresses[0], &options, &table.header)?;
        own_link.check_atomics(options.id, &own_link)?;
        let own_link = Arc::new(own_link);
        peers[usize::from(options.id)].set_link(own_link.clone());
        let membership = Arc::new(Membership::new(&options, peers.clone(), table.clone()));
        let driver =
            Driver::new(&options, peers.clone(), table.clone(), membership.clone(), counters.clone());
        let (stored_options, members) = (options.clone(), membership.clone());
        let inner = Arc::new(Store {
            driver,
            options: stored_options,
            counters,
            membership: members,
            is_leaving: AtomicBool::new(false),
        });
        let weak: Weak<dyn Execute> = Arc::<Store>::downgrade(&inner);
        let _ = executor.set(weak);
        let stop = Arc::new(Stop::default());
        let mut threads = Vec::new();
        for at in (0..peers.len()).filter(|at| *at != usize::from(options.id)) {
            let watch = Watch {
                options: options.clone(),
                peers: peers.clone(),
                at,
                own_link: own_link.clone(),
                table: table.clone(),
                membership: membership.clone(),
                stop: stop.clone(),
                address: addresses[0].clone(),
            };
            threads.push(spawn(&format!("nessie-peer-{at}"), move || watch.run())?);
        }
        let (repairer, repair_stop) = (inner.clone(), stop.clone());
        threads.push(spawn("nessie-repair", move || {
            while !repair_stop.sleep(Duration::from_millis(20)) {
                repairer.driver.repair();
            }
        })?);
        let commander = inner.clone();
        threads.push(spawn("nessie-commands", move || commander.serve(commands))?);
        Ok(Node { inner, addresses, stop, threads, host: Some(host) })
    }

    /// Returns the addresses at which the node listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Waits until this node is connected to all nodes that are not lost.
    ///
    /// # Errors
    /// The reason why a node cannot be reached, after `timeout`. A retry is safe.
    pub fn wait(&self, timeout: Duration) -> Result<(), NessieError> {
        let deadline = Instant::now() + timeout;
        loop {
            let is_missing =
                |peer: &&Peer| peer.address().is_some() && !peer.is_lost() && peer.link().is_none();
            let missing = self.inner.driver.peers.iter().find(is_missing);
            let fault = match (missing, self.inner.membership.check()) {
                (None, Ok(())) => return Ok(()),
                (_, Err(e @ NessieError::Condemned { .. })) => return Err(e),
                (Some(peer), _) => peer.unreachable(),
                (None, Err(e)) => e,
            };
            if Instant::now() > deadline {
                return Err(fault);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the value of a key, or `None` if it has none.
    ///
    /// # Errors
    /// [`NessieError::Lost`] if the key may have had a value on a lost node. The key was not
    /// changed: a retry is safe.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, NessieError> {
        self.inner.get(key)
    }

    /// Stores a value in this node's data table, and replaces the value that the key has.
    ///
    /// # Errors
    /// [`NessieError::IndexFull`] and [`NessieError::DataFull`]: nothing was stored.
    /// [`NessieError::outcome_unknown`] tells when the value may be stored, or may be later.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), NessieError> {
        self.inner.put(key, value)
    }

    /// Removes the value of a key. A key without a value is no error.
    ///
    /// # Errors
    /// [`NessieError::outcome_unknown`] tells when the value may be removed, or may be later.
    pub fn delete(&self, key: &[u8]) -> Result<(), NessieError> {
        self.inner.delete(key)
    }

    /// Moves the values of this joined node to other nodes, and gives the node up. Blocks until all
    /// values are moved. From then on all operations of the node fail.
    ///
    /// # Errors
    /// [`NessieError::Listed`]: a listed node cannot leave. Others tell why a value could not be
    /// moved: the node still has it, and stores no new values. A retry is safe.
    pub fn leave(&self) -> Result<(), NessieError> {
        self.inner.leave()
    }

    /// Returns the number of this node.
    pub fn number(&self) -> u16 {
        self.inner.options.id
    }

    /// Returns the counters of the node.
    pub fn stats(&self) -> NodeStats {
        self.inner.counters.snapshot()
    }

    /// Returns the numbers of unused entries of the data table, of entries that wait until they may
    /// be used again, and of all entries.
    pub fn entries(&self) -> (usize, usize, usize) {
        self.inner.driver.table.counts()
    }

    /// Returns the state of the node as text, for people.
    pub fn status(&self) -> String {
        self.inner.status()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.set();
        // The thread of commands ends with the service.
        self.host = None;
        self.threads.drain(..).for_each(|thread| {
            let _ = thread.join();
        });
    }
}

fn random_incarnation() -> Result<u64, NessieError> {
    Ok(getrandom::u64().map_err(|e| NessieError::Host(format!("getrandom: {e}")))? | 1)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, NessieError> {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|e| NessieError::Host(format!("thread {name}: {e}")))
}
