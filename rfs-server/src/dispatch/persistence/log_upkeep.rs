//! Maintenance of the log: rewrites, waits until one is due, and the end of previous sessions.
//!
//! # Concurrency
//! One thread at a time rewrites the log, beside requests. The rest is as in the dispatcher.

use std::time::Instant;

use parking_lot::Mutex;

use super::{recovery::Damage, session_log::SessionLog};
use crate::{
    dispatch::{
        state::{export::ExportState, shards::SHARDS, store::Store},
        transaction::{locked_inodes::Plan, view::ReadView},
    },
    memory_object::log::Full,
    session::registry::Sessions,
    space::quarantine::ABANDONED_SESSIONS,
};

/// Keeps the log short and complete.
#[derive(Clone, Copy)]
pub struct LogUpkeep<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) sessions: &'a Sessions,
    /// Sessions of previous servers that do not reconnect.
    pub(in crate::dispatch) abandoned: &'a Mutex<Vec<u64>>,
}

impl<'a> LogUpkeep<'a> {
    pub(in crate::dispatch) fn of(export: &'a ExportState) -> LogUpkeep<'a> {
        LogUpkeep { store: &export.store, sessions: &export.sessions, abandoned: &export.abandoned }
    }

    fn session_log(self) -> SessionLog<'a> {
        SessionLog { store: self.store, sessions: self.sessions, abandoned: self.abandoned }
    }

    /// Rewrites a log that is long or incomplete. A `restored` memory needs a complete log.
    pub(in crate::dispatch) fn rewrite_at_start(self, restored: bool) -> Result<(), Damage> {
        let is_incomplete = self.store.journal.as_ref().is_some_and(|j| j.log().is_incomplete());
        if !self.has_long_log() && !is_incomplete {
            return Ok(());
        }
        match self.write_log_anew() {
            // There is no other copy of the state.
            Err(e) if restored => return Err(e.into()),
            // Without room for a new log, files can still be read.
            Err(e) => log::error!("log rewrite failed: {e}"),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Records that sessions of previous servers that do not reconnect cannot reach memory any
    /// more. Releases their space and open files.
    pub fn before_is_over(self) {
        self.session_log().end_abandoned();
        self.store.space.end_previous_sessions();
        self.store.each_shard(|meta| {
            for (ino, last) in meta.namespace.inodes_mut().only().open_files.end_session(ABANDONED_SESSIONS) {
                meta.note_last_close(ABANDONED_SESSIONS, ino, last);
            }
        });
        self.store.space.tidy();
    }

    /// Returns whether the log is so long that it is worth rewriting.
    pub fn has_long_log(self) -> bool {
        self.store.journal.as_ref().is_some_and(|journal| journal.log().is_long() || journal.is_behind())
    }

    /// Blocks until the memory object needs maintenance: until `deadline`, or, if `growth` is set,
    /// until the log has grown. Returns false when the server stops.
    pub(crate) fn await_upkeep(self, deadline: Option<Instant>, growth: bool) -> bool {
        self.store.journal.as_ref().is_some_and(|journal| journal.log().await_growth(deadline, growth))
    }

    /// Ends all waits for maintenance.
    pub(crate) fn end_upkeep(self) {
        if let Some(journal) = &self.store.journal {
            journal.log().end_waiting();
        }
    }

    /// Returns true if no session, old or new, has a file open, and all changes are logged.
    pub(crate) fn is_settled(self) -> bool {
        let mut open = false;
        self.store.each_shard(|meta| open |= !meta.namespace.inodes_mut().only().open_files.is_empty());
        !open
            && !self.store.space.has_previous_sessions()
            && !self.store.journal.as_ref().is_some_and(|journal| journal.is_behind())
    }

    /// Rewrites the log, shard by shard, while requests go on. Their changes are appended behind
    /// the descriptions. One thread at a time may call this.
    ///
    /// # Errors
    /// No room. The old log and the beginning of the new log stay; together they contain
    /// everything.
    pub fn write_log_anew(self) -> Result<(), Full> {
        let Some(journal) = &self.store.journal else { return Ok(()) };
        // A change that the log has missed until now is described below, after its shard is
        // unlocked.
        let behind = journal.times_behind();
        journal.log().exchange();
        for at in 0..SHARDS {
            let describe = |look: &mut ReadView<'_>| {
                let shard = look.namespace.inodes_mut().only();
                journal.describe(shard.inodes.iter().map(|(&ino, inode)| (ino, inode)))?;
                let returns =
                    |session| self.sessions.get(session).is_some_and(|session| session.reconnects());
                journal.describe_opens(&shard.open_files, returns)
            };
            self.store.transact(Plan::shard(at), None, describe).0?;
        }
        journal.count(self.store.shards.last_number(), self.store.table.used_slots())?;
        self.session_log().describe(journal)?;
        journal.log().complete()?;
        journal.caught_up(behind);
        Ok(())
    }
}
