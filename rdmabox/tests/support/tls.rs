//! Certificates for tests, made for each test.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rdmabox::tls::{TlsClient, TlsClientFiles, TlsServer, TlsServerFiles};

/// An authority, and the directory with the files that it has signed.
pub struct Authority {
    pub dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// Names of the server in every test.
pub const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A certificate and its private key.
pub type Pair = (PathBuf, PathBuf);

/// Authorities that this process has made.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Authority {
    pub fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Two of one name would be taken for each other, until a signature is looked at.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("authority {number} of {}", std::process::id()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { dir, issuer: Issuer::new(params, key) }
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Returns a certificate for these names, in files that begin with `file`.
    pub fn sign(&self, file: &str, names: &[&str]) -> Pair {
        self.sign_with(file, names, |_| {})
    }

    /// Returns a certificate that has not been valid for years.
    pub fn sign_expired(&self, file: &str) -> Pair {
        self.sign_with(file, &NAMES, |params| {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        })
    }

    /// Returns a certificate that is valid, and ends after `days` days.
    pub fn sign_for_days(&self, file: &str, days: u32) -> Pair {
        self.sign_with(file, &NAMES, |params| {
            let now = SystemTime::now();
            params.not_before = (now - Duration::from_secs(86_400)).into();
            params.not_after = (now + Duration::from_secs(86_400) * days).into();
        })
    }

    fn sign_with(&self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |end: &str| self.dir.path().join(format!("{file}.{end}"));
        fs::write(at("pem"), certificate.pem()).unwrap();
        private(&at("key"), &key.serialize_pem());
        (at("pem"), at("key"))
    }

    /// Returns the files of a server that requests no client certificates.
    pub fn server(&self, (certificate, key): Pair) -> TlsServerFiles {
        TlsServerFiles::new(certificate, key)
    }

    /// Returns the files of a client without a certificate.
    pub fn client(&self) -> TlsClientFiles {
        TlsClientFiles::new(self.ca())
    }
}

/// Writes a file that only its owner may read and write.
pub fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns a host and a client that trust each other.
pub fn pair(authority: &Authority) -> (Arc<TlsServer>, TlsClient) {
    let server = TlsServer::load(authority.server(authority.sign("server", &NAMES))).unwrap();
    (Arc::new(server), TlsClient::load(&authority.client()).unwrap())
}
