//! The client's side of joining: a queue pair for a place of a session, the first one or another one.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Address, ConnectError, ProviderKind, Secret,
    handshake::{self, Token},
    stream::Stream,
};
use crate::{
    tls::TlsClient,
    verbs::{CompletionQueue, Progress, ProtectionDomain, QpCaps, QpInit, QueuePair, VerbsError},
};

/// What it takes to give a session's data queue pairs successors.
///
/// A successor is for a queue pair that is in Err: with mapped memory the client's own posts do the writing, and the
/// last of them is over when [`QueuePair::to_error`] has returned. The host waits for that, and moves its own side to
/// Err, before it answers. So when [`queue_pair`](Self::queue_pair) has returned, nothing that was posted on the one
/// before takes effect any more; until then a request that was flushed may still do.
#[derive(Debug)]
pub(crate) struct Rejoin {
    pub address: Address,
    pub token: Token,
    /// What both sides prove to know; without one, the token is.
    pub secret: Option<Secret>,
    /// Each stream of the session has TLS, or none.
    pub tls: Option<TlsClient>,
    pub pd: Arc<dyn ProtectionDomain>,
    /// For the text of errors: the time that a deadline leaves, as it was asked for.
    pub timeout: Duration,
}

impl Rejoin {
    /// What carries the session's requests.
    pub(crate) fn provider(&self) -> ProviderKind {
        self.address.provider()
    }

    /// Makes the data queue pair for place `index`, which completes on `cq`, and connects it. The one that is there is
    /// replaced, and should be in Err.
    ///
    /// # Errors
    /// There is no new queue pair; a retry is safe, and finds the host still at the attempt before for a moment.
    /// [`ConnectError::Refused`] with a peer that is gone: the host has not let it join, because the session is over, the
    /// place is not one of it, or two streams are joining it already.
    pub(crate) fn queue_pair(
        &self,
        index: usize,
        cq: Arc<dyn CompletionQueue>,
        caps: QpCaps,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, ConnectError> {
        // Over TCP the waiting caller moves the bytes; with mapped memory the socket only brings news of the peer's end,
        // which must be heard even while nobody polls.
        let progress = match self.provider() {
            ProviderKind::Shm => Progress::Engine,
            ProviderKind::Tcp => Progress::Caller,
            // The device does it.
            ProviderKind::Rdma => Progress::Engine,
        };
        let init = QpInit { send_cq: Arc::clone(&cq), recv_cq: cq, caps, progress, maps: true };
        let qp = self.pd.create_qp(init).map_err(|e| self.failed(&e))?;
        self.connect(&*qp, index, deadline)?;
        Ok(qp)
    }

    /// Connects a queue pair in state Init to place `index`. Index 0 is for calls, and is joined once.
    ///
    /// # Errors
    /// The queue pair is in Err, or as it was.
    pub(crate) fn connect(
        &self,
        qp: &dyn QueuePair,
        index: usize,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        let mut stream = Stream::connect(&self.address, self.tls.as_ref(), self.timeout, deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        let io = |source: io::Error| ConnectError::Io { address: self.address.clone(), source };
        stream.set_timeout(Some(left)).map_err(io)?;
        let place = (self.token, index as u32);
        handshake::join(&mut stream, place, self.secret.as_ref(), deadline).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.timed_out(),
            io::ErrorKind::UnexpectedEof => self.failed(&VerbsError::PeerGone),
            io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied => {
                ConnectError::Refused { address: self.address.clone(), reason: e.to_string() }
            }
            _ => io(e),
        })?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        qp.connect(stream.into_rendezvous(), left).map_err(|e| self.failed(&e))
    }

    fn timed_out(&self) -> ConnectError {
        ConnectError::Timeout { address: self.address.clone(), timeout: self.timeout }
    }

    fn failed(&self, error: &VerbsError) -> ConnectError {
        match error {
            VerbsError::Os { source, .. } if source.kind() == io::ErrorKind::TimedOut => self.timed_out(),
            _ => ConnectError::Refused { address: self.address.clone(), reason: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests;
