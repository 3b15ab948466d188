//! Connects queue pairs of a session, at the client.
//!
//! Each queue pair has an index in its session, and a stream of its own. The stream names the
//! session's token and the index, proves the session's secret, and then becomes the connection of
//! the queue pair. A later stream with the same index replaces a data queue pair.
//!
//! # Concurrency
//! Called by the connecting thread, and later by the runtime's recovery. No locks.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    auth::Secret,
    session::{
        address::{Address, ProviderKind},
        error::ConnectError,
        handshake::{self, HandshakeError, Token},
        stream::Stream,
    },
    tls::{TlsClient, is_of_tls},
    verbs::{CompletionQueue, Progress, ProtectionDomain, QpCaps, QpInit, QueuePair, VerbsError},
};

/// Parameters for connecting and replacing the queue pairs of a session.
///
/// Only a queue pair in Err may be replaced. With mapped memory the client's own posts do the
/// writing, and the last post is over when [`QueuePair::to_error`] returns. The host waits for
/// that, and moves its side to Err, before it greets the replacement. When
/// [`queue_pair`](Self::queue_pair) has returned, no request posted on the old queue pair takes
/// effect any more. Until then a flushed request may still take effect.
#[derive(Debug)]
pub(crate) struct QpConnector {
    pub address: Address,
    pub token: Token,
    /// The secret that both sides prove. Without a secret, the token is secret instead.
    pub secret: Option<Secret>,
    /// Set if every stream of the session has TLS.
    pub tls: Option<TlsClient>,
    pub pd: Arc<dyn ProtectionDomain>,
    /// Full timeout, for error messages; deadlines bound the steps.
    pub timeout: Duration,
}

/// Returns the error for a failed handshake with a host.
pub(super) fn handshake_failed(address: &Address, timeout: Duration, source: io::Error) -> ConnectError {
    let address = address.clone();
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ConnectError::Timeout { address, timeout },
        io::ErrorKind::UnexpectedEof => {
            ConnectError::Refused { address, reason: "the server closed the connection".into() }
        }
        io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied => match HandshakeError::of(&source) {
            Some(HandshakeError::Version { host }) => {
                ConnectError::Version { address, host: *host, client: handshake::VERSION }
            }
            Some(HandshakeError::Unproved | HandshakeError::Denied(_)) => {
                let reason = source.to_string();
                ConnectError::Authentication { address, reason, source: Some(source) }
            }
            // The host refuses the certificate of this side, or its absence, at the first read.
            None if is_of_tls(&source) => {
                let reason = source.to_string();
                ConnectError::Authentication { address, reason, source: Some(source) }
            }
            None => ConnectError::Protocol { address, source },
        },
        _ => ConnectError::Io { address, source },
    }
}

impl QpConnector {
    /// Returns the provider of the session's requests.
    pub(crate) fn provider(&self) -> ProviderKind {
        self.address.provider()
    }

    /// Creates the data queue pair `index`, with completions on `cq`, and connects it. It replaces
    /// the previous queue pair of that index, which should be in Err.
    ///
    /// # Errors
    /// There is no new queue pair. A retry is safe, although the host may still be busy with the
    /// failed attempt for a moment. [`ConnectError::Refused`] with a gone peer means that the host
    /// rejected the stream. The session is over, the index is invalid, or two streams are already
    /// joining that index.
    pub(crate) fn queue_pair(
        &self,
        index: usize,
        cq: Arc<dyn CompletionQueue>,
        caps: QpCaps,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, ConnectError> {
        let progress = self.progress();
        self.queue_pair_moved_by(progress, index, cq, caps, deadline)
    }

    /// Returns the thread that moves the bytes of queue pairs whose peer makes no requests.
    fn progress(&self) -> Progress {
        // Over TCP the waiting caller moves the bytes. With mapped memory the socket only signals
        // the peer's end, which the engine must notice even if no thread polls.
        match self.provider() {
            ProviderKind::Shm => Progress::Engine,
            ProviderKind::Tcp => Progress::Caller,
            // The device moves the bytes.
            ProviderKind::Rdma => Progress::Engine,
        }
    }

    /// Makes and connects a queue pair whose bytes a given thread moves.
    pub(crate) fn queue_pair_moved_by(
        &self,
        progress: Progress,
        index: usize,
        cq: Arc<dyn CompletionQueue>,
        caps: QpCaps,
        deadline: Instant,
    ) -> Result<Arc<dyn QueuePair>, ConnectError> {
        let init = QpInit { send_cq: Arc::clone(&cq), recv_cq: cq, caps, progress, maps: true };
        let qp = self.pd.create_qp(init).map_err(|e| self.failed(e))?;
        self.connect(&*qp, index, deadline)?;
        Ok(qp)
    }

    /// Connects a queue pair in state Init as queue pair `index` of the session. Index 0 is for
    /// calls, and can be joined only once.
    ///
    /// # Errors
    /// The queue pair is in Err or unchanged.
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
        let joined = (self.token, index as u32);
        handshake::join(&mut stream, joined, self.secret.as_ref(), deadline).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.failed(VerbsError::PeerGone),
            _ => handshake_failed(&self.address, self.timeout, e),
        })?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        qp.connect(stream.into_rendezvous(), left).map_err(|e| self.failed(e))
    }

    fn timed_out(&self) -> ConnectError {
        ConnectError::Timeout { address: self.address.clone(), timeout: self.timeout }
    }

    fn failed(&self, error: VerbsError) -> ConnectError {
        let address = self.address.clone();
        match error {
            VerbsError::Os { source, .. } if source.kind() == io::ErrorKind::TimedOut => self.timed_out(),
            VerbsError::PeerGone => ConnectError::Refused { address, reason: error.to_string() },
            source => ConnectError::Device { address, source },
        }
    }
}

#[cfg(test)]
mod tests;
