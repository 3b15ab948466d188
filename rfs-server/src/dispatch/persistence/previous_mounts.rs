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

use parking_lot::Mutex;
use rfs_proto::{Identity, decode_reply};

use super::recovery::Damage;
use crate::{
    dispatch::{
        state::{export::ExportState, store::Store},
        transaction::{locked_inodes::Plan, view::WriteView},
    },
    memory_object::{
        log::Full,
        op::Op,
        session_replay::{ReconnectingMount, ReplayedSession},
    },
    session::{
        access_mode::AccessMode,
        kept_reply::KeptReply,
        log_quota::{OPEN_BYTES, SESSION_BYTES, SLOT_BYTES},
        registry::{self, AttachOptions, Credentials, Sessions},
    },
    space::quarantine::ABANDONED_SESSIONS,
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

/// Restores the sessions of the previous server.
#[derive(Clone, Copy)]
pub struct PreviousMounts<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) sessions: &'a Sessions,
    /// Sessions of previous servers that do not reconnect.
    pub(in crate::dispatch) abandoned: &'a Mutex<Vec<u64>>,
}

impl<'a> PreviousMounts<'a> {
    pub(in crate::dispatch) fn of(export: &'a ExportState) -> PreviousMounts<'a> {
        PreviousMounts { store: &export.store, sessions: &export.sessions, abandoned: &export.abandoned }
    }

    /// Restores the sessions of mounts that reconnect. All of them may use the `unlinked` inodes.
    pub(in crate::dispatch) fn restore_all(
        self,
        reconnecting: Vec<(u64, ReconnectingMount, ReplayedSession)>,
        unlinked: &[u64],
        last_ino: u64,
    ) -> Result<(), Damage> {
        let sessions: Vec<u64> = reconnecting.iter().map(|&(id, ..)| id).collect();
        for (id, mount, has) in reconnecting {
            self.restore(id, mount, has)?;
            self.store.previous_sessions.add(id, last_ino);
        }
        for &ino in unlinked {
            let restore = |meta: &mut WriteView<'_>| meta.restore_orphan(ino, &sessions);
            self.store.transact(Plan::new(&[ino]), None, restore);
        }
        Ok(())
    }

    /// Restores a session and all its state but its locks.
    fn restore(self, id: u64, reconnecting: ReconnectingMount, has: ReplayedSession) -> Result<(), Damage> {
        let ReconnectingMount { mount, version, key, writes, keeps, alone } = reconnecting;
        let damage = || Damage::Session(id);
        let key = key.map(|key| key.parse()).transpose().map_err(|_| damage())?;
        let rights = if writes { AccessMode::Write } else { AccessMode::Read };
        let options = AttachOptions { keeps, alone, mount: Some(mount) };
        let session = self.sessions.restore(id, Credentials { key, rights }, options);
        session.speaks(version);
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
            session.replies().restore(slot, sequence, KeptReply::of_previous(reply), logged);
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
    pub fn awaited(self) -> Vec<Awaited> {
        let awaited = |session: Arc<registry::Session>| {
            let mount = session.mount()?;
            Some(Awaited { session: session.id(), mount, credentials: session.credentials() })
        };
        let mut all: Vec<Awaited> = self.sessions.all().into_iter().filter_map(awaited).collect();
        all.sort_unstable_by_key(|awaited| awaited.session);
        all
    }

    /// Sets the sessions of previous servers that do not reconnect.
    pub(in crate::dispatch) fn set_abandoned(self, abandoned: Vec<u64>) -> Result<(), Full> {
        if let Some(journal) = &self.store.journal
            && abandoned.contains(&ABANDONED_SESSIONS)
        {
            // The log has an old version, which does not record them.
            journal.tell(&Op::Abandoned(ABANDONED_SESSIONS))?;
        }
        *self.abandoned.lock() = abandoned;
        Ok(())
    }

    /// Returns whether sessions of previous servers that do not reconnect may still access memory.
    pub fn has_abandoned(self) -> bool {
        !self.abandoned.lock().is_empty()
    }
}
