//! The [`Remote`] of a client that reconnects: a session without an end.
//!
//! # Concurrency
//! Any number of threads. Waits of the module happen in [`super`]; no lock is held over an
//! operation.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use rdmabox::{Cancel, Memory, RequestError, Until};
use rfs_proto::{Request, encode_request};

use crate::{
    remote::{
        CallOptions, Epochs, Remote, ReplyWait, Status,
        address::{Epoch, Region},
        operation::{Access, Transfer},
    },
    session::reconnect::{
        AllowedEpoch, Phase, ReconnectingSession, StartedCall, reconnect_thread, request_slots::SlotSeq,
    },
};

/// Maximum number of started calls that may have to be repeated.
const MAX_STARTED_CALLS: usize = 64;

thread_local! {
    /// Buffer for one request in its envelope.
    static ENVELOPE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn encode_envelope(SlotSeq { slot, sequence }: SlotSeq, request: &[u8], envelope: &mut Vec<u8>) {
    encode_request(&Request::Once { slot, sequence, request }, envelope);
}

impl ReconnectingSession {
    /// Calls under a slot number, by which the server recognizes a repetition.
    fn call_in_slot(
        &self,
        allowed: AllowedEpoch,
        request: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        let deadline = Instant::now() + self.timeout;
        let scope = self.scope_of(request);
        let previous = scope.as_ref().and_then(|scope| self.previous_call(scope, request));
        let number = match &previous {
            Some(previous) => SlotSeq { slot: previous.slot, sequence: previous.sequence },
            None => self.take_slot(deadline)?,
        };
        let outcome = match previous.and_then(|previous| previous.reply) {
            Some(known) => {
                *reply = known;
                Ok(())
            }
            None => ENVELOPE.with_borrow_mut(|envelope| {
                encode_envelope(number, request, envelope);
                if let Some(scope) = &scope {
                    scope.kept.begin_call((number.slot, number.sequence), scope.place, envelope);
                }
                self.call_until(deadline, allowed, |remote| {
                    remote.call(envelope, reply, CallOptions::default())
                })
            }),
        };
        self.release_or_keep(number, scope.and_then(|scope| scope.scope).as_ref());
        outcome
    }

    /// Calls until the session ends or `cancel` is cancelled, in `epoch` only if given.
    fn call_waiting(
        &self,
        epoch: Option<Epoch>,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError> {
        let options = CallOptions { wait: ReplyWait::Cancellable(cancel), ..CallOptions::default() };
        loop {
            let link = self.wait_for_session(cancel)?;
            if epoch.is_some_and(|epoch| link.epoch != epoch) {
                // The caller has to make a request of the new epoch.
                return Err(RequestError::Disconnected);
            }
            match link.remote.call(request, reply, options) {
                Err(RequestError::Disconnected | RequestError::Timeout(_)) => self.mark_lost(&link),
                outcome => return outcome,
            }
        }
    }

    /// Sends a request under a slot number, without waiting for the reply.
    fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        if self.started.lock().len() >= MAX_STARTED_CALLS {
            self.finish_calls()?;
        }
        let deadline = Instant::now() + self.timeout;
        let call = self.scope_of(request);
        let previous = call.as_ref().and_then(|call| self.previous_call(call, request));
        let number = match &previous {
            Some(previous) => SlotSeq { slot: previous.slot, sequence: previous.sequence },
            None => self.take_slot(deadline)?,
        };
        if previous.is_some_and(|previous| previous.reply.is_some()) {
            // The server has carried it out.
            self.release_or_keep(number, call.and_then(|call| call.scope).as_ref());
            return Ok(());
        }
        let mut envelope = Vec::new();
        encode_envelope(number, request, &mut envelope);
        if let Some(call) = &call {
            call.kept.begin_call((number.slot, number.sequence), call.place, &envelope);
        }
        // The call is on the list before it is sent: a reconnect repeats it from there.
        let scope = call.and_then(|call| call.scope);
        let started = StartedCall { number, envelope: envelope.clone(), is_sent: false, scope };
        self.started.lock().push(started);
        let options = CallOptions { wait: ReplyWait::None, ..CallOptions::default() };
        let send = |remote: &dyn Remote| match self.is_started(number) {
            true => remote.call(&envelope, &mut Vec::new(), options),
            // The call was for an epoch that has ended. Another request may have its slot.
            false => Ok(()),
        };
        let outcome = self.call_until(deadline, AllowedEpoch::First, send);
        let mut started = self.started.lock();
        started.iter_mut().filter(|call| call.number == number).for_each(|call| call.is_sent = true);
        drop(started);
        match outcome {
            Err(RequestError::Disconnected | RequestError::Timeout(_)) if !self.is_over() => Ok(()),
            outcome => outcome,
        }
    }

    fn is_started(&self, number: SlotSeq) -> bool {
        self.started.lock().iter().any(|call| call.number == number)
    }

    fn is_over(&self) -> bool {
        *self.state.lock() == Phase::Over
    }
}

impl Remote for ReconnectingSession {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        CallOptions { once, epoch, wait }: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        match wait {
            ReplyWait::Cancellable(cancel) => return self.call_waiting(epoch, request, reply, cancel),
            ReplyWait::None => return self.start_call(request),
            ReplyWait::Bounded => {}
        }
        let allowed = match (epoch, once) {
            (Some(epoch), _) => AllowedEpoch::Only(epoch),
            // The call changes state.
            (None, true) => AllowedEpoch::First,
            (None, false) => AllowedEpoch::Any,
        };
        if once {
            return self.call_in_slot(allowed, request, reply);
        }
        let deadline = Instant::now() + self.timeout;
        self.call_until(deadline, allowed, |remote| remote.call(request, reply, CallOptions::default()))
    }

    fn call_all(
        &self,
        epoch: Epoch,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        let deadline = Instant::now() + self.timeout;
        self.call_until(deadline, AllowedEpoch::Only(epoch), |remote| {
            remote.call_all(epoch, requests, replies)
        })
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        let sent = |call: &StartedCall| call.is_sent.then_some(call.number);
        let known: Vec<SlotSeq> = self.started.lock().iter().filter_map(sent).collect();
        let deadline = Instant::now() + self.timeout;
        self.call_until(deadline, AllowedEpoch::Any, |remote| remote.finish_calls())?;
        let mut done = Vec::new();
        self.started.lock().retain_mut(|started| {
            let over = known.contains(&started.number);
            if over {
                done.push((started.number, started.scope.take()));
            }
            !over
        });
        done.into_iter().for_each(|(number, scope)| self.release_or_keep(number, scope.as_ref()));
        Ok(())
    }

    fn access(&self, access: &mut Access<'_, '_>) -> Result<(), RequestError> {
        self.repeat_until_done(|link| {
            link.check(access)?;
            Ok(link.remote.access(access))
        })
    }

    fn has_session_to(&self, store: u16) -> bool {
        let link = Arc::clone(&self.link.read());
        link.remote.has_session_to(store)
    }

    /// Starts each transfer once. The caller repeats a failed one.
    fn start(&self, mut transfers: Vec<Transfer>, until: Option<Until>) {
        let link = Arc::clone(&self.link.read());
        let stale = transfers.extract_if(.., |transfer| transfer.place().epoch != link.epoch);
        stale.for_each(|transfer| transfer.fail(RequestError::Disconnected));
        link.remote.start(transfers, until);
    }

    fn map(&self, region: Region) -> Option<(Arc<Memory>, usize)> {
        // The memory is the same in every session, or the remote has ended.
        let link = Arc::clone(&self.link.read());
        link.remote.map(region)
    }

    fn epochs(&self) -> Epochs {
        Epochs {
            newest: Epoch(self.epoch.load(Ordering::Acquire)),
            in_use: Epoch(self.epoch_in_use.load(Ordering::Acquire)),
            repeats: self.repeats.load(Ordering::Acquire),
        }
    }

    fn ready(&self) -> Result<(), RequestError> {
        // Every access to mapped memory asks: without a clock. The link's lock is not held, because
        // a session that fails now runs callbacks, which may take the lock.
        let link = Arc::clone(&self.link.read());
        if !link.lost.load(Ordering::Acquire) && link.remote.ready().is_ok() {
            return Ok(());
        }
        self.repeat_until_done(|link| Ok(link.remote.ready()))
    }

    fn status(&self) -> Status {
        let mut status = self.link.read().remote.status();
        let phase = self.state.lock().clone();
        status.is_connected = phase != Phase::Over;
        status.lost_since = match phase {
            Phase::Down(since) => Some(since),
            Phase::Up | Phase::Over => None,
        };
        status.final_loss = self.final_loss.reason();
        status.counters.push(("returns", self.reconnects.load(Ordering::Relaxed)));
        status
    }

    fn close(&self) {
        let before = self.end();
        let link = Arc::clone(&self.link.read());
        if before == Phase::Up {
            reconnect_thread::detach(&link.remote);
        }
        link.remote.close();
    }
}
