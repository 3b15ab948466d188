//! Calls that a next process of the mount repeats.
//!
//! A call is noted in the kept state before it is sent. It stays noted until the kernel has the
//! answer to its request. The server notes one reply per slot, so until then no other call gets the
//! slot.
//!
//! # Concurrency
//! Any thread. Takes no locks of its own.

use std::sync::{Arc, Weak};

use rdmabox::RequestError;
use rfs_proto::{Request, decode_request};

use crate::{
    remote::CallOptions,
    remote::kept_state::{KeptCalls, KeptReply, KeptState, RequestScope, current},
    session::reconnect::{AllowedEpoch, ReconnectingSession, request_slots::SlotSeq},
};

/// The request of the kernel that a call belongs to.
pub(super) struct CallScope {
    pub(super) kept: Arc<KeptState>,
    /// `None` for calls that twice equal once, and for those of other threads than session threads.
    pub(super) scope: Option<Arc<RequestScope>>,
    /// The kernel's number of the request, and the ordinal of the call in it.
    pub(super) place: (u64, u32),
}

/// Returns true for requests about locks: an owner that has a lock gets it again.
fn is_about_locks(request: &[u8]) -> bool {
    matches!(
        decode_request(request),
        Ok(Request::Lock { .. }
            | Request::StopWaiting { .. }
            | Request::Insist { .. }
            | Request::ConfirmLocks { .. })
    )
}

impl ReconnectingSession {
    /// Returns the scope of a call of the calling thread, if the state of the mount is kept.
    pub(super) fn scope_of(&self, request: &[u8]) -> Option<CallScope> {
        let kept = Arc::clone(self.kept.as_ref()?);
        let scope = current().filter(|_| !is_about_locks(request));
        let place = scope.as_ref().map_or((0, 0), |scope| (scope.unique(), scope.next_call()));
        Some(CallScope { kept, scope, place })
    }

    /// Returns the call of the previous process that a call of a repeated request stands for.
    pub(super) fn previous_call(&self, call: &CallScope, request: &[u8]) -> Option<KeptReply> {
        call.scope.as_ref()?;
        let previous = call.kept.replies().take(call.place.0, call.place.1)?;
        // The kind of a call that was too long to be kept is unknown.
        if previous.kind.is_none_or(|kind| Some(kind) == request.first().copied()) {
            return Some(previous);
        }
        // The request takes another way this time.
        self.release_slot(SlotSeq { slot: previous.slot, sequence: previous.sequence });
        None
    }

    /// Frees the slot of an answered call, or keeps it until its request is answered.
    pub(super) fn release_or_keep(&self, number: SlotSeq, scope: Option<&Arc<RequestScope>>) {
        let own: Weak<dyn KeptCalls> = Weak::clone(&self.own) as Weak<dyn KeptCalls>;
        if !scope.is_some_and(|scope| scope.keep_slot(&own, (number.slot, number.sequence))) {
            self.release_slot(number);
        }
    }

    /// Repeats the calls of the previous process. Replies to calls of requests that the kernel
    /// sends again wait for these requests.
    ///
    /// # Errors
    /// The session is lost.
    pub(crate) fn repeat_kept_calls(&self, is_repeated: impl Fn(u64) -> bool) -> Result<(), RequestError> {
        let Some(kept) = &self.kept else { return Ok(()) };
        for call in kept.calls() {
            let number = SlotSeq { slot: call.slot, sequence: call.sequence };
            let is_awaited = call.unique != 0 && is_repeated(call.unique);
            let kind = match decode_request(&call.envelope) {
                Ok(Request::Once { request, .. }) => request.first().copied(),
                _ if is_awaited => {
                    kept.replies().add(&call, None, None);
                    continue;
                }
                _ => {
                    self.release_slot(number);
                    continue;
                }
            };
            let deadline = std::time::Instant::now() + self.timeout;
            let mut reply = Vec::new();
            self.call_until(deadline, AllowedEpoch::First, |remote| {
                remote.call(&call.envelope, &mut reply, CallOptions::default())
            })?;
            match is_awaited {
                true => kept.replies().add(&call, kind, Some(reply)),
                false => self.release_slot(number),
            }
        }
        Ok(())
    }
}

impl KeptCalls for ReconnectingSession {
    fn end_calls(&self, slots: &[(u32, u64)]) {
        slots.iter().for_each(|&(slot, sequence)| self.release_slot(SlotSeq { slot, sequence }));
    }
}
