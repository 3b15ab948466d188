//! Logs the state of sessions for the next server.
//!
//! The log records which sessions are attached, their open files and locks, their last replies,
//! and the quarantined space that they can reach.
//!
//! # Concurrency
//! As the dispatcher. Changes of a session's state are logged by the transaction that makes them.
//! Attach is logged before the client gets its reply; detach is logged before the server releases
//! the session's files and locks. Both hold `journal.sessions`. A rewrite of the log describes
//! sessions after inodes. So it includes each change that was logged before the rewrite began.

use parking_lot::Mutex;

use crate::{
    dispatch::state::{journal::Journal, store::Store},
    memory_object::{
        log::Full,
        op::{Mount, Op},
    },
    session::{
        access_mode::AccessMode,
        log_quota::{SESSION_BYTES, TRANSIENT_SESSION_BYTES},
        registry::{Session, Sessions},
    },
};

/// The number of locks that are described in one append.
const LOCKS: usize = 1024;

/// Logs which sessions there are, and their state.
#[derive(Clone, Copy)]
pub(in crate::dispatch) struct SessionLog<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) sessions: &'a Sessions,
    /// Sessions of previous servers that do not reconnect.
    pub(in crate::dispatch) abandoned: &'a Mutex<Vec<u64>>,
}

impl SessionLog<'_> {
    /// Logs that a session has attached.
    pub(in crate::dispatch) fn attached(self, session: &Session) -> Result<(), Full> {
        let Some(journal) = &self.store.journal else { return Ok(()) };
        let _one = journal.sessions.lock();
        // The session may have ended already, and its end may be in the log.
        match self.sessions.get(session.id()) {
            Some(_) => {
                let room = if session.reconnects() { SESSION_BYTES } else { TRANSIENT_SESSION_BYTES };
                if !journal.quota.is_left(room) {
                    log::warn!("session {}: refused: the log has no room for another session", session.id());
                    return Err(Full);
                }
                journal.quota.take(session.log_quota(), room);
                describe_one(session, &mut |op| journal.tell(&op))
            }
            None => Ok(()),
        }
    }

    /// Logs that a session has another version of the protocol than before.
    pub(in crate::dispatch) fn resumed(self, session: &Session) {
        let Some(journal) = &self.store.journal else { return };
        let _one = journal.sessions.lock();
        // The session may have ended already, and its end may be in the log.
        if self.sessions.get(session.id()).is_some()
            && let Err(full) = describe_mount(session, &mut |op| journal.tell(&op))
        {
            log::warn!("{full}: session {} keeps its version of the protocol there", session.id());
        }
    }

    /// Logs that a session has ended. The next server ignores everything that the log records of
    /// it.
    pub(in crate::dispatch) fn ended(self, session: &Session) {
        if let Some(journal) = &self.store.journal
            && session.has_attached()
        {
            let _one = journal.sessions.lock();
            if let Err(full) = journal.tell(&Op::Left(session.id())) {
                log::warn!("{full}: the next server will wait for session {}, which has ended", session.id());
            }
        }
    }

    /// Logs that the sessions of previous servers cannot reach memory any more.
    pub(in crate::dispatch) fn end_abandoned(self) {
        let Some(journal) = &self.store.journal else { return };
        let _one = journal.sessions.lock();
        for session in std::mem::take(&mut *self.abandoned.lock()) {
            if let Err(full) = journal.tell(&Op::Left(session)) {
                log::warn!("{full}: the next server will wait for session {session}, which has ended");
            }
        }
    }

    /// Logs the state of all sessions, without their open files, which are logged with the inodes.
    pub(in crate::dispatch) fn describe(self, journal: &Journal) -> Result<(), Full> {
        {
            let _one = journal.sessions.lock();
            journal.describe_ops(self.abandoned.lock().iter().map(|&session| Op::Abandoned(session)))?;
            for session in self.sessions.all().into_iter().filter(|session| session.has_attached()) {
                describe_one(&session, &mut |op| journal.describe_ops([op]))?;
            }
        }
        {
            let locks = self.store.locks();
            let held: Vec<_> = locks.held().collect();
            let ops =
                |some: &[_]| journal.describe_ops(some.iter().map(|&(ino, locked)| Op::Lock(ino, locked)));
            held.chunks(LOCKS).try_for_each(ops)?;
        }
        self.store.space.tell_quarantined(|ino, ranges, holders| {
            let ranges = ranges.iter().map(|range| (range.start, range.len)).collect();
            journal.describe_ops([Op::GivenUp(ino, ranges, holders.to_vec())])
        })
    }
}

/// Describes a session without its stored replies.
fn describe_mount(session: &Session, tell: &mut impl FnMut(Op<'_>) -> Result<(), Full>) -> Result<(), Full> {
    let (id, options) = (session.id(), session.options());
    let Some(mount) = options.mount else { return tell(Op::Abandoned(id)) };
    let credentials = session.credentials();
    let key = credentials.key.map(|key| key.to_string());
    tell(Op::Session(
        id,
        Mount {
            version: session.version(),
            mount,
            key: key.as_deref(),
            writes: credentials.rights == AccessMode::Write,
            keeps: options.keeps,
            alone: options.alone,
        },
    ))
}

fn describe_one(session: &Session, tell: &mut impl FnMut(Op<'_>) -> Result<(), Full>) -> Result<(), Full> {
    let id = session.id();
    describe_mount(session, tell)?;
    if session.mount().is_none() {
        return Ok(());
    }
    {
        let part = session.part();
        if !part.is_empty() {
            tell(Op::Part(id, &part))?;
        }
    }
    let replies = session.replies();
    replies.all_logged().try_for_each(|(slot, sequence, reply)| tell(Op::Turn(id, slot, sequence, reply)))
}
