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

use rdmabox::{Cancel, Memory, Op, RemoteAddr, RequestError, Until};
use rfs_proto::{Request, encode_request};
use smallvec::SmallVec;

use crate::remote::{CallOptions, Epochs, Remote, Transfer};
use crate::session::reconnect::{
    AllowedEpoch, Phase, ReconnectingSession, StaleAddress, StartedCall, address_map::address_of,
    reconnect_thread, request_slots::SlotSeq,
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
        let number = self.take_slot(deadline)?;
        let outcome = ENVELOPE.with_borrow_mut(|envelope| {
            encode_envelope(number, request, envelope);
            self.call_until(deadline, allowed, |remote| remote.call(envelope, reply, CallOptions::default()))
        });
        self.release_slot(number);
        outcome
    }

    /// Calls until the session ends or `cancel` is cancelled, in `epoch` only if given.
    fn call_waiting(
        &self,
        epoch: Option<u32>,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError> {
        let options = CallOptions { cancel: Some(cancel), ..CallOptions::default() };
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
}

impl Remote for ReconnectingSession {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        CallOptions { once, epoch, cancel }: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        if let Some(cancel) = cancel {
            return self.call_waiting(epoch, request, reply, cancel);
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
        epoch: u32,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        let deadline = Instant::now() + self.timeout;
        self.call_until(deadline, AllowedEpoch::Only(epoch), |remote| remote.call_all(epoch, requests, replies))
    }

    fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        if self.started.lock().len() >= MAX_STARTED_CALLS {
            self.finish_calls()?;
        }
        let deadline = Instant::now() + self.timeout;
        let number = self.take_slot(deadline)?;
        let mut envelope = Vec::new();
        encode_envelope(number, request, &mut envelope);
        // The call is on the list before it is sent: a reconnect repeats it from there.
        self.started.lock().push(StartedCall { number, envelope: envelope.clone() });
        match self.call_until(deadline, AllowedEpoch::First, |remote| remote.start_call(&envelope)) {
            Err(RequestError::Disconnected | RequestError::Timeout(_)) if self.is_connected() => Ok(()),
            outcome => outcome,
        }
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        let known: Vec<SlotSeq> = self.started.lock().iter().map(|started| started.number).collect();
        self.call_until(Instant::now() + self.timeout, AllowedEpoch::Any, |remote| remote.finish_calls())?;
        let mut done = Vec::new();
        self.started.lock().retain(|started| {
            let over = known.contains(&started.number);
            if over {
                done.push(started.number);
            }
            !over
        });
        done.into_iter().for_each(|number| self.release_slot(number));
        Ok(())
    }

    fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError> {
        self.repeat_until_done(|link| {
            if link.addresses.is_identity() {
                return Ok(link.remote.write_vectored(parts));
            }
            let there = parts.iter().map(|(remote, data)| Some((link.addresses.translate(*remote)?, *data)));
            let there: SmallVec<[(RemoteAddr, &[u8]); 4]> =
                there.collect::<Option<_>>().ok_or(StaleAddress)?;
            Ok(link.remote.write_vectored(&there))
        })
    }

    fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError> {
        self.repeat_until_done(|link| {
            if link.addresses.is_identity() {
                return Ok(link.remote.read_vectored(parts));
            }
            let there =
                parts.iter_mut().map(|(remote, out)| Some((link.addresses.translate(*remote)?, &mut **out)));
            let mut there: SmallVec<[(RemoteAddr, &mut [u8]); 4]> =
                there.collect::<Option<_>>().ok_or(StaleAddress)?;
            Ok(link.remote.read_vectored(&mut there))
        })
    }

    /// Starts a transfer once. The caller repeats a failed one.
    fn start(&self, transfer: Transfer) {
        let link = Arc::clone(&self.link.read());
        let there = |remote| link.addresses.translate(remote);
        match transfer {
            Transfer::Read(remote, len, done) => match there(remote) {
                Some(there) => link.remote.start(Transfer::Read(there, len, done)),
                None => done(Err(RequestError::Disconnected)),
            },
            Transfer::Write(remote, data, done) => match there(remote) {
                Some(there) => link.remote.start(Transfer::Write(there, data, done)),
                None => done(Err(RequestError::Disconnected), data),
            },
        }
    }

    fn serve(&self, until: Option<Until>, act: &mut dyn FnMut()) {
        let link = Arc::clone(&self.link.read());
        link.remote.serve(until, act);
    }

    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        self.repeat_until_done(|link| {
            if link.addresses.is_identity() {
                return Ok(link.remote.execute(ops));
            }
            let here: SmallVec<[RemoteAddr; 8]> = ops.iter_mut().map(|op| *address_of(op)).collect();
            let there = here.iter().map(|here| link.addresses.translate(*here));
            let there: SmallVec<[RemoteAddr; 8]> = there.collect::<Option<_>>().ok_or(StaleAddress)?;
            ops.iter_mut().zip(&there).for_each(|(op, there)| *address_of(op) = *there);
            let outcome = link.remote.execute(ops);
            ops.iter_mut().zip(&here).for_each(|(op, here)| *address_of(op) = *here);
            Ok(outcome)
        })
    }

    fn epochs(&self) -> Epochs {
        Epochs {
            newest: self.epoch.load(Ordering::Acquire),
            in_use: self.epoch_in_use.load(Ordering::Acquire),
            repeats: self.repeats.load(Ordering::Acquire),
        }
    }

    fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        // The memory is the same in every session, or the remote has ended.
        let link = Arc::clone(&self.link.read());
        link.remote.map(link.addresses.translate(remote)?, len)
    }

    fn ready(&self) -> Result<(), RequestError> {
        self.repeat_until_done(|link| Ok(link.remote.ready()))
    }

    fn is_connected(&self) -> bool {
        *self.state.lock() != Phase::Over
    }

    fn description(&self) -> String {
        self.link.read().remote.description()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.link.read().remote.counters();
        counters.push(("returns", self.reconnects.load(Ordering::Relaxed)));
        counters
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
