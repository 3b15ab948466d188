//! Why there are no certificates to work with, and what goes wrong in a handshake, in words.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustls::{AlertDescription, CertificateError, Error};

use crate::session::KeyFileError;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no PEM, or has not the section that is looked for.
    #[error("{}: {why}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Others may have read the private key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// What the files say cannot be used together, or at all.
    #[error("{what}: {source}")]
    Unusable {
        /// What was to be made of it.
        what: String,
        /// Why not.
        source: Error,
    },
    /// Two files that do not belong together.
    #[error("the private key {} does not belong to the certificate {}", key.display(), certificate.display())]
    Pair {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the private key.
        key: PathBuf,
    },
    /// Not the name of a host.
    #[error("{0:?} is no name of a server: give that of its certificate, a host name or an IP address")]
    Name(String),
    /// One half of a certificate of the client's own.
    #[error("a certificate and its private key go together, and one of the two is missing")]
    Half,
}

impl TlsError {
    /// The error of a certificate and a private key that cannot be used together.
    pub(super) fn of_pair(certificate: &Path, key: &Path) -> impl FnOnce(Error) -> TlsError {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        move |source| match source {
            Error::InconsistentKeys(_) => TlsError::Pair { certificate, key },
            source => TlsError::Unusable { what: certificate.display().to_string(), source },
        }
    }

    pub(super) fn of(what: impl Into<String>) -> impl FnOnce(Error) -> TlsError {
        move |source| TlsError::Unusable { what: what.into(), source }
    }
}

/// An error of the protocol, as the streams of sessions report what is none of theirs.
pub(super) fn protocol(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {}", in_words(error)))
}

/// The error of a handshake that `error` ended, for a client that trusts the authorities in `ca`.
pub(super) fn of_client(error: io::Error, ca: &Path) -> io::Error {
    let inner = error.get_ref().map(ToString::to_string).unwrap_or_default();
    let text = match inner.strip_prefix("TLS: ") {
        Some("the peer does not use TLS") => {
            "the server does not use TLS; remove --tls-ca, or start the server with --tls-cert".into()
        }
        Some("the peer's certificate is not signed by a CA that is trusted here") => {
            format!("server certificate is not signed by a CA in --tls-ca {}", ca.display())
        }
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

fn in_words(error: &Error) -> String {
    match error {
        Error::InvalidMessage(_) => "the peer does not use TLS".into(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the peer's certificate is not signed by a CA that is trusted here".into()
        }
        Error::NoCertificatesPresented | Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server requires a client certificate: pass --tls-cert and --tls-key".into()
        }
        Error::AlertReceived(alert) => format!("the peer refused: {alert:?}"),
        other => other.to_string(),
    }
}
