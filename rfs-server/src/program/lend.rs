//! `rfs-server --lend`: lends memory to pagers, beside the memory for files.
//!
//! The lender has addresses and keys of its own. A pager that has one of its keys reaches the lent
//! memory only, and no file.
//!
//! # Concurrency
//! The main thread starts the lender. The lender's host has threads of its own.

use std::path::PathBuf;

use clap::Args;
use rdmabox::{Address, Key, KeyFileError};
use rfs_paging::{Lender, LenderError, LenderOptions};

/// Reason why the server cannot lend memory to pagers.
#[derive(Debug, thiserror::Error)]
pub(super) enum LendError {
    /// A key file cannot be read.
    #[error("--lend-key: {0}")]
    Key(#[from] KeyFileError),
    /// The lender does not start.
    #[error("--lend: {0}")]
    Lender(#[from] LenderError),
    /// The server itself listens on an address of the lender.
    #[error("--lend-listen {0}: --listen has this address: pagers need one of their own")]
    Address(Address),
}

/// The memory that the server lends to pagers.
#[derive(Clone, Debug, Default, Args)]
pub struct LendArguments {
    /// Lend this much memory to pagers (rfs-paging), beside the memory for files: a number of
    /// bytes, or of powers of 1024, rounded down to MiB. Pages are lost when the server ends
    #[arg(long, value_name = "SIZE", value_parser = byte_size::parse_nonzero, requires = "lend_listen",
        conflicts_with = "store")]
    pub lend: Option<u64>,

    /// Address for pagers: unix:/path, tcp:host:port or rdma:host:port; may be repeated. Not one of
    /// --listen. tcp: and rdma: need --lend-key or --allow-without-keys
    #[arg(long, value_name = "ADDRESS", requires = "lend")]
    pub lend_listen: Vec<Address>,

    /// File with a key of pagers, of mode 600: a name and a secret in hexadecimal digits; may be
    /// repeated. Every pager with a key can read and write all of the lent memory
    #[arg(long, value_name = "FILE", requires = "lend")]
    pub lend_key: Vec<PathBuf>,
}

impl LendArguments {
    /// Starts to lend memory, if the options ask for it. `open` permits network addresses without
    /// keys.
    ///
    /// # Errors
    /// A key file cannot be read, or the lender does not start.
    pub(super) fn start(&self, open: bool) -> Result<Option<Lender>, LendError> {
        let Some(options) = self.options(open)? else { return Ok(None) };
        Ok(Some(Lender::listen(&self.lend_listen, &options)?))
    }

    /// Makes the checks of [`start`](Self::start) before it takes memory and ports. The server
    /// listens on `listen`.
    ///
    /// # Errors
    /// A key file cannot be read, the lender would not start, or it has an address of the server.
    pub(super) fn check(&self, listen: &[Address], open: bool) -> Result<(), LendError> {
        let Some(options) = self.options(open)? else { return Ok(()) };
        // Port 0 is a free port for each of the two.
        let is_taken = |address: &&Address| listen.contains(address) && !address.to_string().ends_with(":0");
        if let Some(address) = self.lend_listen.iter().find(is_taken) {
            return Err(LendError::Address(address.clone()));
        }
        Ok(options.check(&self.lend_listen)?)
    }

    /// Returns the settings of the lender, with its keys; `None` without a lender.
    fn options(&self, open: bool) -> Result<Option<LenderOptions>, KeyFileError> {
        let Some(memory) = self.lend else { return Ok(None) };
        let keys = self.lend_key.iter().map(|path| Key::load(path)).collect::<Result<Vec<Key>, _>>()?;
        let open = open && keys.is_empty();
        Ok(Some(LenderOptions::new(memory).keys(keys).allow_without_keys(open)))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use rdmabox::{ProviderKind, Session, SessionOptions};
    use rfs_paging::{PagerOptions, RemotePager};

    use super::*;

    fn over_tcp(key: Option<Key>) -> SessionOptions {
        let mut options = Session::builder().provider(Some(ProviderKind::Tcp)).into_options();
        options.key = key;
        options
    }

    /// Catches a lender without the keys or the memory of the options.
    #[test]
    fn pagers_with_a_key_page_to_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pager.key");
        fs::write(&path, format!("pager {}\n", "5a".repeat(32))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let arguments = LendArguments {
            lend: Some(4 << 20),
            lend_listen: vec!["127.0.0.1:0".parse().unwrap()],
            lend_key: vec![path.clone()],
        };
        let lender = arguments.start(false).unwrap().expect("a lender");
        let address = lender.addresses()[0].clone();
        let pager = |key| {
            RemotePager::connect(
                std::slice::from_ref(&address),
                PagerOptions::new(128 << 10).session(over_tcp(key)),
            )
        };
        assert!(pager(None).is_err(), "without a key");
        let pager = pager(Some(Key::load(&path).unwrap())).unwrap();
        let mut memory = pager.map(2 << 20).unwrap();
        for page in 0..512_usize {
            memory[page * 4096] = 1 + (page % 200) as u8;
        }
        assert!(pager.stats().pages_written > 0);
        assert!((0..512).all(|page| memory[page * 4096] == 1 + (page % 200) as u8));
        assert!(lender.status().free_chunks < lender.status().chunks);
    }

    /// Catches a check that leaves the mistake to the start, which then finds the address in use.
    #[test]
    fn the_address_of_the_server_is_none_for_pagers() {
        let listen: Vec<Address> = ["unix:/run/a", "tcp:[::1]:7440"].map(|text| text.parse().unwrap()).into();
        for address in &listen {
            let lend_listen = vec!["unix:/run/b".parse().unwrap(), address.clone()];
            let arguments = LendArguments { lend: Some(1 << 20), lend_listen, lend_key: Vec::new() };
            let refusal = arguments.check(&listen, true).unwrap_err().to_string();
            assert!(
                refusal.contains(&format!("--lend-listen {address}: --listen has this address")),
                "{refusal}"
            );
        }
    }

    /// Catches a lender that any program of the network could use.
    #[test]
    fn a_network_address_needs_a_key_or_consent() {
        let lend_listen = vec!["127.0.0.1:0".parse().unwrap()];
        let arguments = LendArguments { lend: Some(1 << 20), lend_listen, lend_key: Vec::new() };
        let refusal = arguments.start(false).unwrap_err().to_string();
        assert!(refusal.starts_with("--lend: ") && refusal.contains("network address"), "{refusal}");
        assert_eq!(arguments.check(&[], false).unwrap_err().to_string(), refusal);
        // Port 0 of both is two ports.
        assert!(arguments.check(&arguments.lend_listen, true).is_ok());
        assert!(arguments.start(true).unwrap().is_some());
        assert!(LendArguments::default().start(false).unwrap().is_none());
    }
}
