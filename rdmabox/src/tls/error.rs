//! Why there are no certificates to work with, and what goes wrong in a handshake, in words.

use std::{io, path::PathBuf};

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
    /// Not the name of a host.
    #[error("{0:?} is no name of a server: give that of its certificate, a host name or an IP address")]
    Name(String),
    /// One half of a certificate of the client's own.
    #[error("a certificate and its private key go together, and one of the two is missing")]
    Half,
}

impl TlsError {
    pub(super) fn of(what: impl Into<String>) -> impl FnOnce(Error) -> TlsError {
        move |source| TlsError::Unusable { what: what.into(), source }
    }
}

/// An error of the protocol, as the streams of sessions report what is none of theirs.
pub(super) fn protocol(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {}", in_words(error)))
}

fn in_words(error: &Error) -> String {
    match error {
        Error::InvalidMessage(_) => "the other side does not speak it".into(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the other side's certificate is of no authority that is believed here".into()
        }
        Error::NoCertificatesPresented | Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "a certificate of the client is asked for, and there is none".into()
        }
        Error::AlertReceived(alert) => format!("the other side has refused: {alert:?}"),
        other => other.to_string(),
    }
}
