//! The mounts that come back: which session of the dispatcher each has, and until when it is kept while nobody is there. Pure.
//!
//! A mount's session at the dispatcher outlives the connections over which it comes. So what it has (open files, locks, what it keeps,
//! replies) need not be claimed when it is back: it was never gone. What makes that safe is that rdmabox says of a connection that it is over only
//! when nothing of it can touch memory any more, and that the next one of a mount is let in only then.
//!
//! Threading: none; a lock of the service protects it. Times come from outside.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use rdmabox::{KeyId, PeerProcess};
use rfs_proto::Identity;

use crate::rights::Rights;

/// Between two looks at whether the process of a mount has ended.
const LOOK: Duration = Duration::from_millis(20);

/// No more are waited for at a time, so that whoever comes and goes all the time fills no memory.
const MOST: usize = 4096;

/// What a session has attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The export, by its place in the list.
    pub export: usize,
    /// What it may do there.
    pub rights: Rights,
    /// Its number at the export's dispatcher.
    pub session: u64,
}

/// Somebody who says which mount he is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which.
    pub mount: Identity,
    /// With which key.
    pub key: Option<KeyId>,
    /// To which export.
    pub export: usize,
    /// To do what.
    pub rights: Rights,
}

/// What becomes of him.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The mount is not known.
    New,
    /// It is, and this connection of it has to end first.
    Ending(u64),
    /// It is to ask again: what it had is about to be given up.
    Doomed,
    /// It is back, and has its session again.
    Back(Attached),
    /// It is somebody else's.
    Refused,
}

#[derive(Debug)]
struct Mount {
    claim: Claim,
    session: u64,
    /// The connection, while there is one.
    peer: Option<u64>,
    /// Until when it is waited for, while there is none.
    until: Option<Instant>,
    process: Option<PeerProcess>,
    /// It was attached to the server before, and may still write as its client.
    of_before: bool,
    /// It is given up as soon as that can be.
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

/// The mounts.
#[derive(Debug, Default)]
pub struct Mounts {
    mounts: HashMap<Identity, Mount>,
    /// Who is there, by connection.
    peers: HashMap<u64, Identity>,
}

impl Mounts {
    /// Somebody comes over the connection `peer`, who is known to have `let_go` of what servers before had lent, or not.
    pub fn arrives(&mut self, claim: Claim, peer: u64, let_go: bool) -> Arrival {
        let Some(mount) = self.mounts.get_mut(&claim.mount) else { return Arrival::New };
        if mount.claim != claim {
            return Arrival::Refused;
        }
        mount.of_before &= !let_go;
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

    /// A new one has attached, over the connection `peer`. Nothing happens if there is one of that identity.
    pub fn came(&mut self, claim: Claim, peer: u64, session: u64, process: Option<PeerProcess>) {
        self.mounts.entry(claim.mount).or_insert_with(|| {
            self.peers.insert(peer, claim.mount);
            Mount {
                claim,
                session,
                peer: Some(peer),
                until: None,
                process,
                of_before: false,
                is_doomed: false,
            }
        });
    }

    /// One was attached to the server before, and is waited for `until` then. If its session before that had not ended quite, that
    /// one is to be ended.
    pub fn was_here(&mut self, claim: Claim, session: u64, until: Instant) -> Option<Attached> {
        let mount = Mount {
            claim,
            session,
            peer: None,
            until: Some(until),
            process: None,
            of_before: true,
            is_doomed: false,
        };
        Some(self.mounts.insert(claim.mount, mount)?.attached())
    }

    /// The process of the mount of a connection, if that was not known.
    pub fn runs_in(&mut self, peer: u64, process: Option<PeerProcess>) {
        let mount = self.peers.get(&peer).and_then(|identity| self.mounts.get_mut(identity));
        if let Some(mount) = mount {
            mount.process = mount.process.take().or(process);
        }
    }

    /// The connection of a session, if it is one of a mount that is there.
    pub fn peer_of(&self, export: usize, session: u64) -> Option<u64> {
        let mut mounts = self.mounts.values();
        mounts.find(|mount| (mount.claim.export, mount.session) == (export, session))?.peer
    }

    /// True if the mount of this connection comes back.
    pub fn comes_back(&self, peer: u64) -> bool {
        self.peers.contains_key(&peer)
    }

    /// The connection is over, and the mount is waited for `until` then. False if it does not come back, or too many are waited for:
    /// then it is to be [forgotten](Self::forget).
    pub fn leaves(&mut self, peer: u64, until: Instant) -> bool {
        let away = self.mounts.len() - self.peers.len();
        let Some(identity) = self.peers.get(&peer) else { return false };
        let Some(mount) = self.mounts.get_mut(identity).filter(|mount| away < MOST && !mount.is_doomed)
        else {
            return false;
        };
        (mount.peer, mount.until) = (None, Some(until));
        self.peers.remove(&peer);
        true
    }

    /// The mount of this connection, which is over, does not come back. True if its session is not to be ended for all that before
    /// [`overdue`](Self::overdue) has it.
    pub fn forget(&mut self, peer: u64, now: Instant) -> bool {
        let Some(identity) = self.peers.remove(&peer) else { return false };
        match self.mounts.get_mut(&identity).filter(|mount| mount.of_before) {
            Some(mount) => (mount.peer, mount.until, mount.is_doomed) = (None, Some(now), true),
            None => drop(self.mounts.remove(&identity)),
        }
        self.mounts.contains_key(&identity)
    }

    /// The mount of this connection, which is still there, does not come back.
    pub fn will_not_return(&mut self, peer: u64) {
        let Some(identity) = self.peers.get(&peer) else { return };
        match self.mounts.get_mut(identity).filter(|mount| mount.of_before) {
            Some(mount) => mount.is_doomed = true,
            None => {
                self.mounts.remove(identity);
                self.peers.remove(&peer);
            }
        }
    }

    /// A session that nobody is connected to is not waited for any more: [`overdue`](Self::overdue) has it next. False if
    /// somebody is connected, or there is no such one.
    pub fn give_up(&mut self, export: usize, session: u64, now: Instant) -> bool {
        let mut mounts = self.mounts.values_mut();
        let found = mounts.find(|m| m.peer.is_none() && (m.claim.export, m.session) == (export, session));
        found.map(|mount| (mount.until, mount.is_doomed) = (Some(now), true)).is_some()
    }

    /// True if one of those that were there before the server has been waited for long enough.
    pub fn has_overdue_of_before(&self, now: Instant) -> bool {
        self.mounts.values().any(|mount| mount.of_before && mount.is_due(now))
    }

    /// Takes out those that have been waited for long enough, or whose process has ended; where somebody `holds_on` to what the server before
    /// had lent, none that was there then: it may be the one.
    pub fn overdue(&mut self, now: Instant, holds_on: bool) -> Vec<Attached> {
        let is_over = |mount: &Mount| mount.is_due(now) && !(mount.of_before && holds_on);
        self.mounts.extract_if(|_, mount| is_over(mount)).map(|(_, mount)| mount.attached()).collect()
    }

    /// When to look again at those that are waited for, if there are any.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let next = |mount: &Mount| {
            let until = mount.until?;
            // One that is due has not been taken out.
            let look = now + LOOK;
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
        Claim { mount: Identity([mount; 16]), key: None, export: 0, rights: Rights::Write }
    }

