//! A remote that reconnects: it replaces a lost session and continues.
//!
//! The server keeps a mount's state under the mount's identity for one lease
//! (`docs/design/protocol.md`, Attach). So a resumed session has its open files, locks and recalls.
//! Operations in flight at the loss have an unknown outcome. The client repeats one-sided
//! operations, because a second execution leads to the same state. Requests that change state carry
//! a slot number, and the server answers a repetition from its reply cache.
//!
//! If the server has dropped the mount's state but not its memory, a new *epoch* begins:
//! [`Reclaimer`] reclaims the state before other threads use the session. Changes and places of
//! the old epoch fail. If the memory is another one, all operations fail.
//!
//! # Concurrency
//! One thread makes sessions. Other threads use the current session, and wait at most one
//! operation timeout for the next. `started`, `slots` and `state` are held briefly, never nested.

mod kept_calls;
pub(crate) mod reconnect_thread;
mod remote;
mod request_slots;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};
use rdmabox::{Cancel, RequestError, WcStatus};
use rfs_proto::{Attached, Identity, SLOTS};
use rustix::time::{ClockId, clock_gettime};

use reconnect_thread::{Reclaimer, SessionFactory};
use request_slots::{RequestSlots, SlotSeq};

use crate::{
    remote::kept_state::{KeptCalls, KeptState, RequestScope},
    remote::{
        Remote,
        address::{Epoch, Regions},
        final_loss::FinalLoss,
        operation::Access,
    },
};

/// Interval at which an unbounded wait checks its cancel flag.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Pause while a queue pair is replaced.
const QP_RECOVERY_PAUSE: Duration = Duration::from_millis(1);

/// A session and its epoch.
struct Link {
    remote: Arc<dyn Remote>,
    epoch: Epoch,
    lost: AtomicBool,
}

/// A place of another epoch.
struct StalePlace;

impl Link {
    /// Checks that all places are of the epoch of this session.
    fn check(&self, access: &Access<'_, '_>) -> Result<(), StalePlace> {
        if access.all(|place| place.epoch == self.epoch) { Ok(()) } else { Err(StalePlace) }
    }
}

/// State of the current session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// A session is in use.
    Up,
    /// The session was lost at this time.
    Down(Instant),
    /// No session will follow.
    Over,
}

/// The sessions that may carry out a call.
#[derive(Clone, Copy, Debug)]
enum AllowedEpoch {
    /// Any session.
    Any,
    /// Sessions of the epoch of the first attempt, because the call changes state.
    First,
    /// Sessions of this epoch.
    Only(Epoch),
}

/// A started call, without a waiting thread.
struct StartedCall {
    number: SlotSeq,
    envelope: Vec<u8>,
    /// False while the starting thread may still send it. The call keeps its slot until then.
    is_sent: bool,
    /// The kernel's request that it belongs to, if its state is kept.
    scope: Option<Arc<RequestScope>>,
}

/// A remote that reconnects. See the module documentation.
pub(super) struct ReconnectingSession {
    factory: Box<dyn SessionFactory>,
    /// Identity of the server's memory, from the first session.
    memory: Identity,
    session: AtomicU64,
    /// Number of servers that the memory had had when the current session was made.
    server_starts: AtomicU64,
    regions: Regions,
    /// Number of the newest epoch.
    epoch: AtomicU32,
    /// Epoch of the session in use.
    epoch_in_use: AtomicU32,
    /// True while the client reclaims its state.
    is_reclaiming: AtomicBool,
    reclaimer: OnceLock<Box<dyn Reclaimer>>,
    /// Limit of an operation, with its waits.
    timeout: Duration,
    link: RwLock<Arc<Link>>,
    state: Mutex<Phase>,
    changed: Condvar,
    slots: Mutex<RequestSlots>,
    freed: Condvar,
    started: Mutex<Vec<StartedCall>>,
    /// Number of lists that may have been carried out more than once.
    repeats: AtomicU64,
    /// Number of reconnects.
    reconnects: AtomicU64,
    final_loss: Arc<FinalLoss>,
    /// State that outlives this process, if the mount does.
    kept: Option<Arc<KeptState>>,
    own: Weak<ReconnectingSession>,
}

