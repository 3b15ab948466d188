//! TLS 1.3 under the streams of sessions over TCP, in user space.
//!
//! A [`TlsServer`] has a host's certificate, a [`TlsClient`] what a client believes and, if the host asks for one, its own
//! certificate. Both make a [`TlsStream`] of a TCP connection, in one handshake with a time limit; it then carries what the
//! connection would have carried. There is no resumption, no early data, and no version before 1.3.
//!
//! Threading: certificates may be replaced while other threads shake hands. A stream may be used by any number of threads; see
//! `channel` for what they share.

mod channel;
mod client;
mod error;
mod files;
mod server;
mod stream;

use std::sync::Arc;

use rustls::{ConfigBuilder, ConfigSide, WantsVerifier, WantsVersions, crypto::CryptoProvider};

pub(crate) use channel::Channel;
pub use client::{TlsClient, TlsClientFiles};
pub use error::TlsError;
pub(crate) use server::HANDSHAKE_RECORD;
pub use server::{TlsServer, TlsServerFiles};
pub use stream::TlsStream;

/// What both sides compute with.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The one version that is spoken.
fn version<S: ConfigSide>(
    builder: ConfigBuilder<S, WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>, TlsError> {
    builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(TlsError::of("TLS 1.3"))
}
