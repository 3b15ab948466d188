//! Ending sessions for reasons of the service's own.

use std::sync::Weak;

use super::host::Inner;
use crate::rpc::{Handler, Reason};

/// Ends sessions of a host, from any thread. It does not keep the host alive.
#[derive(Clone, Debug)]
pub struct Ender(pub(super) Weak<Inner>);

impl Ender {
    /// Ends a session as the end of its lease does: its client finds out, and
    /// [`Service::disconnected`](super::Service::disconnected) follows when the client can reach nothing any more
    /// ([`Fencing`](super::Fencing)). `reason` is for the log. Waits for nothing; false if there is no such session any more.
    pub fn end(&self, session: u64, reason: &str) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let session = inner.sessions.lock().get(&session).cloned();
        if let Some(session) = &session {
            session.end(Reason::Misbehaved(reason));
        }
        session.is_some()
    }

    /// Ends a session whose key is taken away. A client that has memory mapped could keep the mapping: its process is killed, if the host
    /// kills clients at all ([`Fencing`](super::Fencing)). Otherwise the log says that the client may keep it. False if there is no such session.
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
