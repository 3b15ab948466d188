//! Ends single sessions on behalf of the service.
//!
//! # Concurrency
//! Called from any thread. Takes `Inner::sessions`, and does not block on the session.

use std::sync::Weak;

use super::state::Inner;
use crate::rpc::{Handler, Reason};

/// Handle that ends sessions of a host, from any thread ([`HostHandle::ender`]). It does not keep
/// the host alive. A session is named by its number, [`Peer::id`](crate::Peer::id), which the
/// service learns in [`Service::connected`](crate::Service::connected). No number is used twice
/// while the host runs.
///
/// [`HostHandle::ender`]: crate::HostHandle::ender
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use rdmabox::{CallError, Host, Peer, Reply, RequestError, Service, Session};
///
/// /// Remembers its clients.
/// #[derive(Default)]
/// struct Clients(Mutex<Vec<u64>>);
///
/// impl Service for Clients {
///     fn connected(&self, peer: &Peer) -> Result<(), String> {
///         self.0.lock().unwrap().push(peer.id());
///         Ok(())
///     }
///
///     fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), CallError> {
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clients = Arc::<Clients>::default();
/// let host = Host::new()?.listen(&["127.0.0.1:0".parse()?], clients.clone())?;
/// let session = Session::builder().connect(&host.addresses()[0])?;
/// session.call(b"", &mut Vec::new())?;
/// let number = clients.0.lock().unwrap()[0];
/// assert!(host.ender().end(number, "an example"));
/// // The client learns of it soon. A call that the host has taken before is still answered.
/// let error = loop {
///     if let Err(error) = session.call(b"", &mut Vec::new()) {
///         break error;
///     }
/// };
/// assert_eq!(error, RequestError::Disconnected);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SessionTerminator(pub(crate) Weak<Inner>);

impl SessionTerminator {
    /// Ends a session in the same way as an expired lease. The client notices.
    /// [`Service::disconnected`](crate::Service::disconnected) follows when the client can reach no
    /// memory any more ([`Fencing`](crate::Fencing)). `reason` is for the log. Does not block.
    /// Returns false if the session has ended before, or the host has stopped.
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
    /// log line says that it may keep memory mapped. Returns false if the session has ended before,
    /// or the host has stopped.
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
