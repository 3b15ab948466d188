//! Telling a server that a mount does not come back, in place of a process that was killed.
//!
//! A server cannot tell a client that was killed from one that was cut off, and waits for either. Whoever knows better says so: he comes as
//! that mount, and takes leave.

use std::{path::PathBuf, time::Duration};

use rdmabox::{Address, Key, ProviderKind, Session, SessionOptions};
use rfs_proto::{Identity, Request};

use super::{
    AttachOptions, Remote,
    connect::{ENDING, call_on, introduce},
};

/// It takes no longer to connect, or to be answered.
const LIMIT: Duration = Duration::from_secs(2);

/// What it takes to come as a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Where the server is.
    pub address: Address,
    /// What carries the session, if that was asked for.
    pub provider: Option<ProviderKind>,
    /// The export.
    pub export: String,
    /// The file with the key, if there is one.
    pub key: Option<PathBuf>,
    /// Who the mount is.
    pub mount: Identity,
}

impl Farewell {
    /// As text, of which `None` is made where it cannot be.
    pub fn to_text(&self) -> Option<String> {
        let provider = self.provider.map_or_else(String::new, |provider| provider.to_string());
        let key = self.key.as_ref().map(std::path::absolute).transpose().ok()?.unwrap_or_default();
        let Farewell { address, export, mount, .. } = self;
        let lines = [mount.to_string(), address.to_string(), provider, export.clone(), key.to_str()?.into()];
        // Nothing of it has lines of its own, or it is not for this.
        lines.iter().all(|line| !line.contains(['\n', '\0'])).then(|| lines.join("\n"))
    }

    /// From text.
    pub fn from_text(text: &str) -> Option<Farewell> {
        let mut lines = text.split('\n');
        let mount = u128::from_str_radix(lines.next()?, 16).ok()?;
        let address = lines.next()?.parse().ok()?;
        let provider = Some(lines.next()?).filter(|line| !line.is_empty());
        let export = lines.next()?.to_owned();
        let key = Some(lines.next()?).filter(|line| !line.is_empty()).map(PathBuf::from);
        Some(Farewell {
            address,
            provider: provider.map(str::parse).transpose().ok()?,
            export,
            key,
            mount: Identity(mount.to_be_bytes()),
        })
    }

    /// Says it. Nothing depends on whether it is heard: the server waits no longer than for the length of a lease.
    pub fn say(&self) {
        let Ok(key) = self.key.as_deref().map(Key::load).transpose() else { return };
        let options = SessionOptions {
            provider: self.provider,
            key,
            queue_pairs: 1,
            connect_timeout: LIMIT,
            operation_timeout: LIMIT,
            ..SessionOptions::default()
        };
        let Ok(session) = Session::connect(&self.address, &options) else { return };
        let attach = AttachOptions { export: self.export.clone(), ..AttachOptions::default() };
        let remote: &dyn Remote = &*session;
        if introduce(remote, &attach, Some(self.mount), ENDING).is_ok() {
            // Whether it is heard, nobody is there to care.
            let _ = call_on(remote, &Request::Detach);
        }
        session.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_the_way() {
        let plain = Farewell {
            address: "tcp:h:7".parse().unwrap(),
            provider: None,
            export: String::new(),
            key: None,
            mount: Identity([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]),
        };
        let all = Farewell {
            provider: Some(ProviderKind::Tcp),
            export: "a b".into(),
            key: Some("/k".into()),
            ..plain.clone()
        };
        for farewell in [plain.clone(), all] {
            assert_eq!(farewell.to_text().and_then(|text| Farewell::from_text(&text)), Some(farewell));
        }
        assert_eq!(Farewell { export: "a\nb".into(), ..plain }.to_text(), None);
        assert_eq!(Farewell::from_text("7\n"), None);
    }
}
