//! Detaches a mount from its server in place of a process that was killed.
//!
//! A server cannot tell a killed client from a disconnected one, so it keeps the state of both
//! for a lease. A process that knows of the kill attaches as that mount and detaches it.
//!
//! # Concurrency
//! The caller's thread. Blocks for a few timeouts at most.

use std::{path::PathBuf, time::Duration};

use rdmabox::{
    Address, Key, ProviderKind, Session,
    tls::{TlsClient, TlsClientFiles},
};
use rfs_proto::{Identity, Request};

use crate::{
    remote::messages::exchange,
    session::{
        handshake::{SESSION_END_TIMEOUT, attach_session},
        options::AttachOptions,
    },
};

/// Limit of a connection attempt and of a reply.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Parameters to attach as a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachParams {
    /// Address of the server.
    pub address: Address,
    /// Transport of the session, if one was chosen.
    pub provider: Option<ProviderKind>,
    /// Name of the export.
    pub export: String,
    /// File with the key, if there is one.
    pub key: Option<PathBuf>,
    /// Files for TLS, if the session uses TLS.
    pub tls: Option<TlsClientFiles>,
    /// Identity of the mount.
    pub mount: Identity,
}

impl DetachParams {
    /// Writes the parameters as text. Returns `None` if the text cannot represent them.
    pub fn to_text(&self) -> Option<String> {
        let provider = self.provider.map_or_else(String::new, |provider| provider.to_string());
        let path = |path: Option<&PathBuf>| {
            let path = path.map(std::path::absolute).transpose().ok()?.unwrap_or_default();
            path.to_str().map(str::to_owned)
        };
        let tls = self.tls.as_ref();
        let own = tls.and_then(|tls| tls.own.as_ref());
        let DetachParams { address, export, mount, .. } = self;
        let lines = [
            mount.to_string(),
            address.to_string(),
            provider,
            export.clone(),
            path(self.key.as_ref())?,
            path(tls.map(|tls| &tls.ca))?,
            tls.and_then(|tls| tls.name.clone()).unwrap_or_default(),
            path(own.map(|(certificate, _)| certificate))?,
            path(own.map(|(_, key)| key))?,
        ];
        // The text has one line per parameter, so no parameter may contain a line break.
        lines.iter().all(|line| !line.contains(['\n', '\0'])).then(|| lines.join("\n"))
    }

    /// Parses the text of [`to_text`](Self::to_text).
    pub fn from_text(text: &str) -> Option<DetachParams> {
        let mut lines = text.split('\n');
        let mount = u128::from_str_radix(lines.next()?, 16).ok()?;
        let address = lines.next()?.parse().ok()?;
        // `None`: the text is truncated. `Some(None)`: the line is empty.
        let mut some = || lines.next().map(|line| Some(line).filter(|line| !line.is_empty()));
        let (provider, export) = (some()?, some()?.unwrap_or_default().to_owned());
        let (key, ca, name) = (some()?.map(PathBuf::from), some()?, some()?.map(str::to_owned));
        let own = some()?.zip(some()?).map(|(certificate, key)| (certificate.into(), key.into()));
        let tls = ca.map(|ca| {
            let mut files = TlsClientFiles::new(ca);
            (files.name, files.own) = (name, own);
            files
        });
        Some(DetachParams {
            address,
            provider: provider.map(str::parse).transpose().ok()?,
            export,
            key,
            tls,
            mount: Identity(mount.to_be_bytes()),
        })
    }

    /// Detaches the mount. Ignores errors: without the detach the server drops the mount after its
    /// lease.
    pub fn detach(&self) {
        let Ok(key) = self.key.as_deref().map(Key::load).transpose() else { return };
        let Ok(tls) = self.tls.as_ref().map(TlsClient::load).transpose() else { return };
        let Ok(session) = Session::builder()
            .provider(self.provider)
            .key(key)
            .tls(tls)
            .queue_pairs(1)
            .connect_timeout(TIMEOUT)
            .operation_timeout(TIMEOUT)
            .connect(&self.address)
        else {
            return;
        };
        let attach = AttachOptions { export: self.export.clone(), ..AttachOptions::default() };
        let call = |request: &[u8], reply: &mut Vec<u8>| session.call(request, reply);
        let transport = session.description();
        if attach_session(call, transport, &attach, Some(self.mount), SESSION_END_TIMEOUT).is_ok() {
            // No caller depends on the reply.
            let _ = exchange(&Request::Detach, call);
        }
        session.close(TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_a_round_trip_as_text() {
        let plain = DetachParams {
            address: "tcp:h:7".parse().unwrap(),
            provider: None,
            export: String::new(),
            key: None,
            tls: None,
            mount: Identity([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]),
        };
        let all = DetachParams {
            provider: Some(ProviderKind::Tcp),
            export: "a b".into(),
            key: Some("/k".into()),
            ..plain.clone()
        };
        let without_key = TlsClientFiles::new("/ca");
        let with_key = without_key.clone().with_name("n").with_own("/c", "/k");
        let with = |tls| DetachParams { tls: Some(tls), ..plain.clone() };
        for detach in [plain.clone(), all, with(without_key), with(with_key)] {
            assert_eq!(detach.to_text().and_then(|text| DetachParams::from_text(&text)), Some(detach));
        }
        assert_eq!(DetachParams { export: "a\nb".into(), ..plain }.to_text(), None);
        assert_eq!(DetachParams::from_text("7\n"), None);
    }
}
