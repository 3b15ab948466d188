//! Registry of the mounts that reconnect. No I/O, no locks, no clock.
//!
//! Each mount has one session of the dispatcher, which outlives its connections. So open files,
//! locks, caches and replies stay valid across a reconnect. This is safe because rdmabox reports
//! the end of a connection only when the connection cannot touch memory any more. The next
//! connection of a mount is accepted only then. A mount without a connection is kept until its
//! deadline.
//!
//! # Concurrency
//! None; a lock of the service protects it. The caller passes the time.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use rdmabox::{KeyId, PeerProcess};
use rfs_proto::Identity;

use super::access_mode::AccessMode;

/// Interval between checks whether the process of a mount has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of mounts without a connection, which bounds the memory that short-lived mounts
/// take.
const MAX_DISCONNECTED: usize = 4096;

/// The export and session that a connection is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Index of the export.
    pub export: usize,
    /// Access rights.
    pub rights: AccessMode,
    /// Number of the session at the export's dispatcher.
    pub session: u64,
}

/// Identity that a connection claims when it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Identity that the mount presents.
    pub mount: Identity,
    /// Key of the connection; `None` without keys.
    pub key: Option<KeyId>,
    /// Index of the export.
    pub export: usize,
    /// Access rights.
    pub rights: AccessMode,
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The mount is unknown.
    New,
    /// This connection of the mount must end first.
    Ending(u64),
    /// The mount's previous session is about to end; the client asks again later.
    Doomed,
    /// The mount gets its session back.
    Back(Attached),
    /// The mount belongs to another client.
    Refused,
}

#[derive(Debug)]
struct Mount {
    claim: Claim,
    session: u64,
    /// The current connection.
    peer: Option<u64>,
    /// Deadline for a reconnect, while there is no connection.
    until: Option<Instant>,
    process: Option<PeerProcess>,
    /// The mount attached to a previous server, and may still write as a client of it.
    is_previous: bool,
    /// The session ends as soon as possible.
    is_doomed: bool,
}

impl Mount {
    fn attached(&self) -> Attached {
        Attached { export: self.claim.export, rights: self.claim.rights, session: self.session }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now || self.process.as_ref().is_some_and(|p| p.has_ended()))
    }
}

/// The mounts that may reconnect, with their sessions and connections.
#[derive(Debug, Default)]
pub struct Mounts {
    mounts: HashMap<Identity, Mount>,
    /// Mounts with a connection, by connection.
    peers: HashMap<u64, Identity>,
}

impl Mounts {
    /// Processes a claim from the connection `peer`. `let_go`: the client is known to have released
    /// the memory of previous servers.
    pub fn claim(&mut self, claim: Claim, peer: u64, let_go: bool) -> Arrival {
        let Some(mount) = self.mounts.get_mut(&claim.mount) else { return Arrival::New };
        if mount.claim != claim {
            return Arrival::Refused;
        }
        mount.is_previous &= !let_go;
        match mount.peer {
            Some(before) if before == peer => Arrival::Refused,
            Some(before) => Arrival::Ending(before),
            None if mount.is_doomed => Arrival::Doomed,
            None => {
                (mount.peer, mount.until) = (Some(peer), None);
                self.peers.insert(peer, claim.mount);
                Arrival::Back(mount.attached())
            }
        }
    }

    /// Registers a mount that has attached over the connection `peer`. Does nothing if the mount is
    /// registered.
    pub fn register(&mut self, claim: Claim, peer: u64, session: u64, process: Option<PeerProcess>) {
        self.mounts.entry(claim.mount).or_insert_with(|| {
            self.peers.insert(peer, claim.mount);
            Mount {
                claim,
                session,
                peer: Some(peer),
                until: None,
                process,
                is_previous: false,
                is_doomed: false,
            }
        });
    }

