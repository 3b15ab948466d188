//! Errors of hosts and sessions.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, io, time::Duration};

use super::address::Address;
use crate::{auth::LimitsError, mapping::MemoryError, provider::rdma::RdmaError, verbs::VerbsError};

/// Error of connecting a session. Nothing is left behind; a retry is safe. Each message names the
/// address or the option.
///
/// | variant | a retry can succeed |
/// |-|-|
/// | `Unreachable`, `Timeout` | when the host runs and a route leads to it |
/// | `UnresolvedName` | when the resolver knows the name |
/// | `Authentication`, `Version`, `InvalidOption`, `Protocol` | only with another key, certificate, program, option or address |
/// | `Refused` | if the host was at a limit: later. The reason tells |
/// | `Device`, `Memory`, `Io` | when this machine has the resource again |
/// | `Rdma` | when there is a device |
///
/// ```
/// use rdmabox::{ConnectError, Session};
///
/// let address = "/run/no-such.sock".parse().unwrap();
/// let error = Session::builder().connect(&address).unwrap_err();
/// assert!(matches!(error, ConnectError::Unreachable { .. }));
/// assert_eq!(error.to_string(), "unix:/run/no-such.sock: no server there: no such socket");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server listens at the address, or no route leads to it.
    #[error("{address}: {}", Unreachable(.source))]
    Unreachable {
        /// Address of the host.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The name of the host does not resolve to an address.
    #[error("{address}: cannot find host {name:?}: {source}")]
    UnresolvedName {
        /// Address of the host.
        address: Address,
        /// The name.
        name: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// One side does not accept the identity of the other side. The host refuses the key or its
    /// absence, the host does not prove the key, or a certificate is not valid.
    #[error("{address}: {reason}")]
    Authentication {
        /// Address of the host.
        address: Address,
        /// The reason.
        reason: String,
        /// The error of the handshake, if this side refuses the host.
        source: Option<io::Error>,
    },
    /// Host and client have different versions of the protocol.
    #[error(
        "{address}: the host has version {host} of the runtime's protocol, this program {client}: upgrade {}",
        if .host < .client { "the host" } else { "this program" }
    )]
    Version {
        /// Address of the host.
        address: Address,
        /// Version of the host.
        host: u32,
        /// Version of this side.
        client: u32,
    },
    /// An option has a value that makes no sense, or that does not fit the address.
    #[error("{option} = {value}: {expected}")]
    InvalidOption {
        /// Name of the option, a field of [`SessionOptions`](crate::SessionOptions).
        option: &'static str,
        /// The value.
        value: String,
        /// The values that are valid.
        expected: String,
    },
    /// The host did not answer in time.
    #[error("{address}: no answer within {timeout:?}")]
    Timeout {
        /// Address of the host.
        address: Address,
        /// The timeout.
        timeout: Duration,
    },
    /// The host refused the session, or closed the connection.
    #[error("{address}: {reason}")]
    Refused {
        /// Address of the host.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The peer is no rdmabox host, or sends messages that no host sends.
    #[error("{address}: {source}")]
    Protocol {
        /// Address of the host.
        address: Address,
        /// The error of the handshake.
        source: io::Error,
    },
    /// A device of this side reported an error.
    #[error("{address}: {source}")]
    Device {
        /// Address of the host.
        address: Address,
        /// The device's error.
        source: VerbsError,
    },
    /// There is no device for an RDMA address.
    #[error("{address}: {source}")]
    Rdma {
        /// Address of the host.
        address: Address,
        /// The missing part.
        source: RdmaError,
    },
    /// No memory for the buffers of the session.
    #[error("{address}: no memory for buffers: {source}")]
    Memory {
        /// Address of the host.
        address: Address,
        /// The system's error.
        source: MemoryError,
    },
    /// The operating system reported another error.
    #[error("{address}: {source}")]
    Io {
        /// Address of the host.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
}

/// The text of [`ConnectError::Unreachable`].
struct Unreachable<'a>(&'a io::Error);

