//! Reads certificates and private keys in PEM format.

use std::path::Path;

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use super::TlsError;
use crate::auth::KeyFile;

fn pem_error(path: &Path) -> impl Fn(pem::Error) -> TlsError {
    move |error| {
        let path = path.to_owned();
        match error {
            pem::Error::Io(source) => TlsError::Io { path, source },
            pem::Error::NoItemsFound => TlsError::Pem { path, why: "it has no PEM section".into() },
            // The texts of other errors contain parts of the file.
            _ => TlsError::Pem { path, why: "it is not PEM".into() },
        }
    }
}

/// Returns the certificates of a file in order, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = pem_error(path);
    let read = CertificateDer::pem_file_iter(path).map_err(&failed)?;
    let all = read.collect::<Result<Vec<_>, _>>().map_err(&failed)?;
    match all.is_empty() {
        true => Err(TlsError::Pem { path: path.to_owned(), why: "it has no certificate".into() }),
        false => Ok(all),
    }
}

/// Returns the private key of a file that only its owner can read.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let file = KeyFile::read(path)?;
    PrivateKeyDer::from_pem_slice(file.text().as_bytes()).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            TlsError::Pem { path: path.to_owned(), why: "it has no private key".into() }
        }
        other => pem_error(path)(other),
    })
}

/// Returns the trusted authorities of a file.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(TlsError::of(path.display().to_string()))?;
    }
    Ok(roots)
}
