//! The control stream of a session, and its handshake.
//!
//! [`greet_best`] probes a TCP address first, and prefers the host's Unix socket if the host is
//! this machine.
//!
//! # Concurrency
//! Runs on the connecting thread, without locks. Every step ends by the caller's deadline.

use std::time::{Duration, Instant};

use crate::{
    auth::{Key, Secret},
    session::{
        address::Address,
        client::{options::SessionOptions, qp_connector::handshake_failed},
        error::ConnectError,
        handshake::{self, Answer, Purpose},
        stream::Stream,
    },
};

/// A control stream, and the host's answer to its handshake.
pub(crate) struct Greeting {
    pub(super) address: Address,
    pub(super) control: Stream,
    pub(super) answer: Answer,
    /// Set if client and host proved a key to each other.
    pub(super) secret: Option<Secret>,
    pub(super) fallback: Option<String>,
}

/// The socket owners that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrustedOwners {
    /// Any owner: the user named the address.
    All,
    /// Root or this process's user: the address came from the peer.
    Own,
}

/// Runs the handshake with the host. If a TCP address belongs to this machine, prefers the host's
/// Unix socket.
pub(crate) fn greet_best(
    address: &Address,
    options: &SessionOptions,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    // A client that requires TLS must stay on TCP.
    if !matches!(address, Address::Tcp { .. }) || options.provider.is_some() || options.tls.is_some() {
        return greet(address, options, TrustedOwners::All, deadline);
    }
    let (_, answer, _) = ask(address, Purpose::Probe, None, options, TrustedOwners::All, deadline)?;
    let here = handshake::host_id();
    if answer.host != here || here == handshake::HostId::default() {
        return greet(address, options, TrustedOwners::All, deadline);
    }
    let fallback = if answer.text.is_empty() {
        "the server has no Unix socket".to_string()
    } else {
        let local = Address::Unix(answer.text.into());
        match greet(&local, options, TrustedOwners::Own, deadline) {
            Ok(greeting) => {
                log::debug!("{address} is this host: using {local}");
                return Ok(greeting);
            }
            Err(e) => e.to_string(),
        }
    };
    log::warn!("{address} is this host, but its memory cannot be shared ({fallback}): using TCP");
    Ok(Greeting { fallback: Some(fallback), ..greet(address, options, TrustedOwners::All, deadline)? })
}

fn greet(
    address: &Address,
    options: &SessionOptions,
    trusts: TrustedOwners,
    deadline: Instant,
) -> Result<Greeting, ConnectError> {
    let fetch = options.calls.fetches(address.provider());
    let (queue_pairs, key) = (options.queue_pairs as u32, options.key.as_ref());
    let purpose = Purpose::Control { queue_pairs, fetch, key: key.map(|key| key.id) };
    let (control, answer, secret) = ask(address, purpose, key, options, trusts, deadline)?;
    Ok(Greeting { address: address.clone(), control, answer, secret, fallback: None })
}

/// Opens a stream and runs the handshake on it. Returns the stream, the host's answer, and the
/// session's secret if a key was proved.
fn ask(
    address: &Address,
    purpose: Purpose,
    key: Option<&Key>,
    options: &SessionOptions,
    trusts: TrustedOwners,
    deadline: Instant,
) -> Result<(Stream, Answer, Option<Secret>), ConnectError> {
    let mut stream = Stream::connect(address, options.tls.as_ref(), options.connect_timeout, deadline)?;
    if trusts == TrustedOwners::Own && !stream.is_of_same_user() {
        let reason = "its socket belongs to another user: name the socket itself to trust that user".into();
        return Err(ConnectError::Authentication { address: address.clone(), reason, source: None });
    }
    let left = time_left(deadline, address, options.connect_timeout)?;
    let failed = |source| handshake_failed(address, options.connect_timeout, source);
    stream.set_timeout(Some(left)).map_err(failed)?;
    let (answer, secret) = handshake::introduce(&mut stream, purpose, key, deadline).map_err(failed)?;
    if !answer.ok {
        let (address, reason) = (address.clone(), answer.text);
        return Err(match answer.denied {
            true => ConnectError::Authentication { address, reason, source: None },
            false => ConnectError::Refused { address, reason },
        });
    }
    Ok((stream, answer, secret))
}

fn time_left(deadline: Instant, address: &Address, timeout: Duration) -> Result<Duration, ConnectError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ConnectError::Timeout { address: address.clone(), timeout }) } else { Ok(left) }
}
