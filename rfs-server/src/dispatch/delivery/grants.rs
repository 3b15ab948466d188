//! Delivers the outcomes of blocked lock requests to their sessions.
//!
//! # Concurrency
//! As the dispatcher.

use rfs_proto::{Errno, Granted, Reply};
use seeded_faults::seeded;

use crate::{
    dispatch::{
        state::{
            outcome::{DeferredReply, HeldReply, Outcome, Sender},
            store::Store,
        },
        transaction::{locked_inodes::Plan, view::WriteView},
    },
    locks::grant_queue::Grants,
    session::registry::Sessions,
};

/// Returns the next grants for a session, if it asks for them and there are any.
fn due_to(grants: &mut Grants<Sender>, session: u64) -> Option<(Sender, Reply)> {
    grants.answer(session).map(|(sender, granted)| (sender, Reply::Grants(granted)))
}

/// Delivers the outcomes of blocked lock requests.
#[derive(Clone, Copy)]
pub(in crate::dispatch) struct GrantDelivery<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) sessions: &'a Sessions,
}

impl GrantDelivery<'_> {
    /// Returns the next grants of a session, at once or when there are any.
    pub(in crate::dispatch) fn answer(self, session: u64) -> Outcome {
        if self.sessions.get(session).is_some_and(|session| session.take_ask_again()) {
            return Outcome::Now(Reply::AskAgain);
        }
        match self.store.grants.lock().next(session) {
            Some(granted) => Outcome::Now(Reply::Grants(granted)),
            None => Outcome::Deferred(HeldReply(DeferredReply::Grants(session))),
        }
    }

    /// Sends the outcomes of blocked lock requests to their sessions.
    pub(in crate::dispatch) fn send(self) {
        for answer in self.store.take_answers() {
            let (session, ticket) = answer.ticket;
            let Some(waiter) = self.sessions.get(session) else { continue };
            let outcome = answer.outcome.and_then(|()| {
                let granted = |meta: &mut WriteView<'_>| meta.granted(session, answer.ino);
                self.store.transact(Plan::new(&[answer.ino]), Some(&waiter), granted).0
            });
            let mut due = Vec::new();
            {
                let mut grants = self.store.grants.lock();
                // The end of the session clears its queue after this, so nothing is left behind.
                if waiter.is_attached() && !seeded!(WaiterForgotten) {
                    grants.push(session, Granted { ticket, outcome });
                    due.extend(due_to(&mut grants, session));
                }
            }
            self.store.send(due);
        }
    }

    /// Stores the request of a session for grants, and replies if there are any.
    pub(in crate::dispatch) fn wait(self, session: u64, sender: Sender) {
        let asker = self.sessions.get(session);
        let mut due = Vec::new();
        {
            let mut grants = self.store.grants.lock();
            if asker.is_some_and(|asker| asker.is_attached()) {
                let before = grants.wait(session, sender);
                due.extend(before.map(|sender| (sender, Reply::Error(Errno::EINTR))));
                due.extend(due_to(&mut grants, session));
            } else {
                due.push((sender, Reply::Error(Errno::EPROTO)));
            }
        }
        self.store.send(due);
    }

    /// Drops the grants of a session that is marked as ended, and ends its request.
    pub(in crate::dispatch) fn end(self, session: u64) {
        let asker = self.store.grants.lock().end(session);
        self.store.send(asker.map(|sender| (sender, Reply::Error(Errno::EPROTO))).into_iter().collect());
    }
}
