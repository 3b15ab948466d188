//! A node that joins through a seed, and the work of the seed.
//!
//! # Concurrency
//! [`claim`] runs on the caller's thread, the methods of [`Store`] on threads of the host.

use std::time::Duration;

use rdmabox::{Address, Key, ProviderKind, Session};

use crate::{
    error::NessieError,
    node::{
        cluster::{
            peer::Peer,
            roster::{JoinRequest, Roster},
        },
        memory::control::known_at,
        options::NodeOptions,
        store::Store,
    },
};

/// Options of a node that joins. The seed knows the others.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JoinOptions {
    /// Address to listen at, which the other nodes reach.
    pub listen: Address,
    /// Provider of sessions; `None` takes the best that an address offers.
    pub provider: Option<ProviderKind>,
    /// Key of all nodes. A network address needs it, unless `allow_without_keys` is set.
    pub key: Option<Key>,
    /// Serves every program that reaches the address.
    pub allow_without_keys: bool,
    /// Bytes of this node's data table.
    pub data_bytes: u64,
    /// Entries of other nodes that this node caches; 0 for none.
    pub cache_entries: usize,
}

impl JoinOptions {
    /// Returns the defaults of a node that listens at this address: 16 MiB of data.
    pub fn new(listen: Address) -> JoinOptions {
        JoinOptions {
            listen,
            provider: None,
            key: None,
            allow_without_keys: false,
            data_bytes: 16 << 20,
            cache_entries: 0,
        }
    }
}

/// Asks a seed for a number, and returns the options of the node.
pub(in crate::node) fn claim(
    seed: &Address,
    options: &JoinOptions,
    incarnation: u64,
) -> Result<NodeOptions, NessieError> {
    let failed = |reason: String| NessieError::Seed { seed: seed.to_string(), reason };
    let session = Session::builder()
        .provider(options.provider)
        .key(options.key.clone())
        .connect_timeout(Duration::from_secs(2))
        .connect(seed)
        .map_err(|e| failed(e.to_string()))?;
    let request = JoinRequest::Claim { incarnation };
    let mut reply = Vec::new();
    session.call(&request.encode(), &mut reply).map_err(|e| match e {
        rdmabox::RequestError::Rejected { reason } => NessieError::Refused(reason),
        other => failed(other.to_string()),
    })?;
    let roster =
        Roster::decode(&reply).ok_or_else(|| failed("no node of this version listens there".into()))?;
    let mut node = roster.options()?;
    node.listen = vec![options.listen.clone()];
    (node.provider, node.key) = (options.provider, options.key.clone());
    node.allow_without_keys = options.allow_without_keys;
    (node.data_bytes, node.cache_entries) = (options.data_bytes, options.cache_entries);
    Ok(node)
}

impl Store {
    /// Answers a node that joins.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub(in crate::node) fn admit_node(&self, request: &JoinRequest) -> Result<Roster, NessieError> {
        self.membership.check()?;
        match request {
            // The node is not reached before it announces itself: to take its memory may last long.
            JoinRequest::Claim { incarnation } => Ok(self.roster(self.give_number(*incarnation)?)),
            JoinRequest::Announce { number, incarnation, address } => {
                let is_spare =
                    (self.options.members.count()..self.options.tables()).contains(&usize::from(*number));
                // The node has registered its process before.
                if !is_spare || self.known(*number)? != *incarnation {
                    return Err(NessieError::Condemned { node: *number });
                }
                self.peer(*number).set_address(address);
                Ok(self.roster(*number))
            }
        }
    }

    /// Gives a process the first number that no process has had.
    fn give_number(&self, incarnation: u64) -> Result<u16, NessieError> {
        if !self.options.is_listed() {
            return Err(NessieError::Refused("this node is not in the list: ask one that is".into()));
        }
        let own = self.peer(self.options.id);
        let link = own.link().ok_or_else(|| own.unreachable())?;
        for number in self.options.members.count()..self.options.tables() {
            let number = number as u16;
            if link.register(number, incarnation).map_err(|e| crate::error::failed(own.node, &e))? {
                return Ok(number);
            }
        }
        let spare = self.options.spare;
        Err(NessieError::Refused(format!(
            "all {spare} spare numbers were given out: start all nodes with a larger --spare"
        )))
    }

    /// Returns the number of the process that this node knows by a number.
    fn known(&self, number: u16) -> Result<u64, NessieError> {
        let own = self.peer(self.options.id);
        let link = own.link().ok_or_else(|| own.unreachable())?;
        link.session.load_u64(link.control(known_at(number))).map_err(|e| crate::error::failed(own.node, &e))
    }

    fn peer(&self, number: u16) -> &Peer {
        &self.driver.peers[usize::from(number)]
    }

    fn roster(&self, number: u16) -> Roster {
        let nodes = self.driver.peers.iter();
        let known = nodes.filter_map(|peer| peer.address().map(|address| (peer.node, address.clone())));
        Roster::new(number, &self.options, known.collect())
    }
}
