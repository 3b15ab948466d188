//! Requests of mounts that come back: carried out once, and sessions that go on over another connection.
//!
//! Threading: as the dispatcher. A reply is noted before anybody hears it, also one that is held back until others have dropped what it
//! changed; a repetition waits for the same.

use rfs_proto::{Attached, Errno, Reply, Request};

use super::{Dispatcher, Outcome, Promise, outcome::Debt};
use crate::{
    recalls::Need,
    replies::{OutOfTurn, Turn},
    sessions::Regions,
};

/// Extents of a reply that is kept. Who is told fewer than there are asks for the others.
const KEPT_EXTENTS: usize = 16;

/// What a request that is carried out once led to.
#[derive(Clone, Debug)]
pub struct KeptReply {
    reply: Reply,
    /// Whom it waits for.
    needs: Vec<Need>,
}

impl KeptReply {
    fn of(outcome: &Outcome) -> KeptReply {
        let (reply, needs) = match outcome {
            Outcome::Now(reply) => (reply, &[][..]),
            Outcome::Later(Promise(Debt::Held(reply, needs))) => (reply, &needs[..]),
            // Those are asked for without a number.
            Outcome::Later(Promise(Debt::Recalls(_) | Debt::Grants(_))) => {
                (&Reply::Error(Errno::EPROTO), &[][..])
            }
        };
        let mut reply = reply.clone();
        if let Reply::Opened(opened) = &mut reply
            && opened.layout.extents.len() > KEPT_EXTENTS
        {
            opened.layout.extents.truncate(KEPT_EXTENTS);
            opened.layout.complete = false;
        }
        KeptReply { reply, needs: needs.to_vec() }
    }

    fn outcome(self) -> Outcome {
        match self.needs.is_empty() {
            true => Outcome::Now(self.reply),
            false => Outcome::Later(Promise(Debt::Held(self.reply, self.needs))),
        }
    }
}

impl Dispatcher {
    /// Handles a request of a mount that comes back, unless it has been handled before under this number of this slot: then the
    /// outcome is that of then.
    pub fn handle_once(&self, session: u64, (slot, sequence): (u32, u64), request: Request<'_>) -> Outcome {
        let refused = || Outcome::Now(Reply::Error(Errno::EPROTO));
        let Some(asker) = self.sessions.get(session).filter(|s| s.comes_back() && s.is_attached()) else {
            return refused();
        };
        let turn = asker.replies().begin(slot, sequence);
        match turn {
            Ok(Turn::First) => {
                let outcome = self.handle(session, request);
                asker.replies().end(slot, sequence, KeptReply::of(&outcome));
                outcome
            }
            Ok(Turn::Again(kept)) => kept.outcome(),
            Err(OutOfTurn) => refused(),
        }
    }

    /// A mount is back, over a connection that names the memory like this. What it may not have heard is told again.
    pub fn resume(&self, session: u64, regions: Regions) -> Reply {
        if !self.is_attached(session) {
            return Reply::Error(Errno::EPROTO);
        }
        // Whoever asked over the connection before hears nothing any more.
        drop(self.store.grants.lock().resume(session));
        Reply::Attached(self.attached(session, regions, true))
    }

    /// True if a session is attached, and is not to end.
    pub fn is_attached(&self, session: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.is_attached())
    }

    pub(super) fn attached(
        &self,
        session: u64,
        Regions { arena, table }: Regions,
        resumed: bool,
    ) -> Attached {
        let (memory, starts) = self.memory;
        let now = self.clock.now();
        Attached { arena, table, now, session, read_only: false, memory, starts, resumed }
    }
}
