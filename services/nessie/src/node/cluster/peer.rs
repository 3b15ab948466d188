//! A node as this node sees it: its address, the session to it, and whether it is lost.
//!
//! # Concurrency
//! Operations read the link under a shared lock. One thread for each peer replaces it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use rdmabox::{Address, AtomicScope, ProviderKind, RemoteAddr, RemoteMr, RequestError, Session};

use crate::{
    error::{NessieError, failed, unreachable},
    logic::error::DecodeError,
    node::{
        memory::{
            control::{HEADER_WORDS, Header, known_at},
            table::Layout,
        },
        options::NodeOptions,
    },
};

/// Request that a node answers with the address of its memory.
pub(crate) const WHERE: &[u8] = b"where";

/// A session to a node, and the address of the node's memory.
pub(crate) struct Link {
    pub(crate) session: Arc<Session>,
    base: RemoteAddr,
    layout: Layout,
    entries: u32,
    pub(crate) incarnation: u64,
}

impl Link {
    /// Connects to a node, and compares its control block with this node's.
    ///
    /// # Errors
    /// [`NessieError::Unreachable`], [`NessieError::Mismatch`] and [`NessieError::Atomics`].
    /// A retry is safe.
    pub(crate) fn connect(
        node: u16,
        address: &Address,
        options: &NodeOptions,
        own: &Header,
    ) -> Result<Link, NessieError> {
        let session = Session::builder()
            .provider(options.provider)
            .key(options.key.clone())
            .operation_timeout(options.limit() / 2)
            .connect_timeout(Duration::from_secs(2))
            .connect(address)
            .map_err(|e| unreachable(node, &e))?;
        let fault = |e: RequestError| failed(node, &e);
        let mut reply = Vec::new();
        session.call(WHERE, &mut reply).map_err(fault)?;
        let mismatch = |reason: String| NessieError::Mismatch { node, reason };
        let foreign = || mismatch("no node of nessie listens there".into());
        let bytes: [u8; RemoteMr::ENCODED_LEN] = reply[..].try_into().map_err(|_| foreign())?;
        let memory = RemoteMr::from_le_bytes(bytes).map_err(|_| foreign())?;
        let mut words = [0; HEADER_WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            let at = memory.for_load(at as u64 * 8).map_err(|e| mismatch(e.to_string()))?;
            *word = session.load_u64(at).map_err(fault)?;
        }
        let header = Header::decode(words, own, node).map_err(|e| match e {
            DecodeError::Control(reason) => mismatch(reason),
            other => NessieError::Decode(other),
        })?;
        let layout = Layout::new(options);
        let entries = (memory.len() as usize).saturating_sub(layout.len(0)) / layout.stride;
        // All later addresses are inside, so none of them is checked again.
        memory.for_atomic(0).map_err(|e| mismatch(e.to_string()))?;
        if layout.len(entries as u32) > memory.len() as usize {
            return Err(mismatch(format!("it lends {} bytes only", memory.len())));
        }
        Ok(Link {
            session,
            base: memory.base(),
            layout,
            entries: entries as u32,
            incarnation: header.incarnation(),
        })
    }

    pub(crate) fn control(&self, at: usize) -> RemoteAddr {
        self.base.at(at as u64)
    }

    pub(crate) fn slot(&self, number: u32) -> RemoteAddr {
        self.base.at(self.layout.slot(number) as u64)
    }

    /// Returns the address of an entry, or `None` if the node has no such entry.
    pub(crate) fn entry(&self, offset: u32) -> Option<RemoteAddr> {
        (1..=self.entries).contains(&offset).then(|| self.base.at(self.layout.entry(offset) as u64))
    }

    /// Writes this process's number into the node's list. Returns false if the list has another
    /// process with this node's number.
    pub(crate) fn register(&self, own: u16, incarnation: u64) -> Result<bool, RequestError> {
        let old = self.session.compare_swap(self.control(known_at(own)), 0, incarnation)?;
        Ok(old == 0 || old == incarnation)
    }

    /// Makes a call.
    pub(crate) fn call(&self, node: u16, request: &[u8]) -> Result<Vec<u8>, NessieError> {
        let mut reply = Vec::new();
        self.session.call(request, &mut reply).map_err(|e| failed(node, &e))?;
        Ok(reply)
    }

    /// Returns an error if atomics over this link and over the node's own link do not match.
    pub(crate) fn check_atomics(&self, node: u16, own: &Link) -> Result<(), NessieError> {
        if atomics_match(self.session.atomic_scope(), own.session.provider()) {
            return Ok(());
        }
        Err(NessieError::Atomics { node, provider: format!("{:?}", self.session.provider()) })
    }
}

/// Returns true if atomics of this scope are atomic towards a node's own, which `own` executes.
fn atomics_match(scope: AtomicScope, own: ProviderKind) -> bool {
    match scope {
        AtomicScope::Global => true,
        AtomicScope::Device => own == ProviderKind::Rdma,
        AtomicScope::None => false,
    }
}

/// A node of the list.
pub(crate) struct Peer {
    pub(crate) node: u16,
    /// Unknown for a number that no node has joined with.
    address: OnceLock<Address>,
    link: RwLock<Option<Arc<Link>>>,
    is_lost: AtomicBool,
    /// Start of the last READ of its condemned word that succeeded, in nanoseconds.
    pub(crate) last_answer: AtomicU64,
    /// Bits of nodes that its condemned word has.
    pub(crate) condemned: AtomicU64,
    /// Why there is no link.
    fault: RwLock<String>,
}

impl Peer {
    pub(crate) fn new(node: u16, address: Option<Address>) -> Peer {
        Peer {
            node,
            address: address.map_or_else(OnceLock::new, OnceLock::from),
            link: RwLock::new(None),
            is_lost: AtomicBool::new(false),
            last_answer: AtomicU64::new(0),
            condemned: AtomicU64::new(0),
            fault: RwLock::new("not connected yet".into()),
        }
    }

    /// Returns the address, or `None` if no node has joined with this number.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.address.get()
    }

    /// Sets the address of a joined node. It stays: a number has one process.
    pub(crate) fn set_address(&self, address: &Address) {
        if self.address.set(address.clone()).is_ok() {
            log::info!("node {} is at {address}", self.node);
        }
    }

    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.read().clone()
    }

    pub(crate) fn set_link(&self, link: Arc<Link>) {
        *self.link.write() = Some(link);
    }

    pub(crate) fn drop_link(&self, reason: &str) {
        *self.link.write() = None;
        reason.clone_into(&mut self.fault.write());
    }

    pub(crate) fn fault(&self) -> String {
        self.fault.read().clone()
    }

    /// Returns true if the nodes agree that this one is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(crate) fn set_lost(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.drop_link("it is lost");
    }

    pub(crate) fn unreachable(&self) -> NessieError {
        NessieError::Unreachable { node: self.node, reason: self.fault() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_of_a_device_do_not_mix_with_those_of_the_processor() {
        assert!(atomics_match(AtomicScope::Global, ProviderKind::Shm));
        assert!(atomics_match(AtomicScope::Device, ProviderKind::Rdma));
        assert!(!atomics_match(AtomicScope::Device, ProviderKind::Shm));
        assert!(!atomics_match(AtomicScope::None, ProviderKind::Rdma));
    }
}
