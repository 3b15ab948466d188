//! Sessions of the previous server whose mounts reconnect.
//!
//! They are restored from the log, except for two things that the log does not have. Blocked lock
//! requests are sent again by their clients. The cache contents are unknown, so everything is
//! recalled from them. That happens when the first session reconnects or a session changes
//! something, whichever is first.
//!
//! # Concurrency
//! One thread restores sessions before the server takes requests. All else is as in the
//! dispatcher.

use std::sync::Arc;

use rfs_proto::{Identity, Recall, decode_reply};

use super::recovery::Damage;
use crate::{
    coherence::recall_queue::Need,
    dispatch::{
        dispatcher::Dispatcher,
        transaction::{locked_inodes::Plan, view::WriteView},
    },
    durable::{
        log::Full,
        op::Op,
        prior_sessions::{ReconnectingMount, Session},
    },
    session::{
        access_mode::AccessMode,
        kept_reply::KeptReply,
        log_quota::{OPEN_BYTES, SESSION_BYTES, SLOT_BYTES},
        registry::{self, AttachOptions, Credentials},
    },
    space::quarantine::BEFORE,
};

/// A mount that was attached to the previous server, and that the server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Its session.
    pub session: u64,
    /// Its identity.
    pub mount: Identity,
    /// Its key and rights.
    pub credentials: Credentials,
}

/// Bits of a session number that have the connection's number. An appender's word holds 48 bits
/// of a session number; the others have the number of the server start.
const CONNECTION_BITS: u32 = 32;
const START_BITS: u32 = 16;

impl Dispatcher {
    /// Returns the session number of a connection. No session of a previous server has it.
    pub fn session_number(&self, connection: u64) -> u64 {
        let start = self.memory.1.wrapping_sub(1) & ((1 << START_BITS) - 1);
        start << CONNECTION_BITS | connection
    }

    /// Returns the connection number of a session that has come to this server.
    pub fn connection_of(session: u64) -> u64 {
        session & ((1 << CONNECTION_BITS) - 1)
    }

    /// Restores a session and all its state but its locks.
    pub(in crate::dispatch) fn restore(
        &self,
        id: u64,
        returning: ReconnectingMount,
        has: Session,
    ) -> Result<(), Damage> {
        let ReconnectingMount { mount, key, writes, keeps, alone } = returning;
        let damage = || Damage::Session(id);
        let key = key.map(|key| key.parse()).transpose().map_err(|_| damage())?;
        let rights = if writes { AccessMode::Write } else { AccessMode::Read };
        let options = AttachOptions { keeps, alone, mount: Some(mount) };
        let session = self.sessions.restore(id, Credentials { key, rights }, options);
        if let Some(journal) = &self.store.journal {
            // Taken without a check, because the previous server had room for it.
            let slots = has.turns.keys().next_back().map_or(0, |&slot| u64::from(slot) + 1);
            let room = SESSION_BYTES + SLOT_BYTES * slots + OPEN_BYTES * has.opens.len() as u64;
            journal.quota.take(session.log_quota(), room);
            if !has.part.is_empty() {
                journal.quota.take_part(session.log_quota(), has.part.len());
            }
        }
        *session.part() = has.part;
        for (slot, (sequence, logged)) in has.turns {
            let reply = decode_reply(&logged).map_err(|_| damage())?;
            session.replies().restore(slot, sequence, KeptReply::of_before(reply), logged);
        }
        for (ino, open) in has.opens {
            let restore = |meta: &mut WriteView<'_>| meta.open_files_mut(ino).restore(id, ino, open);
            self.store.transact(Plan::new(&[ino]), None, restore);
        }
        if keeps {
            self.store.pending.locked(|state| {
                state.recalls.restore(id);
                // Only its own session changes state that an exclusive mount caches.
                state.unknown.extend((!alone).then_some(id));
            });
        }
        Ok(())
    }

    /// Returns the mounts that were attached to the previous server, by session number. Call this
    /// before the first session attaches.
    pub fn awaited(&self) -> Vec<Awaited> {
        let awaited = |session: Arc<registry::Session>| {
            let mount = session.mount()?;
            Some(Awaited { session: session.id(), mount, credentials: session.credentials() })
        };
        let mut all: Vec<Awaited> = self.sessions.all().into_iter().filter_map(awaited).collect();
        all.sort_unstable_by_key(|awaited| awaited.session);
        all
    }

    /// Sets the sessions of previous servers that do not reconnect.
    pub(in crate::dispatch) fn set_orphaned_sessions(&self, orphaned: Vec<u64>) -> Result<(), Full> {
        if let Some(journal) = &self.store.journal
            && orphaned.contains(&BEFORE)
        {
            // The log has an old version, which does not record them.
            journal.tell(&Op::Orphaned(BEFORE))?;
        }
        *self.orphaned_sessions.lock() = orphaned;
        Ok(())
    }

    /// Returns whether sessions of previous servers that do not reconnect may still access memory.
    pub fn waits_for_orphaned_sessions(&self) -> bool {
        !self.orphaned_sessions.lock().is_empty()
    }

    /// Handles the return of a mount to its session. Recalls everything from a session of the
    /// previous server, and makes it repeat its blocked lock requests.
    pub(in crate::dispatch) fn back_from_before(&self, session: u64) {
        if let Some(session) = self.sessions.get(session)
            && session.is_restored()
        {
            session.ask_again();
        }
        self.recall_all(|other| other == session);
    }

    /// Recalls everything from the sessions of the previous server, except for one session. Returns
    /// the recalls to wait for.
    pub(in crate::dispatch) fn recall_all_but(&self, session: u64) -> Vec<Need> {
        self.recall_all(|other| other != session);
        self.store.pending.open(session, |recall| *recall == Recall::All)
    }

    fn recall_all(&self, which: impl Fn(u64) -> bool) {
        let mut due = Vec::new();
        let recalled = self.store.pending.locked(|state| {
            let recalled: Vec<u64> =
                state.unknown.iter().copied().filter(|&session| which(session)).collect();
            state.recall_all(which);
            recalled.iter().for_each(|&session| state.answer_asker(session, &mut due));
            !recalled.is_empty()
        });
        if recalled {
            self.store.alarm.recalled();
        }
        self.store.send(due);
    }
}
