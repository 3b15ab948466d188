//! Connections of mounts that come back: to whom each belongs, and what is left when it is over.

use std::time::Instant;

use rdmabox::Peer;
use rfs_proto::{Errno, Identity, Reply, Request};

use super::{Chosen, FileService, reach};
use crate::{
    absences::Absent,
    awake,
    dispatch::{Awaited, Outcome},
    mounts::{Arrival, Attached, Claim},
    rights::Rights,
    sessions::Credentials,
};

impl FileService {
    /// What becomes of a connection that says which mount it is of.
    pub(super) fn arrival(&self, peer: &Peer, mount: Option<Identity>, wanted: Attached) -> Arrival {
        let Some(mount) = mount else { return Arrival::New };
        let let_go = match self.former.is_held() {
            false => true,
            true => match peer.process().and_then(|process| self.former.is_held_by(process.id())) {
                // What it had begun at the server before is not over.
                Some(true) => return Arrival::Doomed,
                Some(false) => true,
                None => false,
            },
        };
        let arrival = self.mounts.lock().arrives(claim(peer, mount, wanted), peer.id(), let_go);
        if arrival == Arrival::Doomed {
            // It need not be waited for, perhaps.
            self.bell.left();
        }
        arrival
    }

    /// Ends the sessions that need not be waited for, and has the others looked at.
    pub(super) fn give_up_now(&self) {
        if self.give_up(awake::now()).is_some() {
            self.bell.left();
        }
    }

    /// Waits for the mounts that were attached to the server before.
    pub(super) fn await_those_of_before(&self) {
        let until = self.before_until;
        for (export, lent) in self.exports.iter().enumerate() {
            for Awaited { session, mount, credentials: Credentials { key, rights } } in
                lent.dispatcher.awaited()
            {
                let claim = Claim { mount, key, export, rights };
                if let Some(left) = self.mounts.lock().was_here(claim, session, until) {
                    self.exports[left.export].dispatcher.session_ended(left.session);
                }
                self.bell.left();
            }
        }
    }

    /// A mount has its session again. The answer says whether that is so: it may have been given up at this moment.
    pub(super) fn comes_back(&self, peer: &Peer, before: Attached) -> Chosen<'_> {
        let export = &self.exports[before.export];
        if self.sessions.write().choose(peer.id(), before, || {}) != Some(before) {
            // This connection is over already; whoever ends it does not know of the mount.
            if !self.leaves(peer) {
                self.end_for_good(peer, before);
            }
            return Chosen::Say(Reply::Error(Errno::EPROTO));
        }
        log::info!("{peer}: session {} goes on", before.session);
        self.mounts.lock().runs_in(peer.id(), peer.process());
        let squash = self.squash(peer);
        export.dispatcher.squash(before.session, squash);
        let regions = export.regions(peer, reach(before.rights, squash));
        let mut reply = export.dispatcher.resume(before.session, regions);
        if let Reply::Attached(attached) = &mut reply {
            attached.read_only = before.rights == Rights::Read;
        }
        Chosen::Say(reply)
    }

    /// A connection is over. True if its mount is waited for.
    fn leaves(&self, peer: &Peer) -> bool {
        let Some(grace) = self.grace else { return false };
        let waited_for = self.mounts.lock().leaves(peer.id(), awake::now() + grace);
        if waited_for {
            self.bell.left();
        }
        waited_for
    }

    /// What is left to be done with a session whose connection is over.
    pub(super) fn left(&self, peer: &Peer, attached: Attached) {
        let Attached { export, session, .. } = attached;
        let dispatcher = &self.exports[export].dispatcher;
        let counts = || self.allowed(peer, "").is_ok_and(|now| peer.key().is_none() || now.export == export);
        if !peer.has_expired() && dispatcher.is_attached(session) && counts() && self.leaves(peer) {
            dispatcher.disconnect(session);
            let grace = self.grace.unwrap_or_default();
            return log::info!("{peer}: session {session} disconnected; kept for {grace:?}");
        }
        self.end_for_good(peer, attached);
    }

    /// Ends a session whose connection is over, as soon as that can be.
    fn end_for_good(&self, peer: &Peer, Attached { export, session, .. }: Attached) {
        let waits = self.mounts.lock().forget(peer.id(), awake::now());
        match waits {
            true => self.give_up_now(),
            false => self.exports[export].dispatcher.session_ended(session),
        }
    }

    /// Notes what an answer means for the mount of a connection.
    pub(super) fn note(&self, peer: &Peer, attached: Attached, request: &Request<'_>, answer: &Outcome) {
        match (request, answer) {
            (Request::Attach { mount: Some(mount), .. }, Outcome::Now(Reply::Attached(_))) => {
                let claim = claim(peer, *mount, attached);
                self.mounts.lock().came(claim, peer.id(), attached.session, peer.process());
            }
            (Request::Detach, _) => self.mounts.lock().will_not_return(peer.id()),
            _ => {}
        }
    }
}

fn claim(peer: &Peer, mount: Identity, Attached { export, rights, .. }: Attached) -> Claim {
    Claim { mount, key: peer.key().copied(), export, rights }
}

impl Absent for FileService {
    fn give_up(&self, now: Instant) -> Option<Instant> {
        // The mounts are not locked meanwhile: it may take some time to find out. One that becomes due by then is looked at next time.
        let of_before = self.mounts.lock().has_overdue_of_before(now);
        let let_go = of_before && self.former.ends(self.kill && now >= self.before_until);
        let over = self.mounts.lock().overdue(now, !let_go);
        for Attached { export, session, .. } in over {
            log::info!("session {session}: its mount has not come back");
            self.exports[export].dispatcher.session_ended(session);
        }
        self.mounts.lock().deadline(now)
    }
}
