//! Calls by fetching at the host: what a thread that looks at the requests does with them, and what a ring does.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use super::{Endpoint, Shared, Work, check_length, glance, handle};
use crate::{
    rpc::{
        CALL_SLOTS, Header, Kind, Later, Reason, Reply,
        fetch::{AnswerKind, Between, HostSlots, Rung, Vigil, Watched},
    },
    verbs::WorkCompletion,
};

/// A session that fetches.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) slots: Arc<HostSlots>,
    vigil: Vigil,
}

impl Fetched {
    pub(super) fn new(slots: Arc<HostSlots>) -> Fetched {
        Fetched { slots, vigil: Vigil::default() }
    }
}

impl Endpoint {
    /// The client rings: for a call that the host sleeps through, or that takes its time.
    pub(super) fn rung(self: &Arc<Self>, header: Header, work: &mut Work) -> Result<(), String> {
        let fetched = self.fetched.as_ref().ok_or("a ring on a session whose calls are not fetched")?;
        match fetched.slots.ring(header.slot, header.number, &mut work.request)? {
            Rung::Take => self.carry_out(fetched, header.slot, work),
            Rung::Wait => Ok(()),
            Rung::Answered => self.reply(Header { kind: Kind::InMemory, ..header }, &[]),
        }
    }

    /// Carries out the call in `slot`, whose request has been taken.
    fn carry_out(self: &Arc<Self>, fetched: &Fetched, slot: usize, work: &mut Work) -> Result<(), String> {
        let make_later = || {
            fetched.slots.put_off(slot);
            self.fetched_later(slot)
        };
        let mut reply = Reply::new(&mut work.reply, &make_later);
        self.handler.call(&work.request, &mut reply)?;
        if reply.is_deferred() {
            return self.late.check();
        }
        self.give(slot, Some(&reply))
    }

    /// Answers the call in `slot`, or says that nobody will: in memory, or with a message if the client waits for one.
    fn give(&self, slot: usize, answer: Option<&[u8]>) -> Result<(), String> {
        let bytes = answer.unwrap_or_default();
        check_length(bytes)?;
        let (in_memory, kind) = match answer {
            Some(_) => (AnswerKind::Plain, Kind::Plain),
            None => (AnswerKind::Unanswered, Kind::Unanswered),
        };
        match &self.fetched {
            Some(fetched) if fetched.slots.answer(slot, in_memory, bytes) => {
                self.reply(Header { kind, ..Header::plain(slot) }, bytes)
            }
            _ => Ok(()),
        }
    }

    /// The debt of a reply to the call in `slot`.
    fn fetched_later(self: &Arc<Self>, slot: usize) -> Later {
        self.late.owe();
        let endpoint = Arc::downgrade(self);
        Later::new(move |answer| {
            // Without the session nobody looks.
            let Some(endpoint) = endpoint.upgrade() else { return };
            endpoint.late.paid();
            if endpoint.is_over() {
                return;
            }
            if let Err(reason) = endpoint.give(slot, answer) {
                endpoint.handler.end(Reason::Misbehaved(&reason));
            }
        })
    }
}

impl Watched for Endpoint {
    type Work = Work;

    #[inline]
    fn serve(self: &Arc<Self>, work: &mut Work) -> bool {
        let Some(fetched) = self.fetched.as_ref().filter(|_| !self.is_over()) else { return false };
        let mut found = false;
        for slot in 0..CALL_SLOTS {
            let served = match fetched.slots.take(slot, &mut work.request) {
                Ok(false) => continue,
                Ok(true) => self.carry_out(fetched, slot, work),
                Err(nonsense) => Err(nonsense),
            };
            found = true;
            if let Err(reason) = served {
                self.over.store(true, Ordering::Release);
                self.handler.end(Reason::Misbehaved(&reason));
                break;
            }
        }
        found
    }

    fn mark(&self, awake: bool) {
        if let Some(fetched) = &self.fetched {
            fetched.slots.mark(awake);
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn vigil(&self) -> Option<&Vigil> {
        self.fetched.as_ref().map(|fetched| &fetched.vigil)
    }

    fn core(&self) -> Option<usize> {
        self.fetched.as_ref().and_then(|fetched| fetched.slots.core())
    }
}

/// Between two turns the thread takes a message, if no other thread waits for one.
pub(super) struct Meanwhile<'a>(pub(super) &'a Shared);

impl Between<Work> for Meanwhile<'_> {
    fn turn(&self, work: &mut Work) -> bool {
        let message: Option<WorkCompletion> = glance(self.0);
        if let Some(wc) = message {
            handle(self.0, &wc, work);
        }
        !self.0.stop.load(Ordering::Acquire)
    }

    fn keep_off(&self, work: &mut Work, cores: impl Iterator<Item = usize> + Clone) {
        work.apart.keep_off(cores, Instant::now);
    }

    fn over(&self, work: &mut Work) {
        work.apart.over();
    }
}