    #[test]
    fn a_mount_comes_and_goes() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        let lease = Duration::from_secs(1);
        assert_eq!(mounts.arrives(claim(1), 5, true), Arrival::New);
        mounts.came(claim(1), 5, 5, None);
        assert!(mounts.comes_back(5) && !mounts.comes_back(6));
        assert_eq!(mounts.arrives(claim(1), 6, true), Arrival::Ending(5));
        assert_eq!(mounts.deadline(now), None);
        assert!(mounts.leaves(5, now + lease) && !mounts.leaves(5, now + lease));
        assert_eq!(mounts.deadline(now), Some(now + lease));
        let back = Attached { export: 0, rights: Rights::Write, session: 5 };
        assert_eq!(mounts.arrives(claim(1), 6, true), Arrival::Back(back));
        assert_eq!((mounts.peer_of(0, 5), mounts.peer_of(1, 5), mounts.peer_of(0, 6)), (Some(6), None, None));
        assert_eq!(mounts.overdue(now + 2 * lease, false), [], "it is there");
        assert!(!mounts.give_up(0, 5, now));
        assert!(mounts.leaves(6, now + lease));
        assert_eq!(mounts.overdue(now, false), []);
        assert_eq!(mounts.overdue(now + lease, false), [back]);
        assert_eq!(mounts.arrives(claim(1), 7, true), Arrival::New);
        assert!(mounts.mounts.is_empty() && mounts.peers.is_empty());
    }

