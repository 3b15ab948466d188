//! Sessions of a mount that reconnects.
//!
//! # Concurrency
//! The reconnect thread only.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{Address, ConnectError, Session, SessionOptions};
use rfs_proto::{Attached, Errno, Identity};

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
    /// Whether a session of the mount has reached a store.
    reached: Arc<AtomicBool>,
    /// Last error of reading the certificates.
    last_error: Mutex<Option<String>>,
}

impl Reattacher {
    pub(crate) fn new(
        address: &Address,
        options: &SessionOptions,
        attach: &AttachOptions,
        (mount, reached): (Identity, Arc<AtomicBool>),
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
            reached,
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

/// Returns the failure of an attempt that connected and did not attach. The failure is final if
/// other mounts have taken the export, or if the export cannot be used exclusively. It is also
/// final if the server lacks the protocol version of this process, because the server never gets
/// it.
fn failure_of(address: &Address, error: &ClientError) -> ConnectFailure {
    let why = format!("{address}: cannot attach: {error}");
    match error {
        ClientError::InUse(_) | ClientError::Version { .. } | ClientError::Errno(Errno::EOPNOTSUPP) => {
            ConnectFailure::Final(why)
        }
        ClientError::Errno(_)
        | ClientError::Request(_)
        | ClientError::Decode(_)
        | ClientError::Protocol(_)
        | ClientError::Unstable
        | ClientError::Bad { .. }
        | ClientError::BeingWritten { .. }
        | ClientError::Unchecked
        | ClientError::Appending(_) => ConnectFailure::Retry(why),
    }
}

impl SessionFactory for Reattacher {
    fn connect(&self) -> Result<(Arc<dyn Remote>, Attached), ConnectFailure> {
        self.reload_certificates();
        let session = Session::connect(&self.address, &self.options);
        let session = session.map_err(|e| match e {
            ConnectError::Version { .. } => ConnectFailure::Final(e.to_string()),
            _ => ConnectFailure::Retry(e.to_string()),
        })?;
        let call = |request: &[u8], reply: &mut Vec<u8>| session.call(request, reply);
        match attach_session(call, session.description(), &self.attach, Some(self.mount), SESSION_END_TIMEOUT)
        {
            // The caller has cached changes that it has not written back. Other mounts may have
            // changed the files since, so the two states do not fit together.
            Ok(AttachReply { attached, .. }) if self.attach.exclusive && !attached.resumed => {
                session.close(self.options.operation_timeout);
                Err(ConnectFailure::Final(
                    "the server dropped this mount, which has exclusive use: its lease expired".into(),
                ))
            }
            Ok(AttachReply { attached, version, .. }) => {
                let remote = AttachedSession::new(session, &attached, version, Arc::clone(&self.reached));
                Ok((Arc::new(remote), attached))
            }
            Err(e) => {
                session.close(self.options.operation_timeout);
                Err(failure_of(&self.address, &e))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use rfs_proto::{InUse, OLDEST_VERSION, RegionRef, Reply, VERSION, attach_version, encode_reply};

    use super::*;

    /// Returns the failure of an attach to a server that answers with `reply`, and the number of
    /// its answers.
    fn refused(reply: &Reply) -> (ConnectFailure, u32) {
        let mut bytes = Vec::new();
        encode_reply(reply, &mut bytes);
        refused_with(&bytes)
    }

    fn refused_with(bytes: &[u8]) -> (ConnectFailure, u32) {
        let calls = Cell::new(0);
        let answer = |_| {
            calls.set(calls.get() + 1);
            bytes.to_vec()
        };
        let outcome = attach_at(answer);
        let address = "unix:/s".parse().unwrap();
        (failure_of(&address, &outcome.err().unwrap()), calls.get())
    }

    /// Attaches to a server that answers to an attach of a version as given.
    fn attach_at(answer: impl Fn(u32) -> Vec<u8>) -> Result<AttachReply, ClientError> {
        let call = |request: &[u8], out: &mut Vec<u8>| {
            *out = answer(attach_version(request).unwrap());
            Ok(())
        };
        attach_session(call, String::new(), &AttachOptions::default(), None, Duration::ZERO)
    }

    /// Returns the refusal of a server: the error, and its version as one byte.
    fn refusal(version: u32) -> Vec<u8> {
        vec![0, 93, u8::try_from(version).unwrap()]
    }

    #[test]
    fn a_server_of_a_version_that_this_program_does_not_speak_is_not_asked_again() {
        for (version, older) in
            [(VERSION + 1, "this program"), (VERSION, "this program"), (OLDEST_VERSION - 1, "the server")]
        {
            let (failure, calls) = refused_with(&refusal(version));
            let ConnectFailure::Final(why) = failure else { panic!("{failure:?}") };
            let both = format!(
                "the server has protocol version {version}, this program {OLDEST_VERSION} to {VERSION}"
            );
            assert_eq!(why, format!("unix:/s: cannot attach: {both}: upgrade {older}"));
            assert_eq!(calls, 1);
        }
    }

    /// Catches a client that a server of the last release refuses, and one that asks for ever.
    #[test]
    fn a_server_one_version_back_gets_an_attach_of_its_version() {
        let region = RegionRef { addr: 0, len: 0, rkey: 0 };
        let mut attached = Vec::new();
        encode_reply(
            &Reply::Attached(Attached {
                arena: region,
                table: region,
                sums: None,
                now: 0,
                session: 7,
                read_only: false,
                memory: Identity([0; 16]),
                starts: 1,
                resumed: false,
                confined: false,
            }),
            &mut attached,
        );
        for server in OLDEST_VERSION..=VERSION {
            let asked = RefCell::new(Vec::new());
            let reply = attach_at(|version| {
                asked.borrow_mut().push(version);
                if version == server { attached.clone() } else { refusal(server) }
            });
            assert_eq!(reply.unwrap().version, server);
            assert_eq!(asked.take(), (server..=VERSION).rev().collect::<Vec<_>>());
        }
        // It names a version that it then refuses.
        assert_eq!(refused_with(&refusal(OLDEST_VERSION)).1, 2);
    }

    #[test]
    fn an_export_in_use_is_final_and_a_session_that_ends_is_not() {
        let (in_use, _) = refused(&Reply::InUse(InUse { sessions: 3, alone: false }));
        let why =
            "unix:/s: cannot attach: 3 other mounts use the export, and --cache writeback needs it alone";
        assert_eq!(in_use, ConnectFailure::Final(why.into()));
        let (evicting, _) = refused(&Reply::Error(Errno::EOPNOTSUPP));
        assert!(matches!(evicting, ConnectFailure::Final(_)), "it never allows exclusive use: {evicting:?}");
        // The session was given up at the moment of the attach: the next one gets a new session.
        for reply in [Reply::Error(Errno::EPROTO), Reply::Ending, Reply::Error(Errno::EACCES)] {
            assert!(matches!(refused(&reply).0, ConnectFailure::Retry(_)), "{reply:?}");
        }
    }
}
