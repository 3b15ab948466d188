//! Where an NBD server listens. No I/O, no locks, no clock.

use std::{fmt, path::PathBuf, str::FromStr};

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A Unix socket, which only its user and root may use.
    Unix(PathBuf),
    /// A loopback address and a port. Every program of this machine can connect.
    Tcp(String),
}

/// A text is no [`NbdAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither unix:/PATH nor HOST:PORT")]
pub struct ParseNbdAddressError(String);

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdAddress::Tcp(address) => f.write_str(address),
        }
    }
}

impl FromStr for NbdAddress {
    type Err = ParseNbdAddressError;

    /// Parses `unix:/PATH` or `HOST:PORT`.
    fn from_str(text: &str) -> Result<NbdAddress, ParseNbdAddressError> {
        let wrong = || ParseNbdAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| NbdAddress::Unix(path.into())).ok_or_else(wrong);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_valid = !host.is_empty() && port.parse::<u16>().is_ok();
        is_valid.then(|| NbdAddress::Tcp(text.to_owned())).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["unix:/run/nbd.sock", "127.0.0.1:10809", "localhost:0", "[::1]:10809"] {
            assert_eq!(text.parse::<NbdAddress>().expect("an address").to_string(), text);
        }
        for wrong in ["", "unix:", "unix:x", "10809", ":10809", "localhost:", "localhost:65536"] {
            assert!(wrong.parse::<NbdAddress>().is_err(), "{wrong}");
        }
    }
}
