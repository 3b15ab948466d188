//! Which nodes serve: leases, and the agreement that a node is lost.
//!
//! Each listed node has a word with a bit for every node that is given up. A node serves for
//! `lease` after the start of its last READ of these words at a majority of the listed nodes. To
//! give a node up, another one sets its bit at a majority, and waits for `lease` and a quarter.
//! Then every node that serves knows of it, the given up one included. Only then does the node
//! count as lost, so that a PUT can replace its keys: no client still reads the old values. Nodes
//! that joined obey these words, and have no part in the agreement.
//!
//! # Concurrency
//! Operations load two atomics. The thread of each peer stores the words that it has read, and
//! calls [`Membership::update`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::peer::Peer;
use crate::{
    error::NessieError,
    node::{memory::table::OwnTable, options::NodeOptions},
};

/// The state of a deployment, as one node knows it.
pub(crate) struct Membership {
    own: u16,
    peers: Arc<[Peer]>,
    /// Number of the listed nodes. They come first, and are the ones that agree.
    listed: usize,
    table: Arc<OwnTable>,
    majority: usize,
    lease: Duration,
    begun: Instant,
    /// When this node has to stop serving, in nanoseconds.
    serves_until: AtomicU64,
    is_condemned: AtomicBool,
    /// Nodes to be given up, as far as this node knows.
    condemned: AtomicU64,
    /// When a majority had the bit of each node, in nanoseconds.
    agreed: Mutex<[Option<u64>; u64::BITS as usize]>,
}

impl Membership {
    pub(crate) fn new(options: &NodeOptions, peers: Arc<[Peer]>, table: Arc<OwnTable>) -> Membership {
        let membership = Membership {
            own: options.id,
            listed: options.members.count(),
            peers,
            table,
            majority: options.members.majority(),
            lease: options.lease,
            begun: Instant::now(),
            serves_until: AtomicU64::new(0),
            is_condemned: AtomicBool::new(false),
            condemned: AtomicU64::new(0),
            agreed: Mutex::new([None; u64::BITS as usize]),
        };
        membership.update();
        membership
    }

    /// Returns the time since this node began, in nanoseconds, and never zero.
    pub(crate) fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64 + 1
    }

    /// Checks that this node may serve.
    ///
    /// # Errors
    /// [`NessieError::Condemned`] and [`NessieError::NoMajority`]: this node may not serve.
    pub(crate) fn check(&self) -> Result<(), NessieError> {
        if self.is_condemned.load(Ordering::Acquire) {
            return Err(NessieError::Condemned { node: self.own });
        }
        if self.now() > self.serves_until.load(Ordering::Acquire) {
            return Err(NessieError::NoMajority { needed: self.majority, nodes: self.listed });
        }
        Ok(())
    }

    /// Returns the bits of the nodes to be given up.
    pub(crate) fn condemned(&self) -> u64 {
        self.condemned.load(Ordering::Acquire)
    }

    /// Begins to give a node up.
    pub(crate) fn condemn(&self, node: u16) {
        if self.condemned.fetch_or(1 << node, Ordering::AcqRel) & 1 << node == 0 {
            log::warn!("node {node} does not answer: giving it up");
        }
    }

    /// Gives this node up.
    pub(crate) fn resign(&self) {
        self.condemned.fetch_or(1 << self.own, Ordering::AcqRel);
    }

    /// Returns true if a majority knows that this node is given up.
    pub(crate) fn is_resigned(&self) -> bool {
        let knows = |peer: &&Peer| peer.condemned.load(Ordering::Acquire) & 1 << self.own != 0;
        self.voters().iter().filter(knows).count() >= self.majority
    }

    fn voters(&self) -> &[Peer] {
        &self.peers[..self.listed]
    }

    /// Stops this node, because its number belongs to another process.
    pub(crate) fn stop(&self) {
        self.is_condemned.store(true, Ordering::Release);
    }

    /// Draws the consequences of the words that the peers' threads have read.
    pub(crate) fn update(&self) {
        let others = || self.voters().iter().filter(|peer| peer.node != self.own);
        let own_bits = self.table.condemned();
        let seen = others().fold(own_bits, |bits, peer| bits | peer.condemned.load(Ordering::Acquire));
        let condemned = self.condemned.fetch_or(seen, Ordering::AcqRel) | seen;
        if condemned & 1 << self.own != 0 && !self.is_condemned.swap(true, Ordering::AcqRel) {
            log::error!("{}", NessieError::Condemned { node: self.own });
        }
        let mut answers: Vec<u64> = others().map(|peer| peer.last_answer.load(Ordering::Acquire)).collect();
        answers.sort_unstable_by(|one, two| two.cmp(one));
        let is_voter = usize::from(self.own) < self.listed;
        let until = match self.majority - usize::from(is_voter) {
            0 => u64::MAX,
            needed => match answers[needed - 1] {
                0 => 0,
                oldest => oldest + self.lease.as_nanos() as u64,
            },
        };
        self.serves_until.store(until, Ordering::Release);
        self.settle(condemned, own_bits);
    }

    /// Marks the nodes as lost whose bits a majority has had for longer than a lease.
    fn settle(&self, condemned: u64, own_bits: u64) {
        let now = self.now();
        let mut agreed = self.agreed.lock();
        for peer in self.peers.iter().filter(|peer| condemned & 1 << peer.node != 0 && !peer.is_lost()) {
            let bit = 1 << peer.node;
            let has_bit = |other: &&Peer| match other.node == self.own {
                true => own_bits & bit != 0,
                false => other.condemned.load(Ordering::Acquire) & bit != 0,
            };
            if self.voters().iter().filter(has_bit).count() < self.majority {
                continue;
            }
            let since = *agreed[usize::from(peer.node)].get_or_insert(now);
            if now - since > (self.lease + self.lease / 4).as_nanos() as u64 {
                log::warn!("node {} is lost", peer.node);
                peer.set_lost();
            }
        }
    }
}