    /// Registers a mount of a previous server, with a deadline for its reconnect. Returns the
    /// mount's older session, if that had not ended completely; the caller ends it.
    pub fn register_previous(&mut self, claim: Claim, session: u64, until: Instant) -> Option<Attached> {
        let mount = Mount {
            claim,
            session,
            peer: None,
            until: Some(until),
            process: None,
            is_previous: true,
            is_doomed: false,
        };
        Some(self.mounts.insert(claim.mount, mount)?.attached())
    }

    /// Sets the process of a connection's mount, if it was not known.
    pub fn set_process(&mut self, peer: u64, process: Option<PeerProcess>) {
        let mount = self.peers.get(&peer).and_then(|identity| self.mounts.get_mut(identity));
        if let Some(mount) = mount {
            mount.process = mount.process.take().or(process);
        }
    }

    /// Returns the connection of a session, if the session belongs to a connected mount.
    pub fn peer_of(&self, export: usize, session: u64) -> Option<u64> {
        let mut mounts = self.mounts.values();
        mounts.find(|mount| (mount.claim.export, mount.session) == (export, session))?.peer
    }

    /// Returns true if the mount of a connection reconnects.
    pub fn comes_back(&self, peer: u64) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Records the end of a connection, and keeps its mount until `until`. Returns false if the
    /// mount does not reconnect or too many mounts are kept. The caller then calls
    /// [`forget`](Self::forget).
    pub fn disconnect(&mut self, peer: u64, until: Instant) -> bool {
        let away = self.mounts.len() - self.peers.len();
        let Some(identity) = self.peers.get(&peer) else { return false };
        let Some(mount) =
            self.mounts.get_mut(identity).filter(|mount| away < MAX_DISCONNECTED && !mount.is_doomed)
        else {
            return false;
        };
        (mount.peer, mount.until) = (None, Some(until));
        self.peers.remove(&peer);
        true
    }

    /// Removes the mount of an ended connection. Returns true if the caller must not end its
    /// session, because [`overdue`](Self::overdue) will return it.
    pub fn forget(&mut self, peer: u64, now: Instant) -> bool {
        let Some(identity) = self.peers.remove(&peer) else { return false };
        match self.mounts.get_mut(&identity).filter(|mount| mount.is_previous) {
            Some(mount) => (mount.peer, mount.until, mount.is_doomed) = (None, Some(now), true),
            None => drop(self.mounts.remove(&identity)),
        }
        self.mounts.contains_key(&identity)
    }

    /// Removes the mount of a connection that still exists: the mount does not reconnect.
    pub fn detach(&mut self, peer: u64) {
        let Some(identity) = self.peers.get(&peer) else { return };
        match self.mounts.get_mut(identity).filter(|mount| mount.is_previous) {
            Some(mount) => mount.is_doomed = true,
            None => {
                self.mounts.remove(identity);
                self.peers.remove(&peer);
            }
        }
    }

    /// Ends the wait for a session without a connection; [`overdue`](Self::overdue) returns it
    /// next. Returns false if the session is connected or unknown.
    pub fn give_up(&mut self, export: usize, session: u64, now: Instant) -> bool {
        let mut mounts = self.mounts.values_mut();
        let found = mounts.find(|m| m.peer.is_none() && (m.claim.export, m.session) == (export, session));
        found.map(|mount| (mount.until, mount.is_doomed) = (Some(now), true)).is_some()
    }

    /// Returns true if the deadline of a mount of a previous server has passed.
    pub fn has_overdue_previous(&self, now: Instant) -> bool {
        self.mounts.values().any(|mount| mount.is_previous && mount.is_due(now))
    }

    /// Removes and returns the mounts whose deadline has passed or whose process has ended. While a
    /// client `holds_on` to a previous server's memory, skips the mounts of that server: the client
    /// may be one of them.
    pub fn overdue(&mut self, now: Instant, holds_on: bool) -> Vec<Attached> {
        let is_over = |mount: &Mount| mount.is_due(now) && !(mount.is_previous && holds_on);
        self.mounts.extract_if(|_, mount| is_over(mount)).map(|(_, mount)| mount.attached()).collect()
    }

