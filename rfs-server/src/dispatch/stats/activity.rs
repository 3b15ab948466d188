//! Requests and waits of the sessions of an export, for the status of a server.
//!
//! # Concurrency
//! Any thread. The locks of the recalls, of the file locks and of the allocator are taken one after
//! the other, each for a moment.

use std::time::{Duration, Instant};

use rfs_proto::Identity;

use super::Scrub;
use crate::{
    coherence::run_clock,
    dispatch::state::store::Store,
    locks::Locked,
    session::{
        registry::{AttachOptions, Credentials, Session, Sessions},
        squash::Squash,
    },
    space::alloc::Totals,
};

/// Waiting lock requests that a status lists. More are only counted.
const MAX_WAITS: usize = 100;

/// Figures of an export.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Space of the arena.
    pub space: Totals,
    /// Attached sessions.
    pub sessions: Vec<SessionActivity>,
    /// Sessions that have not acknowledged recalls.
    pub held_back: Vec<HeldBack>,
    /// Replies that wait for acknowledgements of recalls.
    pub held_replies: usize,
    /// Number of held file locks, and of lock requests that wait.
    pub locks: (usize, usize),
    /// Some of the lock requests that wait.
    pub waits: Vec<LockWait>,
    /// The newest scrub.
    pub scrub: Option<Scrub>,
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionActivity {
    /// Number of the session.
    pub session: u64,
    /// Key and access rights.
    pub credentials: Credentials,
    /// Whether it caches, is alone, and reconnects.
    pub options: AttachOptions,
    /// Mapping of its users.
    pub squash: Squash,
    /// Number of requests so far.
    pub requests: u64,
    /// Number of locks and waiting lock requests.
    pub locks: usize,
    /// It is restored from a previous server.
    pub is_restored: bool,
}

/// A session that has not acknowledged recalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// Number of the session.
    pub session: u64,
    /// Number of recalls.
    pub recalls: usize,
    /// Age of the first one.
    pub oldest: Duration,
    /// Replies that wait for this session.
    pub replies: usize,
}

/// A lock request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// Inode of the file.
    pub ino: u64,
    /// The request.
    pub wanted: Locked,
    /// A lock that conflicts; `None` if the request waits behind another one.
    pub holder: Option<Locked>,
}

impl Activity {
    /// Returns the figures of a store and its sessions.
    pub(in crate::dispatch) fn now(store: &Store, sessions: &Sessions, scrub: Option<Scrub>) -> Activity {
        let now = run_clock::now();
        let (held_back, held_replies) = held_back(store, now);
        let attached: Vec<_> = sessions.all().into_iter().filter(|session| session.has_attached()).collect();
        let (counts, locks, waits) = store.look_at_locks(|locks| {
            let counts: Vec<usize> = attached.iter().map(|session| locks.of_session(session.id())).collect();
            let wait = |(ino, wanted, holder)| LockWait { ino, wanted, holder };
            let waits = locks.waiting(MAX_WAITS).into_iter().map(wait).collect();
            (counts, locks.totals(), waits)
        });
        let sessions =
            attached.iter().zip(counts).map(|(session, locks)| SessionActivity::of(session, locks));
        let sessions = sessions.collect();
        Activity { space: store.space.totals(), sessions, held_back, held_replies, locks, waits, scrub }
    }
}

impl SessionActivity {
    fn of(session: &Session, locks: usize) -> SessionActivity {
        SessionActivity {
            session: session.id(),
            credentials: session.credentials(),
            // The identity of a mount is secret.
            options: AttachOptions { mount: session.mount().map(|_| Identity([0; 16])), ..session.options() },
            squash: session.squash(),
            requests: session.requests(),
            locks,
            is_restored: session.is_restored(),
        }
    }
}

/// Returns the sessions that have not acknowledged recalls, and the number of held replies.
fn held_back(store: &Store, now: Instant) -> (Vec<HeldBack>, usize) {
    store.pending.locked(|state| {
        let session = |(session, recalls, since)| HeldBack {
            session,
            recalls,
            oldest: now.saturating_duration_since(since),
            replies: state.held_replies.waiting_for(session),
        };
        (state.recalls.unacknowledged().map(session).collect(), state.held_replies.len())
    })
}
