//! What the next server has to know of sessions, as it goes to the log: who is attached, what he has open and locked, what his last
//! requests have led to, and what he can reach of what files have given up.
//!
//! Threading: as the dispatcher. What a session has is logged with the step that changes it; that it is there, and that it is gone, under a
//! lock of the journal, before anybody hears of the former, and before anything of what it has goes. A log that is written anew describes all of
//! it after the inodes: whatever was logged before that began had by then come to where it is found here.

use super::{
    Dispatcher,
    journal::Journal,
    room::{SESSION, STRANGER},
};
use crate::{
    durable::{
        log::Full,
        op::{Mount, Op},
    },
    rights::Rights,
    sessions::Session,
};

/// Locks in one transaction of those that need not be one.
const LOCKS: usize = 1024;

impl Dispatcher {
    /// A session has attached.
    pub(super) fn note_attached(&self, session: &Session) -> Result<(), Full> {
        let Some(journal) = &self.store.journal else { return Ok(()) };
        let _one = journal.sessions.lock();
        // Its end may have come, and have been logged.
        match self.sessions.get(session.id()) {
            Some(_) => {
                let room = if session.comes_back() { SESSION } else { STRANGER };
                if !journal.room.is_left(room) {
                    log::warn!("session {}: there are too many: no room to log what they have", session.id());
                    return Err(Full);
                }
                journal.room.take(session.told(), room);
                describe(session, &mut |op| journal.tell(&op))
            }
            None => Ok(()),
        }
    }

    /// A session has ended. What it has is as good as gone: the next server does not take up what is said of one that has left.
    pub(super) fn note_left(&self, session: &Session) {
        if let Some(journal) = &self.store.journal
            && session.has_attached()
        {
            let _one = journal.sessions.lock();
            if let Err(full) = journal.tell(&Op::Left(session.id())) {
                log::warn!("{full}: the next server waits for session {}", session.id());
            }
        }
    }

    /// Strangers of before can reach nothing any more.
    pub(super) fn note_strangers_left(&self) {
        let Some(journal) = &self.store.journal else { return };
        let _one = journal.sessions.lock();
        for session in std::mem::take(&mut *self.strangers.lock()) {
            if let Err(full) = journal.tell(&Op::Left(session)) {
                log::warn!("{full}: the next server waits for session {session}");
            }
        }
    }

    /// Logs all that there is of sessions but for what they have open, which is logged with the inodes.
    pub(super) fn describe_sessions(&self, journal: &Journal) -> Result<(), Full> {
        {
            let _one = journal.sessions.lock();
            journal.describe_ops(self.strangers.lock().iter().map(|&stranger| Op::Stranger(stranger)))?;
            for session in self.sessions.all().into_iter().filter(|session| session.has_attached()) {
                describe(&session, &mut |op| journal.describe_ops([op]))?;
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

fn describe(session: &Session, tell: &mut impl FnMut(Op<'_>) -> Result<(), Full>) -> Result<(), Full> {
    let (id, manner) = (session.id(), session.manner());
    let Some(mount) = manner.mount else { return tell(Op::Stranger(id)) };
    let credentials = session.credentials();
    let key = credentials.key.map(|key| key.to_string());
    tell(Op::Session(
        id,
        Mount {
            version: rfs_proto::VERSION,
            mount,
            key: key.as_deref(),
            writes: credentials.rights == Rights::Write,
            keeps: manner.keeps,
            alone: manner.alone,
        },
    ))?;
    {
        let part = session.part();
        if !part.is_empty() {
            tell(Op::Part(id, &part))?;
        }
    }
    let replies = session.replies();
    replies.all_logged().try_for_each(|(slot, sequence, reply)| tell(Op::Turn(id, slot, sequence, reply)))
}