impl fmt::Display for Unreachable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::NotFound => f.write_str("no server there: no such socket"),
            io::ErrorKind::ConnectionRefused => f.write_str("no server there: connection refused"),
            _ => write!(f, "cannot reach it: {}", self.0),
        }
    }
}

impl ConnectError {
    /// Returns the error for an option with an invalid value.
    pub(super) fn option(
        option: &'static str,
        value: impl fmt::Display,
        expected: impl Into<String>,
    ) -> ConnectError {
        ConnectError::InvalidOption { option, value: value.to_string(), expected: expected.into() }
    }
}

/// Error of starting a host or exporting memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Listening on an address failed, so the host listens on none.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The device reported an error.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No memory to export.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// There is no device for an RDMA address.
    #[error("cannot listen on {address}: {source}")]
    Rdma {
        /// The address.
        address: Address,
        /// The missing part.
        source: RdmaError,
    },
    /// Clients of several kinds would change the same words with atomics that are not atomic
    /// towards each other.
    #[error(
        "cannot serve atomics on {address} beside RDMA: atomics of {device} are not atomic towards clients over TCP \
         and shared memory, and updates of words would be lost: listen on rdma: addresses only, or allow it \
         (--allow-mixed-atomics) and change each word over one of them only"
    )]
    MixedAtomics {
        /// The address that is not for RDMA.
        address: Address,
        /// The RDMA device.
        device: String,
    },
    /// Local clients did not finish their requests on withdrawn memory in time. Their sessions are
    /// being ended. They may still access the memory, until
    /// [`Service::disconnected`](crate::Service::disconnected) was called for each of them.
    #[error("sessions {sessions:?} may still access the withdrawn memory: their clients do not respond")]
    StillMapped {
        /// Numbers of the sessions ([`Peer::id`](crate::Peer::id)), in ascending order.
        sessions: Vec<u64>,
    },
    /// An RDMA device did not stop, and may still access the withdrawn memory. It must not be
    /// reused before the process ends.
    #[error("the RDMA device has not stopped, and may still access the withdrawn memory")]
    DeviceStuck,
    /// A value of [`Limits`](crate::Limits) is out of its range. Nothing was started.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Starting a thread failed.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn messages_name_the_address_once_and_say_what_to_do() {
        let address: Address = "tcp:host:1".parse().unwrap();
        let unreachable = |kind: io::ErrorKind| {
            ConnectError::Unreachable { address: address.clone(), source: kind.into() }.to_string()
        };
        assert_eq!(unreachable(io::ErrorKind::NotFound), "tcp:host:1: no server there: no such socket");
        assert_eq!(
            unreachable(io::ErrorKind::ConnectionRefused),
            "tcp:host:1: no server there: connection refused"
        );
        assert_eq!(
            unreachable(io::ErrorKind::HostUnreachable),
            format!("tcp:host:1: cannot reach it: {}", io::Error::from(io::ErrorKind::HostUnreachable))
        );
        let option = ConnectError::option("queue_pairs", 0, "choose 1 to 16");
        assert_eq!(option.to_string(), "queue_pairs = 0: choose 1 to 16");
        assert!(option.source().is_none());
        for (host, client, older) in [(4, 5, "the host"), (6, 5, "this program")] {
            let version = ConnectError::Version { address: address.clone(), host, client };
            let both =
                format!("the host has version {host} of the runtime's protocol, this program {client}");
            assert_eq!(version.to_string(), format!("tcp:host:1: {both}: upgrade {older}"));
        }
        let refused = |source| ConnectError::Authentication {
            address: address.clone(),
            reason: "the server does not take the key a".into(),
            source,
        };
        assert_eq!(refused(None).to_string(), "tcp:host:1: the server does not take the key a");
        assert!(refused(None).source().is_none());
        assert!(refused(Some(io::ErrorKind::InvalidData.into())).source().is_some());
    }
}