/// Returns the time of a monotonic clock.
fn time_of(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    // Monotonic clocks are never negative.
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

impl fmt::Debug for ReconnectingSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconnectingSession").field("state", &*self.state.lock()).finish_non_exhaustive()
    }
}

impl ReconnectingSession {
    /// Wraps an attached first session. Starts the thread that makes the next ones. With `kept`, it
    /// notes its calls there, and continues the numbers of a previous process.
    pub(super) fn new(
        remote: Arc<dyn Remote>,
        attached: &Attached,
        timeout: Duration,
        factory: Box<dyn SessionFactory>,
        kept: Option<Arc<KeptState>>,
    ) -> std::io::Result<Arc<ReconnectingSession>> {
        let regions = Regions::of(attached);
        let link = Link { remote, epoch: Epoch(0), lost: AtomicBool::new(false) };
        let slots = match &kept {
            Some(kept) => {
                let taken: Vec<u32> = kept.calls().iter().map(|call| call.slot).collect();
                RequestSlots::continued(kept.sequences(), &taken)
            }
            None => RequestSlots::new(SLOTS),
        };
        let reconnecting = Arc::new_cyclic(|own: &Weak<ReconnectingSession>| ReconnectingSession {
            factory,
            memory: attached.memory,
            session: AtomicU64::new(attached.session),
            server_starts: AtomicU64::new(attached.starts),
            regions,
            epoch: AtomicU32::new(0),
            epoch_in_use: AtomicU32::new(0),
            is_reclaiming: AtomicBool::new(false),
            reclaimer: OnceLock::new(),
            timeout,
            link: RwLock::new(Arc::new(link)),
            state: Mutex::new(Phase::Up),
            changed: Condvar::new(),
            slots: Mutex::new(slots),
            freed: Condvar::new(),
            started: Mutex::default(),
            repeats: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            final_loss: Arc::default(),
            kept,
            own: Weak::clone(own),
        });
        if let Some(kept) = &reconnecting.kept {
            let owner: Weak<dyn KeptCalls> = Arc::downgrade(&reconnecting) as Weak<dyn KeptCalls>;
            kept.set_owner(owner);
        }
        let makes_sessions = Arc::clone(&reconnecting);
        thread::Builder::new().name("reconnect".into()).spawn(move || makes_sessions.run())?;
        Ok(reconnecting)
    }

    /// Sets the receiver of new epochs. Without it, no new epoch begins.
    pub(super) fn set_reclaimer(&self, reclaimer: Box<dyn Reclaimer>) {
        // Only the constructor's caller sets it, once.
        let _ = self.reclaimer.set(reclaimer);
    }

    /// Returns the reason why no session follows, once it is known.
    pub(super) fn final_loss(&self) -> Arc<FinalLoss> {
        Arc::clone(&self.final_loss)
    }

    /// Returns the session, and waits for one if needed. Fails at `deadline`, or once the session
    /// has been lost for one operation timeout.
    fn session(&self, deadline: Instant) -> Result<Arc<Link>, RequestError> {
        let link = Arc::clone(&self.link.read());
        if !link.lost.load(Ordering::Acquire) {
            return Ok(link);
        }
        let mut state = self.state.lock();
        loop {
            match *state {
                Phase::Up => return Ok(Arc::clone(&self.link.read())),
                Phase::Over => return Err(RequestError::Disconnected),
                Phase::Down(since) => {
                    let limit = deadline.min(since + self.timeout);
                    if self.changed.wait_until(&mut state, limit).timed_out() && *state != Phase::Up {
                        return Err(RequestError::Disconnected);
                    }
                }
            }
        }
    }

