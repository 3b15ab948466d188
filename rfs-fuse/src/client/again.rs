//! Sessions of a mount that reconnects.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdmabox::{Address, Session, SessionOptions};
use rfs_proto::{Attached, Identity};

use super::{
    AttachError, AttachOptions, ClientError, Remote,
    connect::{ENDING, Introduced, introduce},
    returning::{Again, Answer},
};

/// Limit of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Returns an identity that no other mount can guess.
pub(super) fn random_identity() -> Result<Identity, AttachError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| AttachError::Random(e.to_string()))?;
    Ok(Identity(bytes))
}

/// Makes the next sessions of a mount.
pub(super) struct SessionAgain {
    address: Address,
    options: SessionOptions,
    attach: AttachOptions,
    mount: Identity,
    /// Last error of reading the certificates.
    complaint: Mutex<Option<String>>,
}

impl SessionAgain {
    pub(super) fn new(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
        mount: Identity,
    ) -> Self {
        // An attempt can hang in a network that has recovered since, so attempts are short.
        let connect_timeout = options.connect_timeout.min(ATTEMPT);
        let options = SessionOptions { connect_timeout, ..options.clone() };
        SessionAgain {
            address: address.clone(),
            options,
            attach: attach.clone(),
            mount,
            complaint: Mutex::default(),
        }
    }

    /// Reads the certificates again, because they may have been renewed. After an error the
    /// previous certificates stay in use.
    fn renew_certificates(&self) {
        let Some(tls) = &self.options.tls else { return };
        let complaint = tls.reload().err().map(|e| e.to_string());
        let mut before = self.complaint.lock();
        if let Some(why) = complaint.as_ref().filter(|_| *before != complaint) {
            log::warn!("using the previous certificates: {why}");
        }
        *before = complaint;
    }
}

impl Again for SessionAgain {
    fn again(&self) -> Result<(Arc<dyn Remote>, Attached), Answer> {
        self.renew_certificates();
        let session = Session::connect(&self.address, &self.options);
        let session = session.map_err(|e| Answer::Later(e.to_string()))?;
        match introduce(&*session, &self.attach, Some(self.mount), ENDING) {
            // The caller has cached changes that it has not written back. Other mounts may have
            // changed the files since, so the two states do not fit together.
            Ok(Introduced { attached, .. }) if self.attach.alone && !attached.resumed => {
                session.close();
                Err(Answer::Never(
                    "the server dropped this mount, which has exclusive use: its lease expired".into(),
                ))
            }
            Ok(Introduced { attached, .. }) => Ok((session, attached)),
            Err(e) => {
                session.close();
                let why = format!("{}: cannot attach: {e}", self.address);
                Err(if matches!(e, ClientError::InUse(_)) { Answer::Never(why) } else { Answer::Later(why) })
            }
        }
    }
}
