//! The next session of a mount that comes back.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdmabox::{Address, Session, SessionOptions};
use rfs_proto::{Attached, Identity};

use super::{
    AttachError, AttachOptions, ClientError, Remote,
    connect::{ENDING, Introduced, introduce},
    returning::{Again, Answer},
};

/// An attempt to come back takes no longer.
const ATTEMPT: Duration = Duration::from_secs(2);

/// For a mount that nobody else can be taken for.
pub(super) fn random_identity() -> Result<Identity, AttachError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| AttachError::Random(e.to_string()))?;
    Ok(Identity(bytes))
}

/// The sessions of a mount that comes back.
pub(super) struct SessionAgain {
    address: Address,
    options: SessionOptions,
    attach: AttachOptions,
    mount: Identity,
    /// What was wrong with the certificates when they were read last.
    complaint: Mutex<Option<String>>,
}

impl SessionAgain {
    pub(super) fn new(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
        mount: Identity,
    ) -> Self {
        // A network that was cut may be there again while an attempt of before waits: several short ones.
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

    /// Reads the certificates again: they may have been renewed while the mount was there. Those of before are as good as nothing else.
    fn renew_certificates(&self) {
        let Some(tls) = &self.options.tls else { return };
        let complaint = tls.reload().err().map(|e| e.to_string());
        let mut before = self.complaint.lock();
        if let Some(why) = complaint.as_ref().filter(|_| *before != complaint) {
            log::warn!("the certificates of before are used: {why}");
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
            // Others may have changed what the caller keeps, with the changes that he has not written back: nothing would fit together.
            Ok(Introduced { attached, .. }) if self.attach.alone && !attached.resumed => {
                session.close();
                Err(Answer::Never(
                    "the server has not heard for too long of this mount, which is to be alone".into(),
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
