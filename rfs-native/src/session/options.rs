//! Options of a mount.

use std::{path::PathBuf, time::Duration};

use rdmabox::{Key, ProviderKind, Session, SessionOptions, tls::TlsClient, tls::TlsClientFiles};
use rfs_client::{AccessTimes, AttachOptions};

use crate::{access::credentials::Credentials, error::ConnectError};

/// Default of [`MountOptions::cached_names`].
const CACHED_NAMES: usize = 100_000;

/// Options of a mount. The default suits a server without keys.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Name of the export. Default: empty, the server's first export.
    pub export: String,
    /// The user of the mount. Default: the effective user of the process.
    pub user: Credentials,
    /// File of mode 600 with the client's key, from `rfs-server --new-key`. Default: none.
    pub key: Option<PathBuf>,
    /// Files for TLS over TCP. Default: none, no encryption.
    pub tls: Option<TlsClientFiles>,
    /// The provider to insist on. Default: the provider of the address; shared memory on one host.
    pub provider: Option<ProviderKind>,
    /// Which reads count for access times. Default: the first read after a change, and after a day.
    pub access_times: AccessTimes,
    /// False if the mount caches no names and no attributes. Default: true.
    pub caches: bool,
    /// Maximum number of cached names. Default: 100,000.
    pub cached_names: usize,
    /// True if the mount makes a new session after a loss. Default: true.
    pub reconnects: bool,
    /// Maximum time to connect. Default: that of [`SessionOptions`].
    pub connect_timeout: Duration,
    /// Maximum time of one operation on a silent server. Default: that of [`SessionOptions`].
    pub timeout: Duration,
    /// Name of the program, for the server's log and status. Default: `native`.
    pub name: String,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        let session = SessionOptions::default();
        MountOptions {
            export: String::new(),
            user: Credentials::of_process(),
            key: None,
            tls: None,
            provider: None,
            access_times: AccessTimes::default(),
            caches: true,
            cached_names: CACHED_NAMES,
            reconnects: true,
            connect_timeout: session.connect_timeout,
            timeout: session.operation_timeout,
            name: "native".into(),
        }
    }
}

impl MountOptions {
    /// Returns the default options for another user.
    pub fn for_user(user: Credentials) -> MountOptions {
        MountOptions { user, ..MountOptions::default() }
    }

    /// Returns the options of the session. Reads the key and the TLS files.
    pub(crate) fn session(&self) -> Result<SessionOptions, ConnectError> {
        let key = self.key.as_deref().map(Key::load).transpose();
        let key = key.map_err(|e| ConnectError::Credentials(e.to_string()))?;
        let tls = self.tls.as_ref().map(TlsClient::load).transpose();
        let tls = tls.map_err(|e| ConnectError::Credentials(e.to_string()))?;
        let builder = Session::builder().provider(self.provider).key(key).tls(tls);
        let builder = builder.connect_timeout(self.connect_timeout).operation_timeout(self.timeout);
        Ok(builder.into_options())
    }

    /// Returns the options of the attach.
    pub(crate) fn attach(&self) -> AttachOptions {
        AttachOptions {
            export: self.export.clone(),
            caches: self.caches,
            access_times: self.access_times,
            directory_access_times: self.access_times,
            reconnects: self.reconnects,
            mount_point: self.name.clone(),
            ..AttachOptions::default()
        }
    }
}
