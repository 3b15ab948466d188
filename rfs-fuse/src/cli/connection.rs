//! Options that say how a server is reached, and by whom: the same for a mount and for `rfs-fuse scrub`.

use std::path::PathBuf;

use clap::Args;
use rdmabox::{Address, ProviderKind, RdmaOptions, tls::TlsClientFiles};

use super::UsageError;

/// How a server is reached.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct Connection {
    /// Carry data over shm, tcp or rdma, and fail rather than take another [default: what the address says; shm on one host]
    #[arg(long, value_name = "shm|tcp|rdma")]
    pub(crate) provider: Option<ProviderKind>,

    /// RDMA device for rdma: addresses, such as mlx5_0 or rxe0 [default: the first with an active port]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Port of the RDMA device, counted from 1 [default: the first active one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,

    /// Entry of the port's GID table: the address that connections use [default: that of the network address over which the
    /// peers find each other, else one of RoCE v2]
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,

    /// The key that the server asks for: a file of mode 600 with a name and a secret (rfs-server --new-key makes one). The
    /// server has to prove that it has it, too
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// Speak TLS 1.3 with the server, over TCP, and nothing else: its certificate has to be of one of the authorities in this file
    /// (PEM), and to have the name or the address that it is looked for at. Shared memory and RDMA devices carry nothing that is
    /// encrypted: there are no such addresses with it
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// The name that the server's certificate has to have [default: that of the address]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,

    /// This client's own certificate, for servers that ask for one
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert: a file of mode 600
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Which of the server's file systems [default: its first]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) export: String,
}

impl Connection {
    /// Which device carries data, if one does.
    pub(crate) fn rdma(&self) -> RdmaOptions {
        RdmaOptions { device: self.device.clone(), port: self.port, gid_index: self.gid_index }
    }

    /// The files for TLS with a server, if it is wanted.
    pub(crate) fn tls(&self, address: Option<&Address>) -> Result<Option<TlsClientFiles>, UsageError> {
        let Some(ca) = self.tls_ca.clone() else { return Ok(None) };
        match self.provider.or(address.map(Address::provider)) {
            Some(ProviderKind::Shm) => Err(UsageError::Tls("memory that is mapped cannot be encrypted")),
            Some(ProviderKind::Rdma) => {
                Err(UsageError::Tls("what an RDMA device carries cannot be encrypted"))
            }
            Some(ProviderKind::Tcp) | None => {
                let own = self.tls_cert.clone().zip(self.tls_key.clone());
                Ok(Some(TlsClientFiles { ca, name: self.tls_name.clone(), own }))
            }
        }
    }
}
