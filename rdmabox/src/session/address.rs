//! Addresses of hosts, and the provider that each address implies.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::{fmt, path::PathBuf, str::FromStr};

/// Address to listen on or to connect to: `unix:/path`, `tcp:host:port`, `rdma:host:port`, or
/// short `/path`, `./path`, `../path` and `host:port`. An IPv6 address stands in brackets.
///
/// ```
/// use rdmabox::{Address, ProviderKind};
///
/// let socket: Address = "/run/counter.sock".parse()?;
/// let port: Address = "[::1]:7450".parse()?;
/// assert_eq!((socket.provider(), port.provider()), (ProviderKind::Shm, ProviderKind::Tcp));
/// assert_eq!(port.to_string(), "tcp:[::1]:7450");
/// assert!(port.is_network() && !socket.is_network());
/// // Without a prefix, a relative path begins with a dot.
/// let near: Address = "./counter.sock".parse()?;
/// assert_eq!(near, "unix:./counter.sock".parse()?);
/// # Ok::<(), rdmabox::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A Unix socket, for peers on this host. Their memory can be mapped.
    ///
    /// The path has at most 107 bytes. A host makes the file with the mode that its umask leaves,
    /// unless [`Host::socket_permissions`](crate::Host::socket_permissions) sets one: clients need
    /// the right to write to it. The host removes the file when it stops. A host that
    /// was killed leaves it, and the next one of the same user replaces it. A live host's file is
    /// an error.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// Port; 0 lets a listener choose.
        port: u16,
    },
    /// An RDMA device. The peers meet over TCP at this host and port, then use the device.
    Rdma {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port; 0 lets a listener choose.
        port: u16,
    },
}

impl Address {
    /// Returns the provider of sessions at this address.
    pub fn provider(&self) -> ProviderKind {
        match self {
            Address::Unix(_) => ProviderKind::Shm,
            Address::Tcp { .. } => ProviderKind::Tcp,
            Address::Rdma { .. } => ProviderKind::Rdma,
        }
    }

    /// Returns true if programs of other machines may reach the address, and the kernel cannot
    /// report their user.
    pub fn is_network(&self) -> bool {
        !matches!(self, Address::Unix(_))
    }
}

/// Error of a string that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid address {text:?}; expected host:port or the path of a socket (or tcp:host:port, rdma:host:port, \
     unix:/path)"
)]
#[non_exhaustive]
pub struct AddressError {
    /// The invalid string.
    pub text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = || AddressError { text: text.into() };
        let is_path = ["/", "./", "../"].iter().any(|begin| text.starts_with(begin));
        if let Some(path) = text.strip_prefix("unix:").or_else(|| is_path.then_some(text)) {
            return if path.is_empty() { Err(wrong()) } else { Ok(Address::Unix(path.into())) };
        }
        let (rest, is_rdma) = match text.strip_prefix("rdma:") {
            Some(rest) => (rest, true),
            None => (text.strip_prefix("tcp:").unwrap_or(text), false),
        };
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = match bare {
            Some(host) if !host.is_empty() && !host.contains(['/', '[', ']']) => host.to_owned(),
            None if !host.is_empty() && !host.contains([':', '/', '[', ']']) => host.to_owned(),
            _ => return Err(wrong()),
        };
        Ok(if is_rdma { Address::Rdma { host, port } } else { Address::Tcp { host, port } })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } | Address::Rdma { host, port } => {
                let kind = self.provider();
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{kind}:{open}{host}{close}:{port}")
            }
        }
    }
}

/// The transport of a session's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderKind {
    /// Mapped memory of the same host, with messages over a Unix socket.
    Shm,
    /// TCP connections.
    Tcp,
    /// An RDMA device: hardware or Soft-RoCE, through libibverbs.
    Rdma,
}

/// Error of a string that does not name a provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid provider {0:?}: expected shm, tcp or rdma")]
pub struct ProviderKindError(String);

impl FromStr for ProviderKind {
    type Err = ProviderKindError;

    fn from_str(text: &str) -> Result<ProviderKind, ProviderKindError> {
        match text {
            "shm" => Ok(ProviderKind::Shm),
            "tcp" => Ok(ProviderKind::Tcp),
            "rdma" => Ok(ProviderKind::Rdma),
            _ => Err(ProviderKindError(text.into())),
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProviderKind::Shm => "shm",
            ProviderKind::Tcp => "tcp",
            ProviderKind::Rdma => "rdma",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    fn rdma(host: &str, port: u16) -> Address {
        Address::Rdma { host: host.into(), port }
    }

    #[test]
    fn addresses_parse_in_every_form_and_print_in_one() {
        for (text, expected, written) in [
            ("unix:/run/x", Address::Unix("/run/x".into()), "unix:/run/x"),
            ("/run/x", Address::Unix("/run/x".into()), "unix:/run/x"),
            ("unix:x.sock", Address::Unix("x.sock".into()), "unix:x.sock"),
            ("tcp:host:7", tcp("host", 7), "tcp:host:7"),
            ("10.0.0.1:65535", tcp("10.0.0.1", 65535), "tcp:10.0.0.1:65535"),
            ("[::1]:7440", tcp("::1", 7440), "tcp:[::1]:7440"),
            ("rdma:host:7441", rdma("host", 7441), "rdma:host:7441"),
            ("rdma:[fe80::1]:1", rdma("fe80::1", 1), "rdma:[fe80::1]:1"),
        ] {
            assert_eq!(text.parse::<Address>().as_ref(), Ok(&expected), "{text}");
            assert_eq!(expected.to_string(), written);
            assert_eq!(written.parse::<Address>(), Ok(expected));
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in [
            "",
            "host",
            "host:",
            "rdma:host",
            "rdma:/run/x",
            "rdma:tcp:host:7",
            ":7",
            "host:65536",
            "host:x",
            "unix:",
            "::1:7",
            "[]:7",
            "[[]:7",
            "[a/b]:7",
            "[::1]",
            "a/b:7",
        ] {
            assert_eq!(text.parse::<Address>(), Err(AddressError { text: text.into() }), "{text}");
        }
    }
}
