//! Connections of mounts that reconnect: which session each gets, and which sessions outlive it.
//!
//! # Concurrency
//! As the service. The lock of the mounts is held for single calls of the registry, and no other
//! lock is taken under it. The thread of `session_reaper` calls [`DisconnectedMounts::give_up`].

use std::time::Instant;

use rdmabox::{Peer, PeerProcess};
use rfs_proto::{ClientDescription, Errno, Identity, Reply, Request};

use super::{FileService, Route, reach, session_reaper::DisconnectedMounts};
use crate::{
    coherence::run_clock,
    dispatch::{Awaited, Outcome},
    session::{
        access_mode::AccessMode,
        mount_registry::{Arrival, Attached, Claim},
        registry::Credentials,
    },
};

impl FileService {
    /// Decides about a connection that presents a mount identity.
    pub(super) fn arrival(&self, peer: &Peer, mount: Option<Identity>, wanted: Attached) -> Arrival {
        let Some(mount) = mount else { return Arrival::New };
        let let_go = match self.previous_clients.is_held() {
            false => true,
            true => match peer.process().and_then(|process| self.previous_clients.is_held_by(process.id())) {
                // The requests that the client sent to the previous server are not over.
                Some(true) => return Arrival::Doomed,
                Some(false) => true,
                None => false,
            },
        };
        let arrival = self.mounts.lock().claim(claim(peer, mount, wanted), peer.id(), let_go);
        if arrival == Arrival::Doomed {
            // Its session may be ready to end now.
            self.reaper_signal.left();
        }
        arrival
    }

    /// Ends the sessions that are due, and schedules the next check.
    pub(super) fn give_up_now(&self) {
        if self.give_up(run_clock::now()).is_some() {
            self.reaper_signal.left();
        }
    }

    /// Registers the mounts that were attached to the previous server.
    pub(super) fn await_previous_mounts(&self) {
        let until = self.reconnect_until;
        for (export, lent) in self.exports.iter().enumerate() {
            for Awaited { session, mount, credentials: Credentials { key, rights } } in
                lent.dispatcher.previous_mounts().awaited()
            {
                let claim = Claim { mount, key, export, rights };
                // A statement of its own, so that the lock is released before the session ends.
                let left = self.mounts.lock().register_previous(claim, session, until);
                if let Some(left) = left {
                    self.finish_session(left.export, left.session);
                }
                self.reaper_signal.left();
            }
        }
    }

    /// Gives a mount its session back. The reply is an error if the session was given up at this
    /// moment.
    pub(super) fn resume_mount(
        &self,
        peer: &Peer,
        before: Attached,
        (version, description): (u32, &str),
    ) -> Route<'_> {
        let export = &self.exports[before.export];
        if self.sessions.write().choose(peer.id(), before, || {}) != Some(before) {
            // This connection has ended already; the thread that ended it did not know the mount.
            if !self.mount_disconnected(peer) {
                self.end_for_good(peer, before);
            }
            return Route::Reply(Reply::Error(Errno::EPROTO));
        }
        log::info!("{peer}: session {} resumed", before.session);
        self.attach_client(peer, before, description);
        self.mounts.lock().set_process(peer.id(), process_of(peer, description));
        let squash = self.squash(peer);
        export.dispatcher.attachments().squash(before.session, squash);
        let regions = export.regions(peer, reach(before.rights, squash));
        let mut reply = export.dispatcher.attachments().resume(before.session, version, regions);
        if let Reply::Attached(attached) = &mut reply {
            attached.read_only = before.rights == AccessMode::Read;
        }
        Route::Reply(reply)
    }

    /// Handles the end of a connection. Returns true if its mount may reconnect.
    fn mount_disconnected(&self, peer: &Peer) -> bool {
        let Some(grace) = self.grace else { return false };
        let waited_for = self.mounts.lock().disconnect(peer.id(), run_clock::now() + grace);
        if waited_for {
            self.reaper_signal.left();
        }
        waited_for
    }

    /// Keeps the session of a connection that has ended for its mount, or ends it.
    pub(super) fn connection_ended(&self, peer: &Peer, attached: Attached) {
        let Attached { export, session, .. } = attached;
        let dispatcher = &self.exports[export].dispatcher;
        let counts = || self.allowed(peer, "").is_ok_and(|now| peer.key().is_none() || now.export == export);
        if !peer.has_expired()
            && dispatcher.attachments().is_attached(session)
            && counts()
            && self.mount_disconnected(peer)
        {
            dispatcher.recalls().disconnect(session);
            self.lose_client(peer, attached);
            let grace = self.grace.unwrap_or_default();
            return log::info!("{peer}: session {session} disconnected; kept for {grace:?}");
        }
        self.end_for_good(peer, attached);
    }

    /// Ends a session whose connection has ended, as soon as possible.
    fn end_for_good(&self, peer: &Peer, Attached { export, session, .. }: Attached) {
        let waits = self.mounts.lock().forget(peer.id(), run_clock::now());
        match waits {
            true => self.give_up_now(),
            false => self.finish_session(export, session),
        }
    }

    /// Updates the mount of a connection after a request.
    pub(super) fn track_mount(
        &self,
        peer: &Peer,
        attached: Attached,
        request: &Request<'_>,
        answer: &Outcome,
    ) {
        match (request, answer) {
            (Request::Attach { mount: Some(mount), client, .. }, Outcome::Now(Reply::Attached(_))) => {
                let claim = claim(peer, *mount, attached);
                self.mounts.lock().register(claim, peer.id(), attached.session, process_of(peer, client));
            }
            (Request::Detach, _) => self.mounts.lock().detach(peer.id()),
            _ => {}
        }
    }
}

/// Returns the process whose end is the end of the mount. `None` if the mount outlives it, or if
/// the server does not know the process.
fn process_of(peer: &Peer, description: &str) -> Option<PeerProcess> {
    if ClientDescription::parse(description).outlives_process { None } else { peer.process() }
}

fn claim(peer: &Peer, mount: Identity, Attached { export, rights, .. }: Attached) -> Claim {
    Claim { mount, key: peer.key().copied(), export, rights }
}

impl DisconnectedMounts for FileService {
    fn give_up(&self, now: Instant) -> Option<Instant> {
        // Not under the lock of the mounts, because this may take long. A mount that becomes due
        // meanwhile is handled next time.
        let is_previous = self.mounts.lock().has_overdue_previous(now);
        let let_go = is_previous && self.previous_clients.ends(self.kill && now >= self.reconnect_until);
        let over = self.mounts.lock().overdue(now, !let_go);
        for Attached { export, session, .. } in over {
            log::info!("session {session}: its mount has not come back");
            self.finish_session(export, session);
        }
        self.mounts.lock().deadline(now)
    }
}