    /// Waits as [`session`](Self::session), without a deadline.
    fn wait_for_session(&self, cancel: &Cancel) -> Result<Arc<Link>, RequestError> {
        loop {
            if cancel.is_cancelled() {
                return Err(RequestError::Cancelled);
            }
            let mut state = self.state.lock();
            match *state {
                Phase::Up => return Ok(Arc::clone(&self.link.read())),
                Phase::Over => return Err(RequestError::Disconnected),
                Phase::Down(_) => self.changed.wait_for(&mut state, CANCEL_CHECK_INTERVAL),
            };
        }
    }

    /// Marks `link` as lost, if it is the current session.
    fn mark_lost(&self, link: &Arc<Link>) {
        let mut state = self.state.lock();
        if *state == Phase::Up && Arc::ptr_eq(link, &self.link.read()) {
            link.lost.store(true, Ordering::Release);
            *state = Phase::Down(Instant::now());
            self.changed.notify_all();
        }
    }

    /// Repeats a call until a session of an allowed epoch has carried it out. Does not send it
    /// again after `deadline`.
    fn call_until(
        &self,
        deadline: Instant,
        mut allowed: AllowedEpoch,
        mut call: impl FnMut(&dyn Remote) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        let mut is_sent = false;
        loop {
            let link = self.session(deadline)?;
            if is_sent && Instant::now() >= deadline {
                return Err(RequestError::Disconnected);
            }
            match allowed {
                AllowedEpoch::Any => {}
                AllowedEpoch::First => allowed = AllowedEpoch::Only(link.epoch),
                AllowedEpoch::Only(epoch) if epoch == link.epoch => {}
                AllowedEpoch::Only(_) => return Err(RequestError::Disconnected),
            }
            is_sent = true;
            match call(&*link.remote) {
                Err(RequestError::Disconnected) => self.mark_lost(&link),
                Err(RequestError::Timeout(after)) => {
                    self.mark_lost(&link);
                    return Err(RequestError::Timeout(after));
                }
                outcome => return outcome,
            }
        }
    }

    /// Repeats a one-sided operation until a session has carried it out, for at most one timeout.
    fn repeat_until_done(
        &self,
        mut operation: impl FnMut(&Link) -> Result<Result<(), RequestError>, StalePlace>,
    ) -> Result<(), RequestError> {
        // The timeout includes the time until the loss is detected. Nearly all operations succeed,
        // so the start time comes from the coarse clock, which is cheaper. The coarse clock is late
        // by at most one kernel tick, so the wait gets shorter, never longer.
        let started_at = time_of(ClockId::MonotonicCoarse);
        let left = || self.timeout.saturating_sub(time_of(ClockId::Monotonic).saturating_sub(started_at));
        loop {
            let mut link = Arc::clone(&self.link.read());
            if link.lost.load(Ordering::Acquire) {
                link = self.session(Instant::now() + left())?;
            }
            let Ok(outcome) = operation(&link) else { return Err(RequestError::Disconnected) };
            let is_recovering = match &outcome {
                Err(RequestError::Disconnected) => {
                    self.mark_lost(&link);
                    false
                }
                Err(
                    RequestError::Flushed
                    | RequestError::Completion(WcStatus::RetryExcErr | WcStatus::WrFlushErr),
                ) => true,
                _ => return outcome,
            };
            self.repeats.fetch_add(1, Ordering::Release);
            if left().is_zero() {
                return outcome;
            }
            if is_recovering {
                thread::sleep(QP_RECOVERY_PAUSE);
            }
        }
    }

    fn take_slot(&self, deadline: Instant) -> Result<SlotSeq, RequestError> {
        let mut slots = self.slots.lock();
        loop {
            if let Some(number) = slots.take() {
                return Ok(number);
            }
            if self.freed.wait_until(&mut slots, deadline).timed_out() {
                return Err(RequestError::Timeout(self.timeout));
            }
        }
    }

    fn release_slot(&self, number: SlotSeq) {
        if let Some(kept) = &self.kept {
            kept.end_call((number.slot, number.sequence));
        }
        self.slots.lock().release(number);
        self.freed.notify_one();
    }
}
