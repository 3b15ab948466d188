//! Ends single sessions on behalf of the service.
//!
//! # Concurrency
//! Called from any thread. Takes `Inner::sessions`, and does not block on the session.

use std::sync::Weak;

use super::state::Inner;
use crate::rpc::{Handler, Reason};

/// Handle that ends sessions of a host, from any thread. It does not keep the host alive.
#[derive(Clone, Debug)]
pub struct SessionTerminator(pub(crate) Weak<Inner>);

impl SessionTerminator {
    /// Ends a session in the same way as an expired lease. The client notices.
    /// [`Service::disconnected`](crate::Service::disconnected) follows when the client can reach no
    /// memory any more ([`Fencing`](crate::Fencing)). `reason` is for the log. Does not block.
    /// Returns false if there is no such session.
    pub fn end(&self, session: u64, reason: &str) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let session = inner.sessions.lock().get(&session).cloned();
        if let Some(session) = &session {
            session.end(Reason::Misbehaved(reason));
        }
        session.is_some()
    }

    /// Ends a session whose key is revoked. A client with mapped memory could keep its mapping. If
    /// the host may kill clients ([`Fencing`](crate::Fencing)), its process is killed; otherwise a
    /// log line says that it may keep memory mapped. Returns false if there is no such session.
    pub fn revoke(&self, session: u64, reason: &str) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let session = inner.sessions.lock().get(&session).cloned();
        if let Some(session) = &session {
            session.revoke(inner.fencing.kill);
            session.end(Reason::Misbehaved(reason));
        }
        session.is_some()
    }
}
