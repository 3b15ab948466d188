//! The next session of a mount that comes back.

use std::{sync::Arc, time::Duration};

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
        SessionAgain { address: address.clone(), options, attach: attach.clone(), mount }
    }
}

impl Again for SessionAgain {
    fn again(&self) -> Result<(Arc<dyn Remote>, Attached), Answer> {
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