    #[test]
    fn a_mount_of_the_server_before_is_waited_for() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        let session = |session| Attached { export: 0, rights: Rights::Write, session };
        assert_eq!(mounts.was_here(claim(1), 5, until), None);
        assert_eq!(mounts.was_here(claim(1), 6, until), Some(session(5)));
        assert_eq!(mounts.was_here(claim(2), 7, until), None);
        assert_eq!(mounts.deadline(now), Some(until));
        assert_eq!(mounts.arrives(claim(1), 1, true), Arrival::Back(session(6)));
        mounts.runs_in(1, None);
        assert_eq!(mounts.overdue(until, false), [session(7)]);
    }

    #[test]
    fn nobody_of_before_is_given_up_while_somebody_holds_on() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        let session = |session| Attached { export: 0, rights: Rights::Write, session };
        for mount in 1..=3 {
            assert_eq!(mounts.was_here(claim(mount), mount.into(), until), None);
        }
        mounts.came(claim(4), 4, 4, None);
        assert!(mounts.leaves(4, until));
        assert_eq!(mounts.arrives(claim(3), 5, true), Arrival::Back(session(3)));
        assert!(mounts.leaves(5, until), "it is one of now from here on");
        assert!(!mounts.has_overdue_of_before(now) && mounts.has_overdue_of_before(until));
        let mut over = mounts.overdue(until, true);
        over.sort_by_key(|over| over.session);
        assert_eq!(over, [session(3), session(4)]);
        // It is looked again, and not all the time.
        assert_eq!(mounts.deadline(until), Some(until + LOOK));
        // One may come back meanwhile, and one that is not waited for may not.
        assert_eq!(mounts.arrives(claim(1), 6, true), Arrival::Back(session(1)));
        assert!(mounts.give_up(0, 2, now));
        assert_eq!(
            (mounts.overdue(until, true), mounts.arrives(claim(2), 7, true)),
            (vec![], Arrival::Doomed)
        );
        assert_eq!(mounts.overdue(until, false), [session(2)]);
        assert!(!mounts.has_overdue_of_before(until));
    }

    /// Over TCP it cannot be seen whether a mount has let go of what it had mapped.
    #[test]
    fn one_of_before_that_may_still_write_ends_as_one_that_is_away() {
        let now = Instant::now();
        let session = Attached { export: 0, rights: Rights::Write, session: 5 };
        let there = || {
            let mut mounts = Mounts::default();
            assert_eq!(mounts.was_here(claim(1), 5, now), None);
            assert_eq!(mounts.arrives(claim(1), 1, false), Arrival::Back(session));
            mounts
        };
        // Its lease is over.
        let mut mounts = there();
        assert!(mounts.forget(1, now));
        assert_eq!(
            (mounts.overdue(now, true), mounts.arrives(claim(1), 2, false)),
            (vec![], Arrival::Doomed)
        );
        assert_eq!(mounts.overdue(now, false), [session]);
        // It says good-bye.
        let mut mounts = there();
        mounts.will_not_return(1);
        assert!(!mounts.leaves(1, now) && mounts.forget(1, now));
        assert_eq!((mounts.overdue(now, true), mounts.overdue(now, false)), (vec![], vec![session]));
        // It is not waited for, comes back, and can be seen to have let go: others are not its concern.
        let mut mounts = there();
        assert!(mounts.forget(1, now));
        assert_eq!(mounts.arrives(claim(1), 2, true), Arrival::Doomed);
        assert_eq!(mounts.overdue(now, true), [session]);
        assert_eq!(mounts.arrives(claim(1), 2, true), Arrival::New);
        // One of now.
        mounts.came(claim(1), 2, 6, None);
        mounts.will_not_return(2);
        assert_eq!(mounts.arrives(claim(1), 3, false), Arrival::New);
        assert!(!mounts.forget(2, now));
    }

    #[test]
    fn nobody_takes_anothers_place() {
        let mut mounts = Mounts::default();
        mounts.came(claim(1), 5, 5, None);
        mounts.came(claim(1), 6, 6, None);
        assert!(mounts.comes_back(5) && !mounts.comes_back(6));
        assert_eq!(mounts.arrives(Claim { export: 1, ..claim(1) }, 7, true), Arrival::Refused);
        assert_eq!(mounts.arrives(Claim { rights: Rights::Read, ..claim(1) }, 7, true), Arrival::Refused);
        assert_eq!(mounts.arrives(claim(1), 5, true), Arrival::Refused, "it has attached");
    }

    #[test]
    fn not_all_are_waited_for() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        for peer in 0..=MOST as u64 {
            let mount = Identity((u128::from(peer) << 8).to_be_bytes());
            mounts.came(Claim { mount, ..claim(0) }, peer, peer, None);
            let waited_for = mounts.leaves(peer, now);
            assert_eq!(waited_for, peer < MOST as u64);
            assert!(waited_for || !mounts.forget(peer, now));
        }
        assert_eq!(
            (mounts.mounts.len(), mounts.overdue(now, false).len(), mounts.mounts.len()),
            (MOST, MOST, 0)
        );
    }

    #[test]
    fn who_is_forgotten_does_not_come_back() {
        let (mut mounts, now) = (Mounts::default(), Instant::now());
        mounts.came(claim(1), 5, 5, None);
        assert!(!mounts.forget(5, now) && !mounts.forget(5, now));
        assert!(!mounts.leaves(5, now));
        mounts.came(claim(1), 6, 6, None);
        mounts.leaves(6, now);
        assert!(mounts.give_up(0, 6, now));
        assert_eq!(mounts.arrives(claim(1), 7, true), Arrival::Doomed);
        let session = Attached { export: 0, rights: Rights::Write, session: 6 };
        assert_eq!(mounts.overdue(now, true), [session], "whatever others hold on to");
        assert!(!mounts.give_up(0, 6, now));
        assert_eq!(mounts.arrives(claim(1), 7, true), Arrival::New);
    }
}
