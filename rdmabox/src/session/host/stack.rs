//! A device with the parts that sessions on it share.
//!
//! # Concurrency
//! Any thread may use it.

use std::sync::{Arc, atomic::AtomicUsize};

use parking_lot::RwLock;

use crate::{
    auth::{Domain, Limits},
    rpc::{DEFERRED_DEPTH, PollTime, QUEUE_DEPTH, RpcServer},
    session::error::HostError,
    verbs::{Device, ProtectionDomain, VerbsError},
};

/// A device with the protection domains and the call server of its sessions.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) device: Arc<dyn Device>,
    /// Indexed by domain.
    pds: RwLock<Vec<Arc<dyn ProtectionDomain>>>,
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
        limits: &Limits,
    ) -> Result<Stack, HostError> {
        // Completions that a session can have queued, and some for sessions that have just ended.
        let each = 2 * (QUEUE_DEPTH + DEFERRED_DEPTH) as usize;
        let depth = ((limits.sessions + 8) * each).min(device.attr().max_cqe as usize);
        let max_sessions = (depth / each).saturating_sub(8).min(limits.sessions);
        let poll_time = limits.call_poll.map_or(PollTime::Learned, PollTime::AtLeast);
        let rpc = RpcServer::start(device.create_cq(depth)?, limits.call_threads(), poll_time)
            .map_err(HostError::Thread)?;
        Ok(Stack { device, pds: RwLock::new(pds), rpc, admitted: AtomicUsize::new(0), max_sessions })
    }

    /// Returns the protection domain. Each stack has as many domains as the host.
    ///
    /// # Panics
    /// If the domain belongs to another host.
    pub(crate) fn pd(&self, domain: Domain) -> Arc<dyn ProtectionDomain> {
        Arc::clone(&self.pds.read()[domain.0])
    }

    /// Adds a protection domain to this stack and to the other stack of the host.
    pub(super) fn add_domain(&self, other: Option<&Stack>) -> Result<Domain, VerbsError> {
        let pd = self.device.alloc_pd()?;
        let beside = other.map(|stack| Ok::<_, VerbsError>((stack, stack.device.alloc_pd()?))).transpose()?;
        let mut pds = self.pds.write();
        if let Some((stack, pd)) = beside {
            stack.pds.write().push(pd);
        }
        pds.push(pd);
        Ok(Domain(pds.len() - 1))
    }
}
