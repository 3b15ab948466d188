//! The host side of TLS, whose certificate can be replaced at run time.

use std::{
    fmt,
    io::{self, Read},
    net::TcpStream,
    path::PathBuf,
    sync::Arc,
    time::{Instant, SystemTime},
};

use parking_lot::RwLock;
use rustls::{
    ServerConfig, ServerConnection,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use super::{
    Channel, TlsError, files, provider,
    stream::{handshake, limit},
    validity, version,
};

/// Paths of a host's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsServerFiles {
    /// The host's certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Certificate authorities of the clients. If set, every client needs a certificate.
    pub client_ca: Option<PathBuf>,
}

impl TlsServerFiles {
    /// Returns the paths of a certificate and its private key (PEM), for clients without
    /// certificates.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsServerFiles {
        TlsServerFiles { certificate: certificate.into(), key: key.into(), client_ca: None }
    }

    /// Sets [`client_ca`](Self::client_ca).
    #[must_use]
    pub fn with_client_ca(self, authorities: impl Into<PathBuf>) -> TlsServerFiles {
        TlsServerFiles { client_ca: Some(authorities.into()), ..self }
    }

    fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let builder = version(ServerConfig::builder_with_provider(provider()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(files::authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
                let verifier =
                    verifier.map_err(|e| TlsError::Pem { path: path.clone(), why: e.to_string() })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(files::certificates(&self.certificate)?, files::private_key(&self.key)?)
            .map_err(TlsError::of_pair(&self.certificate, &self.key))?;
        // Resumption is not supported.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }
}

/// Certificates of a host. A host with them accepts TCP clients with TLS only.
/// [TLS](crate::guide#tls) has an example.
pub struct TlsServer {
    files: TlsServerFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").field("files", &self.files).finish_non_exhaustive()
    }
}

/// First byte of every TLS handshake.
pub(crate) const HANDSHAKE_RECORD: u8 = 22;

impl TlsServer {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file. A retry is safe.
    pub fn load(files: TlsServerFiles) -> Result<TlsServer, TlsError> {
        let config = RwLock::new(files.read()?);
        Ok(TlsServer { files, config })
    }

    /// Reads the files again for new connections. Existing connections continue.
    ///
    /// # Errors
    /// The error of reading the files. The certificates then stay unchanged.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.files.read()?;
        *self.config.write() = config;
        Ok(())
    }

    /// Returns the time at which the first of the files' certificates expires. Clients refuse an
    /// expired one. `None` if it cannot be told.
    pub fn expiry(&self) -> Option<SystemTime> {
        validity::earliest(&files::certificates(&self.files.certificate).ok()?)
    }

    /// Performs the handshake with a client. It buffers no more than a handshake message.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) if the client does not start with TLS; its first
    /// byte has been read. [`InvalidData`](io::ErrorKind::InvalidData) if the client violates TLS
    /// or lacks the required certificate; it has received an alert.
    pub(crate) fn accept(&self, stream: &TcpStream, deadline: Instant) -> io::Result<Arc<Channel>> {
        let mut first = [0];
        let mut from = stream;
        loop {
            limit(stream, deadline)?;
            match from.read(&mut first) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => break,
                // The call timed out; the next check of the deadline reports it.
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e),
            }
        }
        if first != [HANDSHAKE_RECORD] {
            let text = "this server accepts clients with TLS only: pass the CA of its certificate (--tls-ca)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let config = Arc::clone(&*self.config.read());
        let connection = ServerConnection::new(config).map_err(|e| super::error::protocol(&e))?;
        handshake(stream, connection.into(), &first, deadline)
    }

    /// Performs the handshake with the client of a stream.
    ///
    /// # Errors
    /// The errors of `accept`. A client that does not start with TLS gets no answer.
    pub fn accept_stream(&self, stream: TcpStream, deadline: Instant) -> io::Result<super::TlsStream> {
        let channel = self.accept(&stream, deadline)?;
        Ok(super::TlsStream::new(stream, channel))
    }
}
