//! Options of keys and certificates.
//!
//! # Concurrency
//! Plain values.

use std::path::PathBuf;

use clap::Args;
use rdmabox::tls::TlsServerFiles;

use crate::{
    server::config::{Config, DEFAULT_SESSIONS_PER_KEY},
    service::keys::NewKey,
};

/// Which clients the server accepts.
#[derive(Clone, Debug, Args)]
pub struct AccessArguments {
    /// Accept only clients with one of the keys in this file, of mode 600. A line has a name, a
    /// secret in hexadecimal digits, an export (rfs by default), and rw or ro. It may end with
    /// squash=root: the client's root gets the permissions of other users. Or with squash=all:
    /// every user becomes uid=N and gid=N, by default 65534. The server enforces the squash. Client
    /// and server prove to each other that they have the key. SIGHUP reloads the file. Through a
    /// Unix socket, root and the user of the server process need no key
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,

    /// Maximum number of sessions per key. A mount has one, and briefly two when it reconnects.
    /// Each can make the server use up to 5 MiB
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SESSIONS_PER_KEY)]
    pub sessions_per_key: usize,

    /// Make a key, and exit. Adds a line to the file of --keys, and writes the client's file
    /// --key-file. Prints the line of each file that is not given
    #[arg(long, value_name = "NAME[,export=NAME][,ro][,squash=root|all][,uid=N][,gid=N]", value_parser = NewKey::parse)]
    pub new_key: Option<NewKey>,

    /// The client's key file, which --new-key creates with mode 600
    #[arg(long, value_name = "FILE", requires = "new_key")]
    pub key_file: Option<PathBuf>,

    /// Use TLS 1.3 over TCP, and nothing else, with the certificate in this file (PEM, followed by
    /// intermediate certificates). SIGHUP reloads it. Excludes rdma: addresses, whose traffic
    /// cannot be encrypted. Unix sockets, which are local, are not encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert: a PEM file of mode 600
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Accept only TCP clients with a certificate of one of the authorities in this file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// Accept every client without a key, through Unix sockets, TCP and RDMA. Any local user, and
    /// any program on a machine that reaches an address, can then read and write every file as root
    #[arg(long, conflicts_with = "keys")]
    pub allow_without_keys: bool,
}

impl AccessArguments {
    /// Writes these options into the configuration.
    pub(super) fn apply_to(self, config: &mut Config) {
        config.keys = self.keys;
        let files = |(certificate, key): (PathBuf, PathBuf)| {
            let mut files = TlsServerFiles::new(certificate, key);
            files.client_ca = self.tls_client_ca;
            files
        };
        config.tls = self.tls_cert.zip(self.tls_key).map(files);
        config.sessions_per_key = self.sessions_per_key;
        config.allow_without_keys = self.allow_without_keys;
    }
}
