//! The beginning of sessions, their attachment to the export, their resumption, and their end.
//!
//! # Concurrency
//! As the dispatcher.

use rfs_proto::{Attached, Errno, Identity, OLDEST_VERSION, Reply, VERSION, speaks};

use super::{
    delivery::{grants::GrantDelivery, recalls::RecallDelivery},
    persistence::session_log::SessionLog,
    state::store::Store,
};
use crate::{
    metadata::clock::Clock,
    session::{
        access_mode::AccessMode,
        registry::{AttachError, AttachOptions, Credentials, Regions, Sessions},
        squash::Squash,
    },
};

/// Begins, attaches, resumes and ends sessions.
#[derive(Clone, Copy)]
pub struct Attachments<'a> {
    pub(super) store: &'a Store,
    pub(super) sessions: &'a Sessions,
    pub(super) clock: &'a dyn Clock,
    /// Identity of the memory, and the number of servers that have served it.
    pub(super) memory: (Identity, u64),
    pub(super) recalls: RecallDelivery<'a>,
    pub(super) grants: GrantDelivery<'a>,
    pub(super) log: SessionLog<'a>,
}

impl Attachments<'_> {
    /// Registers a new session that has no key and may write.
    pub fn began(self, session: u64, regions: Regions) {
        self.began_as(session, regions, Credentials { key: None, rights: AccessMode::Write });
    }

    /// Registers a new session.
    pub fn began_as(self, session: u64, regions: Regions, credentials: Credentials) {
        self.sessions.begin(session, regions, credentials);
    }

    /// Sets the squash of a session, before its first request.
    pub fn squash(self, session: u64, squash: Squash) {
        if let Some(session) = self.sessions.get(session) {
            session.squash_as(squash);
        }
    }

    /// Ends a session and closes its files. The caller guarantees that no one-sided operation of
    /// the session can arrive any more.
    pub fn ended(self, session: u64) {
        let ended = self.sessions.get(session);
        self.sessions.end(session);
        // The end is logged first. A session that has lost some of its locks or space must not
        // reconnect.
        if let Some(ended) = &ended {
            self.log.ended(ended);
        }
        self.recalls.drop_caches(session);
        self.store.previous_sessions.end(session);
        self.grants.end(session);
        self.store.each_shard(|meta| {
            let shard = meta.namespace.inodes_mut().only();
            for ino in shard.orphans.end_session(session) {
                meta.orphan_released(session, ino);
            }
            let shard = meta.namespace.inodes_mut().only();
            for (ino, last) in shard.open_files.end_session(session) {
                meta.note_last_close(session, ino, last);
                if !last {
                    // The session may have ended between the bytes of a write and the new size.
                    meta.sweep_tail(ino);
                }
            }
        });
        self.grants.send();
        self.store.space.tidy();
        if let (Some(journal), Some(ended)) = (&self.store.journal, &ended) {
            journal.quota.end(ended.log_quota());
        }
    }

    pub(super) fn attach(
        self,
        session: u64,
        (version, client): (u32, &str),
        options: AttachOptions,
    ) -> Result<Reply, Errno> {
        if !speaks(version) {
            log::warn!(
                "session {session}: {client:?} uses protocol version {version}, the server {OLDEST_VERSION} to \
                 {VERSION}"
            );
            return Err(Errno::EPROTONOSUPPORT);
        }
        if options.alone && self.store.eviction.is_some() {
            // Only its own session may change files that an exclusive mount caches.
            log::warn!(
                "session {session}: {client:?} refused: the export evicts files, so no mount has it alone"
            );
            return Err(Errno::EOPNOTSUPP);
        }
        let asker = self.sessions.get(session).ok_or(Errno::EPROTO)?;
        // The end of the session ends its recall queue after this, and so finds the queue.
        let attached = self.store.pending.locked(|state| {
            let attached = self.sessions.attach(&asker, options);
            if attached.is_ok() && options.keeps {
                state.recalls.begin(session);
            }
            attached
        });
        let regions = match attached {
            Ok(regions) => regions,
            Err(AttachError::OutOfTurn) => return Err(Errno::EPROTO),
            Err(AttachError::InUse(others)) => {
                log::debug!("session {session}: {client:?} refused: the export is in use: {others:?}");
                return Ok(Reply::InUse(others));
            }
        };
        asker.speaks(version);
        if self.log.attached(&asker).is_err() {
            asker.detach();
            self.recalls.drop_caches(session);
            return Err(Errno::ENOSPC);
        }
        log::debug!("session {session}: {client:?} attached{}", if options.alone { ", alone" } else { "" });
        Ok(Reply::Attached(self.attached(session, regions, false)))
    }

    /// Resumes the session of a mount that has reconnected, in a version of the protocol that may
    /// differ from the earlier one. `regions` are the names of the memory on the new connection.
    /// Messages that may have been lost are sent again. The mount hears of all unlinked inodes that
    /// it may use: its messages about them may be lost, too, and then it repeats them.
    pub fn resume(self, session: u64, version: u32, regions: Regions) -> Reply {
        let Some(resumed) = self.sessions.get(session).filter(|session| session.is_attached()) else {
            return Reply::Error(Errno::EPROTO);
        };
        if resumed.speaks(version) != version {
            self.log.resumed(&resumed);
        }
        // The request of the old connection gets no reply.
        drop(self.store.grants.lock().resume(session));
        self.recalls.back_from_before(session);
        // A session that has not asked for recalls hears of them when it does.
        if resumed.holds_numbers() {
            self.recalls.queue_unlinked(session);
        }
        Reply::Attached(self.attached(session, regions, true))
    }

    /// Returns whether a session is attached, and has not been told to end.
    pub fn is_attached(self, session: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.is_attached())
    }

    fn attached(self, session: u64, Regions { arena, table, sums }: Regions, resumed: bool) -> Attached {
        let (memory, starts) = self.memory;
        let now = self.clock.now();
        let confined = self.sessions.get(session).is_some_and(|session| !session.squash().is_none());
        Attached { arena, table, sums, now, session, read_only: false, memory, starts, resumed, confined }
    }
}
