//! The host's end: its certificate, which can be replaced while it runs.

use std::{
    fmt,
    io::{self, Read},
    net::TcpStream,
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use parking_lot::RwLock;
use rustls::{
    ServerConfig, ServerConnection,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use super::{
    Channel, TlsError, files, provider,
    stream::{limit, shake_hands},
    version,
};

/// Where a host's certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsServerFiles {
    /// Its certificate, with those between it and the authority behind it.
    pub certificate: PathBuf,
    /// The private key of that.
    pub key: PathBuf,
    /// The authorities that sign the clients' certificates: with it, every client has to have one.
    pub client_ca: Option<PathBuf>,
}

impl TlsServerFiles {
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
        // Nobody resumes anything.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }
}

/// The certificates of a host: with them, it takes clients over TCP with TLS only.
pub struct TlsServer {
    files: TlsServerFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").field("files", &self.files).finish_non_exhaustive()
    }
}

/// The first byte of every handshake.
pub(crate) const HANDSHAKE_RECORD: u8 = 22;

impl TlsServer {
    /// Reads the files.
    pub fn load(files: TlsServerFiles) -> Result<TlsServer, TlsError> {
        let config = RwLock::new(files.read()?);
        Ok(TlsServer { files, config })
    }

    /// Reads the files again, for connections that come from now on; those that are there go on.
    ///
    /// # Errors
    /// The certificates are those of before.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.files.read()?;
        *self.config.write() = config;
        Ok(())
    }

    /// Shakes hands with a client. What it says is read in pieces, and no more than a handshake is kept of it.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) for one that does not begin with TLS, of which a byte was read then;
    /// [`InvalidData`](io::ErrorKind::InvalidData) for one that begins and does not keep to it, or has not the certificate that it
    /// needs: it has been told.
    pub(crate) fn accept(&self, stream: &TcpStream, deadline: Instant) -> io::Result<Arc<Channel>> {
        let mut first = [0];
        let mut from = stream;
        loop {
            limit(stream, deadline)?;
            match from.read(&mut first) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => break,
                // Time is up, then: the next look says so.
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e),
            }
        }
        if first != [HANDSHAKE_RECORD] {
            let text =
                "this server takes clients with TLS only: give the authority of its certificate (--tls-ca)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let config = Arc::clone(&*self.config.read());
        let connection = ServerConnection::new(config).map_err(|e| super::error::protocol(&e))?;
        shake_hands(stream, connection.into(), &first, deadline)
    }

    /// Shakes hands with the client of a stream.
    ///
    /// # Errors
    /// As for a client that is refused; nothing is said to one that does not begin with TLS.
    pub fn accept_stream(&self, stream: TcpStream, deadline: Instant) -> io::Result<super::TlsStream> {
        let channel = self.accept(&stream, deadline)?;
        Ok(super::TlsStream::new(stream, channel))
    }
}
