//! The beginning of sessions, their attachment to the export, and their end.
//!
//! # Concurrency
//! As the dispatcher.

use rfs_proto::{Errno, Reply, VERSION};

use super::dispatcher::Dispatcher;
use crate::session::{
    access_mode::AccessMode,
    registry::{AttachError, AttachOptions, Credentials, Regions},
    squash::Squash,
};

impl Dispatcher {
    /// Registers a new session that has no key and may write.
    pub fn session_began(&self, session: u64, regions: Regions) {
        self.session_began_as(session, regions, Credentials { key: None, rights: AccessMode::Write });
    }

    /// Registers a new session.
    pub fn session_began_as(&self, session: u64, regions: Regions, credentials: Credentials) {
        self.sessions.begin(session, regions, credentials);
    }

    /// Sets the squash of a session, before its first request.
    pub fn squash(&self, session: u64, squash: Squash) {
        if let Some(session) = self.sessions.get(session) {
            session.squash_as(squash);
        }
    }

    /// Ends a session and closes its files. The caller guarantees that no one-sided operation of
    /// the session can arrive any more.
    pub fn session_ended(&self, session: u64) {
        let ended = self.sessions.get(session);
        self.sessions.end(session);
        // The end is logged first. A session that has lost some of its locks or space must not
        // reconnect.
        if let Some(ended) = &ended {
            self.log_detach(ended);
        }
        self.drop_caches(session);
        self.store.prior_sessions.end(session);
        self.drop_grants(session);
        self.each_shard(|meta| {
            let shard = meta.namespace.inodes_mut().only();
            for ino in shard.orphans.end_session(session) {
                meta.orphan_released(session, ino);
            }
            let shard = meta.namespace.inodes_mut().only();
            for (ino, last) in shard.open_files.end_session(session) {
                meta.lease_ended(session, ino, last);
                if !last {
                    // The session may have ended between the bytes of a write and the new size.
                    meta.sweep_tail(ino);
                }
            }
        });
        self.send_grants();
        self.store.space.tidy();
        if let (Some(journal), Some(ended)) = (&self.store.journal, &ended) {
            journal.quota.end(ended.log_quota());
        }
    }

    pub(super) fn attach(
        &self,
        session: u64,
        (version, client): (u32, &str),
        options: AttachOptions,
    ) -> Result<Reply, Errno> {
        if version != VERSION {
            log::warn!("session {session}: {client:?} uses protocol version {version}, the server {VERSION}");
            return Err(Errno::EPROTO);
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
        if self.log_attach(&asker).is_err() {
            asker.detach();
            self.drop_caches(session);
            return Err(Errno::ENOSPC);
        }
        log::debug!("session {session}: {client:?} attached{}", if options.alone { ", alone" } else { "" });
        Ok(Reply::Attached(self.attached(session, regions, false)))
    }
}
