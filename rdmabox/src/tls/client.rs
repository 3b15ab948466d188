//! The client's end: whom it believes, and who it is.

use std::{fmt, net::TcpStream, path::PathBuf, sync::Arc, time::Instant};

use parking_lot::RwLock;
use rustls::{ClientConfig, ClientConnection, client::Resumption, pki_types::ServerName};

use super::{TlsError, TlsStream, files, provider, stream::shake_hands, version};

/// Where a client's certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClientFiles {
    /// The authorities that sign the servers' certificates. No others are believed, those of the system neither.
    pub ca: PathBuf,
    /// The name that the server's certificate has to have; `None`: that of the address.
    pub name: Option<String>,
    /// A certificate of the client's own, and its private key, for servers that ask for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl TlsClientFiles {
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

    /// The same, wherever the process works by then.
    fn absolute(&self) -> TlsClientFiles {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let own = self.own.as_ref().map(|(certificate, key)| (absolute(certificate), absolute(key)));
        TlsClientFiles { ca: absolute(&self.ca), name: self.name.clone(), own }
    }
}

/// What a client needs for TLS: with it, it speaks TLS over TCP or not at all. Clones have the same certificates.
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
    pub fn load(files: &TlsClientFiles) -> Result<TlsClient, TlsError> {
        let name = files.name.as_deref().map(server_name).transpose()?;
        let config = Arc::new(RwLock::new(files.read()?));
        Ok(TlsClient { files: files.absolute(), config, name })
    }

    /// Reads the files again, for connections that are made from now on; those that there are go on.
    ///
    /// # Errors
    /// The certificates are those of before.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.files.read()?;
        *self.config.write() = config;
        Ok(())
    }

    /// Shakes hands with a server that was looked for at `host`.
    ///
    /// # Errors
    /// [`InvalidData`](std::io::ErrorKind::InvalidData) for one that is not believed or speaks something else, and with
    /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) for one that hangs up.
    pub fn connect(&self, stream: TcpStream, host: &str, deadline: Instant) -> std::io::Result<TlsStream> {
        let invalid = |text: String| std::io::Error::new(std::io::ErrorKind::InvalidData, text);
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host).map_err(|e| invalid(e.to_string()))?,
        };
        let config = Arc::clone(&*self.config.read());
        let connection = ClientConnection::new(config, name).map_err(|e| super::error::protocol(&e))?;
        let channel = shake_hands(&stream, connection.into(), &[], deadline)
            .map_err(|e| super::error::of_client(e, &self.files.ca))?;
        Ok(TlsStream::new(stream, channel))
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(text.to_owned()).map_err(|_| TlsError::Name(text.into()))
}
