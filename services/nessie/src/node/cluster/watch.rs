//! The thread of each peer: connects, renews the lease, and passes on which nodes are given up.
//!
//! # Concurrency
//! One thread for each other node, `nessie-peer-N`, and one for the node itself.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rdmabox::{Address, RequestError};

use super::{
    membership::Membership,
    peer::{Link, Peer},
    roster::{JoinRequest, Roster},
};
use crate::{
    error::NessieError,
    node::{
        memory::{control::CONDEMNED_AT, table::OwnTable},
        options::NodeOptions,
    },
};

/// Ends threads, and wakes them for it.
#[derive(Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps. Returns true if the thread has to end.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, time);
        }
        *is_set
    }
}

/// Watches one peer.
pub(crate) struct Watch {
    pub(crate) options: NodeOptions,
    pub(crate) peers: Arc<[Peer]>,
    pub(crate) at: usize,
    pub(crate) own_link: Arc<Link>,
    pub(crate) table: Arc<OwnTable>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) stop: Arc<Stop>,
    /// Where this node listens.
    pub(crate) address: Address,
}

impl Watch {
    fn peer(&self) -> &Peer {
        &self.peers[self.at]
    }

    /// Runs until the node stops.
    pub(crate) fn run(&self) {
        let mut last: Option<Instant> = None;
        let mut incarnation = None;
        loop {
            let is_known = self.peer().address().is_some();
            if is_known && usize::from(self.peer().node) >= self.options.members.count() {
                // It has announced itself, so its silence counts from now on.
                last = last.or_else(|| Some(Instant::now()));
            }
            if is_known && !self.peer().is_lost() {
                match self.look(&mut incarnation) {
                    Ok(()) => last = Some(Instant::now()),
                    Err(e) => {
                        let reason = match e {
                            NessieError::Unreachable { reason, .. } => reason,
                            other => other.to_string(),
                        };
                        self.peer().drop_link(&reason);
                        let is_late =
                            last.is_some_and(|last: Instant| last.elapsed() > self.options.patience);
                        // A node without a majority cannot tell the others' end from its own.
                        if is_late && self.membership.check().is_ok() {
                            self.membership.condemn(self.peer().node);
                        }
                    }
                }
            }
            self.set_own_bits();
            self.membership.update();
            if self.stop.sleep(self.options.lease / 8) {
                return;
            }
        }
    }

    /// Renews the lease, through a new link if there is none.
    fn look(&self, incarnation: &mut Option<u64>) -> Result<(), NessieError> {
        let peer = self.peer();
        let fault = |e: &RequestError| crate::error::failed(peer.node, e);
        let link = match peer.link() {
            Some(link) => link,
            None => {
                let address = peer.address().ok_or_else(|| peer.unreachable())?;
                let link = Link::connect(peer.node, address, &self.options, &self.table.header)?;
                link.check_atomics(peer.node, &self.own_link)?;
                if incarnation.is_some_and(|known| known != link.incarnation) {
                    // Another process with the same number: the memory of the first one is gone.
                    self.membership.condemn(peer.node);
                    return Err(NessieError::Unreachable {
                        node: peer.node,
                        reason: "it was restarted with the number that its lost memory has".into(),
                    });
                }
                let own = self.table.header.incarnation();
                if !link.register(self.options.id, own).map_err(|e| fault(&e))? {
                    self.membership.stop();
                    return Err(NessieError::Condemned { node: self.options.id });
                }
                self.announce(&link)?;
                Arc::new(link)
            }
        };
        let begun = self.membership.now();
        let bits = self.exchange(&link).map_err(|e| fault(&e))?;
        peer.condemned.store(bits, Ordering::Release);
        peer.last_answer.store(begun, Ordering::Release);
        *incarnation = Some(link.incarnation);
        peer.set_link(link);
        Ok(())
    }

    /// Tells a peer where this node is, if the node has joined, and learns of other joined nodes.
    fn announce(&self, link: &Link) -> Result<(), NessieError> {
        let (number, incarnation) = (self.options.id, self.table.header.incarnation());
        if self.options.is_listed() {
            return Ok(());
        }
        let address = self.address.clone();
        let request = JoinRequest::Announce { number, incarnation, address };
        let reply = link.call(self.peer().node, &request.encode())?;
        let roster = Roster::decode(&reply).ok_or_else(|| NessieError::Mismatch {
            node: self.peer().node,
            reason: "its list of nodes is malformed".into(),
        })?;
        for (node, address) in &roster.nodes {
            self.peers.get(usize::from(*node)).iter().for_each(|peer| peer.set_address(address));
        }
        Ok(())
    }

    /// Reads the peer's bits, and sets those that this node knows.
    fn exchange(&self, link: &Link) -> Result<u64, RequestError> {
        let at = link.control(CONDEMNED_AT);
        let mut bits = link.session.load_u64(at)?;
        loop {
            let all = bits | self.membership.condemned();
            if all == bits {
                return Ok(bits);
            }
            match link.session.compare_swap(at, bits, all)? {
                old if old == bits => return Ok(all),
                old => bits = old,
            }
        }
    }

    fn set_own_bits(&self) {
        // Through a session, as peers do. A failure shows at the next look.
        let _ = self.exchange(&self.own_link);
    }
}
