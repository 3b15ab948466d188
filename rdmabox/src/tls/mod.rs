//! TLS 1.3 in user space for session streams over TCP.
//!
//! A [`TlsServer`] holds a host's certificate. A [`TlsClient`] holds the authorities that a
//! client trusts and optionally its certificate. Both turn a TCP connection into a [`TlsStream`]
//! by a handshake with a deadline. Resumption, early data and versions before 1.3 are not
//! supported.
//!
//! # Concurrency
//! Certificates may be replaced while other threads perform handshakes. Any thread may use a
//! stream; see `channel` for its lock.

mod channel;
mod client;
mod error;
mod files;
mod server;
mod stream;
mod validity;

use std::sync::Arc;

use rustls::{ConfigBuilder, ConfigSide, WantsVerifier, WantsVersions, crypto::CryptoProvider};

pub(crate) use channel::Channel;
pub use client::{TlsClient, TlsClientFiles};
pub use error::TlsError;
pub(crate) use error::is_of_tls;
pub(crate) use server::HANDSHAKE_RECORD;
pub use server::{TlsServer, TlsServerFiles};
pub use stream::TlsStream;

/// Returns the cryptography of both sides.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Selects the only supported version.
fn version<S: ConfigSide>(
    builder: ConfigBuilder<S, WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>, TlsError> {
    builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(TlsError::of("TLS 1.3"))
}
