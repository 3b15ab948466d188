//! The client side of TLS: trusted authorities and the client's certificate.

use std::{
    fmt,
    net::TcpStream,
    path::PathBuf,
    sync::Arc,
    time::{Instant, SystemTime},
};

use parking_lot::RwLock;
use rustls::{ClientConfig, ClientConnection, client::Resumption, pki_types::ServerName};

use super::{TlsError, TlsStream, files, provider, stream::handshake, validity, version};

/// Paths of a client's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsClientFiles {
    /// Certificate authorities of the servers. No others are trusted, not even those of the system.
    pub ca: PathBuf,
    /// Name in the server's certificate; `None` for the host of the address.
    pub name: Option<String>,
    /// The client's certificate and private key, for servers that require them.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl TlsClientFiles {
    /// Returns the path of the authorities (PEM), with the host's own name and without a
    /// certificate of the client.
    pub fn new(ca: impl Into<PathBuf>) -> TlsClientFiles {
        TlsClientFiles { ca: ca.into(), name: None, own: None }
    }

    /// Sets [`name`](Self::name).
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> TlsClientFiles {
        TlsClientFiles { name: Some(name.into()), ..self }
    }

    /// Sets [`own`](Self::own): paths of the client's certificate and of its private key.
    #[must_use]
    pub fn with_own(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsClientFiles {
        TlsClientFiles { own: Some((certificate.into(), key.into())), ..self }
    }

    fn read(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let roots = files::authorities(&self.ca)?;
        let builder = version(ClientConfig::builder_with_provider(provider()))?.with_root_certificates(roots);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(files::certificates(certificate)?, files::private_key(key)?)
                .map_err(TlsError::of_pair(certificate, key))?,
        };
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Returns the absolute paths, which stay valid if the process changes its directory.
    fn absolute(&self) -> TlsClientFiles {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let own = self.own.as_ref().map(|(certificate, key)| (absolute(certificate), absolute(key)));
        TlsClientFiles { ca: absolute(&self.ca), name: self.name.clone(), own }
    }
}

/// TLS configuration of a client. A client with it connects over TCP with TLS only. Clones share
/// the certificates. [TLS](crate::guide#tls) has an example.
#[derive(Clone)]
pub struct TlsClient {
    files: TlsClientFiles,
    config: Arc<RwLock<Arc<ClientConfig>>>,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TlsClient {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file, or the invalid name. A retry is safe.
    pub fn load(files: &TlsClientFiles) -> Result<TlsClient, TlsError> {
        let name = files.name.as_deref().map(server_name).transpose()?;
        let config = Arc::new(RwLock::new(files.read()?));
        Ok(TlsClient { files: files.absolute(), config, name })
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

    /// Returns the time at which the first of the client's own certificates expires. Servers refuse
    /// an expired one. `None` without a certificate, or if it cannot be told.
    pub fn expiry(&self) -> Option<SystemTime> {
        let (certificate, _) = self.files.own.as_ref()?;
        validity::earliest(&files::certificates(certificate).ok()?)
    }

    /// Performs the handshake with a server at `host`.
    ///
    /// # Errors
    /// [`InvalidData`](std::io::ErrorKind::InvalidData) if the server is not trusted or does not
    /// use TLS. [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) if the server closes the
    /// connection.
    pub fn connect(&self, stream: TcpStream, host: &str, deadline: Instant) -> std::io::Result<TlsStream> {
        let invalid = |text: String| std::io::Error::new(std::io::ErrorKind::InvalidData, text);
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host).map_err(|e| invalid(e.to_string()))?,
        };
        let config = Arc::clone(&*self.config.read());
        let connection = ClientConnection::new(config, name).map_err(|e| super::error::protocol(&e))?;
        let channel = handshake(&stream, connection.into(), &[], deadline)
            .map_err(|e| super::error::of_client(e, &self.files.ca))?;
        Ok(TlsStream::new(stream, channel))
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(text.to_owned()).map_err(|_| TlsError::Name(text.into()))
}
