//! Errors of certificate files and of handshakes.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustls::{AlertDescription, CertificateError, Error};

use crate::auth::KeyFileError;

/// Reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file is not PEM, or lacks the required section.
    #[error("{}: {why}", path.display())]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
    /// Other users may have read the private key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The contents of the files cannot be used, alone or together.
    #[error("{what}: {source}")]
    Unusable {
        /// Object that the contents were needed for.
        what: String,
        /// Error of the TLS library.
        source: Error,
    },
    /// The certificate and the private key do not match.
    #[error("the private key {} does not belong to the certificate {}", key.display(), certificate.display())]
    Pair {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the private key.
        key: PathBuf,
    },
    /// The text is not a host name or IP address.
    #[error("{0:?} is not a server name: expected the host name or IP address in its certificate")]
    Name(String),
    /// A certificate without its private key, or a key without its certificate.
    #[error("a certificate and its private key must be given together")]
    Half,
}

impl TlsError {
    /// Returns the error of a certificate and a private key that cannot be used together.
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

/// The payload of an I/O error that TLS reports.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {0}")]
struct ProtocolError(String);

/// Converts a protocol error to the error kind that session streams use for foreign data.
pub(super) fn protocol(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, ProtocolError(describe(error)))
}

/// Returns true if TLS reported this error of a stream.
pub(crate) fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<ProtocolError>())
}

/// Returns the error of a failed handshake for a client that trusts the authorities in `ca`.
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

fn describe(error: &Error) -> String {
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
