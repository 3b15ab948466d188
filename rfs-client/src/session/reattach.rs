//! Sessions of a mount that reconnects.
//!
//! # Concurrency
//! The reconnect thread only.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdmabox::{Address, Session, SessionOptions};
use rfs_proto::{Attached, Identity};

use crate::{
    error::ClientError,
    remote::{Remote, attached_session::AttachedSession},
    session::{
        handshake::{AttachReply, SESSION_END_TIMEOUT, attach_session},
        options::{AttachError, AttachOptions},
        reconnect::reconnect_thread::{ConnectFailure, SessionFactory},
    },
};

/// Limit of one attempt to connect.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns an identity that no other mount can guess.
pub(crate) fn random_identity() -> Result<Identity, AttachError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| AttachError::Random(e.to_string()))?;
    Ok(Identity(bytes))
}

/// Makes the next sessions of a mount.
pub(crate) struct Reattacher {
    address: Address,
    options: SessionOptions,
    attach: AttachOptions,
    mount: Identity,
    /// Last error of reading the certificates.
    last_error: Mutex<Option<String>>,
}

impl Reattacher {
    pub(crate) fn new(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
        mount: Identity,
    ) -> Self {
        // An attempt can hang in a network that has recovered since, so attempts are short.
        let connect_timeout = options.connect_timeout.min(ATTEMPT_TIMEOUT);
        let options =
            Session::builder().options(options.clone()).connect_timeout(connect_timeout).into_options();
        Reattacher {
            address: address.clone(),
            options,
            attach: attach.clone(),
            mount,
            last_error: Mutex::default(),
        }
    }

    /// Reads the certificates again, because they may have been renewed. After an error the
    /// previous certificates stay in use.
    fn reload_certificates(&self) {
        let Some(tls) = &self.options.tls else { return };
        let last_error = tls.reload().err().map(|e| e.to_string());
        let mut before = self.last_error.lock();
        if let Some(why) = last_error.as_ref().filter(|_| *before != last_error) {
            log::warn!("using the previous certificates: {why}");
        }
        *before = last_error;
    }
}

impl SessionFactory for Reattacher {
    fn connect(&self) -> Result<(Arc<dyn Remote>, Attached), ConnectFailure> {
        self.reload_certificates();
        let session = Session::connect(&self.address, &self.options);
        let session = session.map_err(|e| ConnectFailure::Retry(e.to_string()))?;
        let call = |request: &[u8], reply: &mut Vec<u8>| session.call(request, reply);
        match attach_session(call, &self.attach, Some(self.mount), SESSION_END_TIMEOUT) {
            // The caller has cached changes that it has not written back. Other mounts may have
            // changed the files since, so the two states do not fit together.
            Ok(AttachReply { attached, .. }) if self.attach.exclusive && !attached.resumed => {
                session.close(self.options.operation_timeout);
                Err(ConnectFailure::Final(
                    "the server dropped this mount, which has exclusive use: its lease expired".into(),
                ))
            }
            Ok(AttachReply { attached, .. }) => {
                Ok((Arc::new(AttachedSession::new(session, &attached)), attached))
            }
            Err(e) => {
                session.close(self.options.operation_timeout);
                let why = format!("{}: cannot attach: {e}", self.address);
                Err(if matches!(e, ClientError::InUse(_)) {
                    ConnectFailure::Final(why)
                } else {
                    ConnectFailure::Retry(why)
                })
            }
        }
    }
}
