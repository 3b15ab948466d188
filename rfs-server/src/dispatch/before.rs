//! The sessions of the server before, of mounts that come back: they are as they were but for two things that nobody knows. Who waits
//! for a lock asks for it again; and as anything may be kept, everything is recalled from those who keep, at the latest when
//! one of them is back or when somebody changes something.
//!
//! Threading: a server that starts has everything to itself; for the rest as the dispatcher.

use std::sync::Arc;

use rfs_proto::{Identity, Recall, decode_reply};

use super::{
    BEFORE, Dispatcher, KeptReply,
    held::Plan,
    meta::Meta,
    recover::Damage,
    room::{OPEN, SESSION, SLOT},
};
use crate::{
    durable::{
        before::{Returning, Session},
        log::Full,
        op::Op,
    },
    recalls::Need,
    rights::Rights,
    sessions::{self, Credentials, Manner},
};

/// A mount that was attached to the server before, and is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Its session.
    pub session: u64,
    /// Which one.
    pub mount: Identity,
    /// Who it is.
    pub credentials: Credentials,
}

/// Bits of a session's number that are its connection's. The others, of 48 that an appender's word has, are the start's.
const CONNECTION_BITS: u32 = 32;
const START_BITS: u32 = 16;

impl Dispatcher {
    /// The number of a session, by the number of its connection: no session of a server before has had it.
    pub fn session_number(&self, connection: u64) -> u64 {
        let start = self.memory.1.wrapping_sub(1) & ((1 << START_BITS) - 1);
        start << CONNECTION_BITS | connection
    }

    /// The number of its connection, if it has come to this server.
    pub fn connection_of(session: u64) -> u64 {
        session & ((1 << CONNECTION_BITS) - 1)
    }

    /// A session is there again, with all that it has but for its locks.
    pub(super) fn restore(&self, id: u64, returning: Returning, has: Session) -> Result<(), Damage> {
        let Returning { mount, key, writes, keeps, alone } = returning;
        let damage = || Damage::Session(id);
        let key = key.map(|key| key.parse()).transpose().map_err(|_| damage())?;
        let rights = if writes { Rights::Write } else { Rights::Read };
        let manner = Manner { keeps, alone, mount: Some(mount) };
        let session = self.sessions.restore(id, Credentials { key, rights }, manner);
        if let Some(journal) = &self.store.journal {
            // Whatever there was room for.
            let slots = has.turns.keys().next_back().map_or(0, |&slot| u64::from(slot) + 1);
            let room = SESSION + SLOT * slots + OPEN * has.opens.len() as u64;
            journal.room.take(session.told(), room);
            if !has.part.is_empty() {
                journal.room.take_part(session.told(), has.part.len());
            }
        }
        *session.part() = has.part;
        for (slot, (sequence, logged)) in has.turns {
            let reply = decode_reply(&logged).map_err(|_| damage())?;
            session.replies().restore(slot, sequence, KeptReply::of_before(reply), logged);
        }
        for (ino, open) in has.opens {
            let restore = |meta: &mut Meta<'_>| meta.leases_mut(ino).restore(id, ino, open);
            self.store.once(Plan::new(&[ino]), None, restore);
        }
        if keeps {
            self.store.pending.locked(|state| {
                state.recalls.restore(id);
                // Nobody else changes what one keeps who is alone.
                state.unknown.extend((!alone).then_some(id));
            });
        }
        Ok(())
    }

    /// The mounts that were attached to the server before, by their sessions. To be asked before anybody attaches to this one.
    pub fn awaited(&self) -> Vec<Awaited> {
        let awaited = |session: Arc<sessions::Session>| {
            let mount = session.mount()?;
            Some(Awaited { session: session.id(), mount, credentials: session.credentials() })
        };
        let mut all: Vec<Awaited> = self.sessions.all().into_iter().filter_map(awaited).collect();
        all.sort_unstable_by_key(|awaited| awaited.session);
        all
    }

    /// These were attached to the servers before, and do not come back.
    pub(super) fn wait_for_strangers(&self, strangers: Vec<u64>) -> Result<(), Full> {
        if let Some(journal) = &self.store.journal
            && strangers.contains(&BEFORE)
        {
            // The log is of a version that did not say so.
            journal.tell(&Op::Stranger(BEFORE))?;
        }
        *self.strangers.lock() = strangers;
        Ok(())
    }

    /// Whether sessions of the servers before that do not come back may still reach something.
    pub fn waits_for_strangers(&self) -> bool {
        !self.strangers.lock().is_empty()
    }

    /// A mount is back at its session. If that is one of the server before, it is told what this one does not know.
    pub(super) fn back_from_before(&self, session: u64) {
        if let Some(session) = self.sessions.get(session)
            && session.is_of_before()
        {
            session.ask_again();
        }
        self.recall_all(|other| other == session);
    }

    /// Recalls everything from all sessions of before but one that have not dropped it. What is to be waited for then.
    pub(super) fn recall_all_but(&self, session: u64) -> Vec<Need> {
        self.recall_all(|other| other != session);
        self.store.pending.open(session, |recall| *recall == Recall::All)
    }

    fn recall_all(&self, which: impl Fn(u64) -> bool) {
        let mut due = Vec::new();
        let told = self.store.pending.locked(|state| {
            let told: Vec<u64> = state.unknown.iter().copied().filter(|&session| which(session)).collect();
            state.recall_all(which);
            told.iter().for_each(|&session| state.answer_asker(session, &mut due));
            !told.is_empty()
        });
        if told {
            self.store.alarm.recalled();
        }
        self.store.send(due);
    }
}
