//! Requests of mounts that come back: carried out once, and sessions that go on over another connection.
//!
//! Threading: as the dispatcher. A reply is noted before anybody hears it, also one that is held back until others have dropped what it
//! changed; a repetition waits for the same.

use std::borrow::Cow;

use rfs_proto::{Attached, Errno, Layout, Opened, Reply, Request};

use super::{Dispatcher, Outcome, Promise, outcome::Debt, room::SLOT};
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
    /// It is the server's before: nobody knows for whom it was to wait.
    before: bool,
}

/// A reply as it is kept, and logged.
pub(super) fn short(reply: &Reply) -> Cow<'_, Reply> {
    match reply {
        Reply::Opened(opened) if opened.layout.extents.len() > KEPT_EXTENTS => {
            let extents = opened.layout.extents[..KEPT_EXTENTS].to_vec();
            let layout = Layout { extents, complete: false, ..opened.layout };
            Cow::Owned(Reply::Opened(Opened { attr: opened.attr, layout }))
        }
        _ => Cow::Borrowed(reply),
    }
}

/// Whether the reply to a request may wait for other sessions. Those of the others come at once, whatever became of them: a mount repeats
/// them before it says of anything that it keeps it no longer.
fn may_wait(request: &Request<'_>) -> bool {
    !matches!(
        request,
        Request::Close { .. }
            | Request::Forget { .. }
            | Request::Open { write: false, .. }
            | Request::Lock { .. }
            | Request::StopWaiting { .. }
    )
}

impl KeptReply {
    fn of(outcome: &Outcome) -> KeptReply {
        let (reply, needs) = match outcome {
            Outcome::Now(reply) => (reply, &[][..]),
            Outcome::Later(Promise(Debt::Held(reply, needs, _))) => (reply, &needs[..]),
            // Those are asked for without a number.
            Outcome::Later(Promise(Debt::Recalls(_) | Debt::Grants(_))) => {
                (&Reply::Error(Errno::EPROTO), &[][..])
            }
        };
        KeptReply { reply: short(reply).into_owned(), needs: needs.to_vec(), before: false }
    }

    /// One that the server before has logged.
    pub(super) fn of_before(reply: Reply) -> KeptReply {
        KeptReply { reply, needs: Vec::new(), before: true }
    }

    fn outcome(self) -> Outcome {
        match self.needs.is_empty() {
            true => Outcome::Now(self.reply),
            // The reply that is held already has the file swept.
            false => Outcome::Later(Promise(Debt::Held(self.reply, self.needs, None))),
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
        let turn = {
            let mut replies = asker.replies();
            if let Some(journal) = &self.store.journal {
                let room = SLOT * replies.lacks(slot);
                if !journal.room.is_left(room) {
                    log::warn!("session {session}: no room to log replies of slot {slot}");
                    return Outcome::Now(Reply::Error(Errno::ENOSPC));
                }
                journal.room.take(asker.told(), room);
            }
            replies.begin(slot, sequence)
        };
        match turn {
            Ok(Turn::First) => {
                let outcome = self.handle_numbered(session, request, Some((slot, sequence)));
                asker.replies().end(slot, sequence, KeptReply::of(&outcome));
                outcome
            }
            Ok(Turn::Again(kept)) if kept.before => {
                // Whoever may still have what was changed has to drop it first.
                let needs = if may_wait(&request) { self.recall_all_but(session) } else { Vec::new() };
                KeptReply { needs, ..kept }.outcome()
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
        self.back_from_before(session);
        Reply::Attached(self.attached(session, regions, true))
    }

    /// True if a session is attached, and is not to end.
    pub fn is_attached(&self, session: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.is_attached())
    }

    pub(super) fn attached(
        &self,
        session: u64,
        Regions { arena, table, sums }: Regions,
        resumed: bool,
    ) -> Attached {
        let (memory, starts) = self.memory;
        let now = self.clock.now();
        let confined = self.sessions.get(session).is_some_and(|session| !session.squash().is_nobody());
        Attached { arena, table, sums, now, session, read_only: false, memory, starts, resumed, confined }
    }
}
