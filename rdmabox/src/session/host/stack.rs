//! A device with what sessions on it share.
//!
//! # Concurrency
//! Any thread may use it.

use std::sync::{Arc, atomic::AtomicUsize};

use crate::{
    auth::Domain,
    rpc::{LATE_DEPTH, QUEUE_DEPTH, RpcServer},
    session::error::HostError,
    verbs::{Device, ProtectionDomain},
};

/// Maximum number of sessions, including sessions in the making, regardless of `Limits`.
const MAX_SESSIONS: usize = 1000;
/// A device with the protection domains and the call server of its sessions.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) device: Arc<dyn Device>,
    pds: Vec<Arc<dyn ProtectionDomain>>,
    pub(crate) rpc: RpcServer,
    /// Number of sessions, including sessions in the making.
    pub(crate) admitted: AtomicUsize,
    /// Maximum of `admitted`, as the completion queue allows.
    pub(crate) max_sessions: usize,
}

impl Stack {
    pub(super) fn new(
        device: Arc<dyn Device>,
        pds: Vec<Arc<dyn ProtectionDomain>>,
    ) -> Result<Stack, HostError> {
        // Completions that a session can have queued, and some for sessions that have just ended.
        let each = 2 * (QUEUE_DEPTH + LATE_DEPTH) as usize;
        let depth = ((MAX_SESSIONS + 8) * each).min(device.attr().max_cqe as usize);
        let max_sessions = (depth / each).saturating_sub(8).min(MAX_SESSIONS);
        // One thread may poll requests in mapped memory while others take messages.
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(2, 4);
        let rpc = RpcServer::start(device.create_cq(depth)?, threads).map_err(HostError::Thread)?;
        Ok(Stack { device, pds, rpc, admitted: AtomicUsize::new(0), max_sessions })
    }

    /// Returns the protection domain. Each stack has as many domains as the host.
    pub(crate) fn pd(&self, domain: Domain) -> &Arc<dyn ProtectionDomain> {
        &self.pds[domain.0]
    }
}
