//! A session at the host: its peer, its queue pairs, and the calls that the peer makes.
//!
//! # Concurrency
//! Other stream threads than the session's own add queue pairs, and the call server's threads
//! call the [`Handler`] methods. Each call holds `open` shared.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{
    peer::{Peer, Service},
    queue_pairs::HostQueuePairs,
};
use crate::{
    auth::{KeyId, Secret},
    failure::contain,
    provider::soft::ConnectedProcess,
    rpc::{CallError, DeferredReplies, Handler, Reason, Reply},
    session::{address::ProviderKind, fetch_qp::FetchMemory, handshake::Token, stream::Stream},
    verbs::CompletionQueue,
};

/// Calls the service. A panic ends only this session, not a thread of all sessions.
pub(super) fn guarded<R>(service: impl FnOnce() -> R) -> Result<R, String> {
    // The service's state is shared with other threads in any case, so the service must tolerate a
    // panic. This module keeps no state that a panic could leave inconsistent.
    contain(service).map_err(|panic| format!("the service panicked: {panic}"))
}

/// A session at the host.
pub(crate) struct HostSession {
    pub(super) peer: Peer,
    /// The secret that joining streams prove. Without a secret, the token is secret instead.
    pub(super) secret: Option<Secret>,
    pub(super) service: Arc<dyn Service>,
    pub(super) control: Stream,
    pub(super) token: Token,
    /// The client's process, if it maps memory.
    pub(super) process: Option<Arc<ConnectedProcess>>,
    pub(super) queue_pairs: HostQueuePairs,
    pub(super) deferred: Arc<DeferredReplies>,
    /// Set if the session uses remote fetching.
    pub(super) fetch: Option<FetchMemory>,
    /// Completion queue of data queue pairs. It stays empty: the host posts nothing on them.
    pub(super) sink: Arc<dyn CompletionQueue>,
    /// True while calls may run. Each call holds it shared. A call that finds it held exclusively
    /// came before the start or after the end.
    pub(super) open: RwLock<bool>,
}

impl std::fmt::Debug for HostSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSession").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Handler for HostSession {
    fn call(&self, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        // Does not block on the lock: the session's end waits for running calls, and this thread
        // serves all sessions.
        let Some(_open) = self.open.try_read().filter(|open| **open) else {
            return Err(CallError::EndSession("the session is closed".into()));
        };
        guarded(|| self.service.call(&self.peer, request, reply)).map_err(CallError::EndSession)?
    }

    fn end(&self, reason: Reason<'_>) {
        match reason {
            // The control stream also ends then, and that is logged.
            Reason::Gone => {}
            Reason::Misbehaved(why) => log::warn!("{}: ending: {why}", self.peer),
        }
        self.shutdown();
    }
}

impl HostSession {
    /// Returns the key of the session's client.
    pub(crate) fn key(&self) -> Option<KeyId> {
        self.peer.key
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    pub(crate) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Kills a client with mapped memory after its key is revoked, because only the end of its
    /// process removes the mapping.
    pub(crate) fn revoke(&self, kill: bool) {
        if self.peer.provider != ProviderKind::Shm {
            return;
        }
        let name = |process: &Arc<ConnectedProcess>| format!("process {}", process.pid);
        let process =
            self.process.as_ref().map_or_else(|| "a process that has no number here".to_owned(), name);
        let killed = self.process.as_ref().filter(|_| kill).map(|process| process.kill());
        match killed {
            Some(Ok(())) => {
                log::warn!("{}: killed {process}: its key is revoked, and it maps memory", self.peer)
            }
            Some(Err(e)) => log::error!(
                "{}: its key is revoked, but {process} cannot be killed ({e}) and may keep memory mapped: end it by hand",
                self.peer
            ),
            None => log::warn!(
                "{}: its key is revoked, but {process} may keep memory mapped: end it by hand",
                self.peer
            ),
        }
    }

    /// Makes the session's thread end the session.
    pub(crate) fn shutdown(&self) {
        if !self.queue_pairs.fail("the server ends the session") {
            self.control.shutdown();
        }
    }
}