    /// Returns the next time to call [`overdue`](Self::overdue), if there are mounts without a
    /// connection.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let next = |mount: &Mount| {
            let until = mount.until?;
            // The mount is overdue but was not removed.
            let look = now + CHECK_INTERVAL;
            Some(match &mount.process {
                _ if until <= now => look,
                Some(_) => until.min(look),
                None => until,
            })
        };
        self.mounts.values().filter_map(next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(mount: u8) -> Claim {
        Claim { mount: Identity([mount; 16]), key: None, export: 0, rights: AccessMode::Write }
    }

    #[test]
    fn a_mount_comes_and_goes() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        let lease = Duration::from_secs(1);
        assert_eq!(mounts.claim(claim(1), 5, true), Arrival::New);
        mounts.register(claim(1), 5, 5, None);
        assert!(mounts.comes_back(5) && !mounts.comes_back(6));
        assert_eq!(mounts.claim(claim(1), 6, true), Arrival::Ending(5));
        assert_eq!(mounts.deadline(now), None);
        assert!(mounts.disconnect(5, now + lease) && !mounts.disconnect(5, now + lease));
        assert_eq!(mounts.deadline(now), Some(now + lease));
        let back = Attached { export: 0, rights: AccessMode::Write, session: 5 };
        assert_eq!(mounts.claim(claim(1), 6, true), Arrival::Back(back));
        assert_eq!((mounts.peer_of(0, 5), mounts.peer_of(1, 5), mounts.peer_of(0, 6)), (Some(6), None, None));
        assert_eq!(mounts.overdue(now + 2 * lease, false), [], "it is there");
        assert!(!mounts.give_up(0, 5, now));
        assert!(mounts.disconnect(6, now + lease));
        assert_eq!(mounts.overdue(now, false), []);
        assert_eq!(mounts.overdue(now + lease, false), [back]);
        assert_eq!(mounts.claim(claim(1), 7, true), Arrival::New);
        assert!(mounts.mounts.is_empty() && mounts.peers.is_empty());
    }

    #[test]
    fn a_mount_of_the_previous_server_may_reconnect() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        let session = |session| Attached { export: 0, rights: AccessMode::Write, session };
        assert_eq!(mounts.register_previous(claim(1), 5, until), None);
        assert_eq!(mounts.register_previous(claim(1), 6, until), Some(session(5)));
        assert_eq!(mounts.register_previous(claim(2), 7, until), None);
        assert_eq!(mounts.deadline(now), Some(until));
        assert_eq!(mounts.claim(claim(1), 1, true), Arrival::Back(session(6)));
        mounts.set_process(1, None);
        assert_eq!(mounts.overdue(until, false), [session(7)]);
    }

    #[test]
    fn mounts_of_the_previous_server_stay_while_a_client_holds_memory() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        let session = |session| Attached { export: 0, rights: AccessMode::Write, session };
        for mount in 1..=3 {
            assert_eq!(mounts.register_previous(claim(mount), mount.into(), until), None);
        }
        mounts.register(claim(4), 4, 4, None);
        assert!(mounts.disconnect(4, until));
        assert_eq!(mounts.claim(claim(3), 5, true), Arrival::Back(session(3)));
        assert!(mounts.disconnect(5, until), "it is one of now from here on");
        assert!(!mounts.has_overdue_previous(now) && mounts.has_overdue_previous(until));
        let mut over = mounts.overdue(until, true);
        over.sort_by_key(|over| over.session);
        assert_eq!(over, [session(3), session(4)]);
        // The check is repeated, but not all the time.
        assert_eq!(mounts.deadline(until), Some(until + CHECK_INTERVAL));
        // A mount may reconnect meanwhile, unless its session ends.
        assert_eq!(mounts.claim(claim(1), 6, true), Arrival::Back(session(1)));
        assert!(mounts.give_up(0, 2, now));
        assert_eq!((mounts.overdue(until, true), mounts.claim(claim(2), 7, true)), (vec![], Arrival::Doomed));
        assert_eq!(mounts.overdue(until, false), [session(2)]);
        assert!(!mounts.has_overdue_previous(until));
    }

    /// Over TCP the server cannot see whether a mount has released the memory that it had mapped.
    #[test]
    fn a_mount_that_may_still_write_ends_like_a_disconnected_mount() {
        let now = Instant::now();
        let session = Attached { export: 0, rights: AccessMode::Write, session: 5 };
        let there = || {
            let mut mounts = Mounts::default();
            assert_eq!(mounts.register_previous(claim(1), 5, now), None);
            assert_eq!(mounts.claim(claim(1), 1, false), Arrival::Back(session));
            mounts
        };
        // The lease ends.
        let mut mounts = there();
        assert!(mounts.forget(1, now));
        assert_eq!((mounts.overdue(now, true), mounts.claim(claim(1), 2, false)), (vec![], Arrival::Doomed));
        assert_eq!(mounts.overdue(now, false), [session]);
        // The client detaches.
        let mut mounts = there();
        mounts.detach(1);
        assert!(!mounts.disconnect(1, now) && mounts.forget(1, now));
        assert_eq!((mounts.overdue(now, true), mounts.overdue(now, false)), (vec![], vec![session]));
        // It may not reconnect, although it has released the memory: other clients are not its
        // concern.
        let mut mounts = there();
        assert!(mounts.forget(1, now));
        assert_eq!(mounts.claim(claim(1), 2, true), Arrival::Doomed);
        assert_eq!(mounts.overdue(now, true), [session]);
        assert_eq!(mounts.claim(claim(1), 2, true), Arrival::New);
        // A mount of this server.
        mounts.register(claim(1), 2, 6, None);
        mounts.detach(2);
        assert_eq!(mounts.claim(claim(1), 3, false), Arrival::New);
        assert!(!mounts.forget(2, now));
    }

    #[test]
    fn a_claim_must_match_the_mount() {
        let mut mounts = Mounts::default();
        mounts.register(claim(1), 5, 5, None);
        mounts.register(claim(1), 6, 6, None);
        assert!(mounts.comes_back(5) && !mounts.comes_back(6));
        assert_eq!(mounts.claim(Claim { export: 1, ..claim(1) }, 7, true), Arrival::Refused);
        assert_eq!(mounts.claim(Claim { rights: AccessMode::Read, ..claim(1) }, 7, true), Arrival::Refused);
        assert_eq!(mounts.claim(claim(1), 5, true), Arrival::Refused, "it has attached");
    }

    #[test]
    fn the_number_of_disconnected_mounts_is_limited() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        for peer in 0..=MAX_DISCONNECTED as u64 {
            let mount = Identity((u128::from(peer) << 8).to_be_bytes());
            mounts.register(Claim { mount, ..claim(0) }, peer, peer, None);
            let waited_for = mounts.disconnect(peer, now);
            assert_eq!(waited_for, peer < MAX_DISCONNECTED as u64);
            assert!(waited_for || !mounts.forget(peer, now));
        }
        assert_eq!(
            (mounts.mounts.len(), mounts.overdue(now, false).len(), mounts.mounts.len()),
            (MAX_DISCONNECTED, MAX_DISCONNECTED, 0)
        );
    }

    #[test]
    fn a_removed_mount_does_not_reconnect() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        mounts.register(claim(1), 5, 5, None);
        assert!(!mounts.forget(5, now) && !mounts.forget(5, now));
        assert!(!mounts.disconnect(5, now));
        mounts.register(claim(1), 6, 6, None);
        mounts.disconnect(6, now);
        assert!(mounts.give_up(0, 6, now));
        assert_eq!(mounts.claim(claim(1), 7, true), Arrival::Doomed);
        let session = Attached { export: 0, rights: AccessMode::Write, session: 6 };
        assert_eq!(mounts.overdue(now, true), [session], "clients that hold memory do not matter");
        assert!(!mounts.give_up(0, 6, now));
        assert_eq!(mounts.claim(claim(1), 7, true), Arrival::New);
    }
}
