//! Options of a connection to a server, shared by a mount and by `rfs-fuse scrub`.
//!
//! [`Connection`] has the address's provider, the RDMA device, the key, the TLS files and the
//! export. No locks, no clock. The only I/O asks for the current directory.

use std::path::{Path, PathBuf};

use clap::Args;
use rdmabox::{Address, ProviderKind, RdmaOptions, tls::TlsClientFiles};

use super::usage::UsageError;

/// Options of a connection to a server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct Connection {
    /// Carry data over shm, tcp or rdma, and fail if that is impossible [default: by the address;
    /// shm on one host]
    #[arg(long, value_name = "shm|tcp|rdma")]
    pub(crate) provider: Option<ProviderKind>,

    /// RDMA device for rdma: addresses, such as mlx5_0 or rxe0 [default: the first with an active
    /// port]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: the first active one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,

    /// Index of the source address in the port's GID table [default: the GID of the network address
    /// that reaches the peer, else the first of RoCE v2]
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,

    /// The client's key: a file of mode 600 with a name and a secret (rfs-server --new-key makes
    /// one). The server has to prove that it knows the secret, too
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// Use TLS 1.3 over TCP. An authority in this file (PEM) has to have signed the server's
    /// certificate. The certificate has to carry the host name or address that the client connects
    /// to. Shared memory and RDMA are not encrypted, so their addresses are refused
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// Name that the server's certificate has to carry [default: the host of the address]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,

    /// This client's own certificate, for servers that ask for one
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert: a file of mode 600
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Name of the server's export [default: its first]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) export: String,
}

impl Connection {
    /// Returns the options for the RDMA device.
    pub(crate) fn rdma(&self) -> RdmaOptions {
        let mut options = RdmaOptions::default();
        options.device.clone_from(&self.device);
        (options.port, options.gid_index) = (self.port, self.gid_index);
        options
    }

    /// Makes the paths of files independent of the current directory.
    pub(crate) fn make_paths_absolute(&mut self) {
        let Connection { key, tls_ca, tls_cert, tls_key, .. } = self;
        for path in [key, tls_ca, tls_cert, tls_key].into_iter().flatten() {
            *path = from_anywhere(path);
        }
    }

    /// Returns true if an option selects an RDMA device, its port or its address.
    pub(crate) fn has_device_options(&self) -> bool {
        self.device.is_some() || self.port.is_some() || self.gid_index.is_some()
    }

    /// Returns the TLS files, or `None` without `--tls-ca`.
    ///
    /// # Errors
    /// The provider of `address` cannot encrypt.
    pub(crate) fn tls(&self, address: Option<&Address>) -> Result<Option<TlsClientFiles>, UsageError> {
        let Some(ca) = self.tls_ca.clone() else { return Ok(None) };
        match self.provider.or(address.map(Address::provider)) {
            Some(ProviderKind::Shm) => Err(UsageError::Tls("memory that is mapped cannot be encrypted")),
            Some(ProviderKind::Rdma) => Err(UsageError::Tls("data over an RDMA device cannot be encrypted")),
            Some(ProviderKind::Tcp) | None => {
                let mut files = TlsClientFiles::new(ca);
                files.name.clone_from(&self.tls_name);
                files.own = self.tls_cert.clone().zip(self.tls_key.clone());
                Ok(Some(files))
            }
            Some(_) => Err(UsageError::Tls("only TCP can be encrypted")),
        }
    }
}

/// Returns a path that does not depend on the current directory.
pub(crate) fn from_anywhere(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
