//! A remote that comes back: when its session is lost it makes another one, and goes on where it was.
//!
//! The server keeps what the mount has for the length of a lease, under the mount's identity (`rfs-proto/PROTOCOL.md`, Coming back). So
//! nothing is claimed again here: open files, locks, what is kept and what is recalled are as they were. What is left is that nobody
//! knows how an operation ended which was under way. One-sided ones are repeated, as they lead to the same; requests that change
//! something go under a number, and a repetition is answered as the first one was.
//!
//! If the server knows nothing of the mount any more, but has its files, a new *era* begins: the client is told so before anybody else uses
//! the session, and renews what it has ([`Renew`]). Requests of the era before that change something fail, as nobody knows whether they
//! were carried out, and places of then are refused. If the server's memory is another one, this remote is over: everything fails, and the log
//! says why. To go on would show an empty file system as if nothing had happened.
//!
//! Threading: one thread makes sessions. All others use the one that there is, and wait for the next one when it is lost: no longer than
//! an operation may take, and not at all once it has been lost for so long. Lock order: `started`, `slots` and `state`
//! are held for moments and never over each other.

mod again;
mod places;
mod remote;
mod slots;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};
use rdmabox::{Cancel, RequestError, WcStatus};
use rfs_proto::{Attached, Identity, SLOTS};
use rustix::time::{ClockId, clock_gettime};

pub(super) use again::{Again, Answer, Renew};
use places::{Places, Regions};
use slots::{Number, Slots};

use super::Remote;

/// Between two looks for who waits without a limit.
const LOOK: Duration = Duration::from_millis(50);
/// While a queue pair is replaced.
const MENDING: Duration = Duration::from_millis(1);

/// A session, and how it names the server's memory.
struct Link {
    remote: Arc<dyn Remote>,
    places: Places,
    era: u32,
    lost: AtomicBool,
}

/// A place is one of an era that is over.
struct Stale;

/// Whether there is a session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// There is.
    Up,
    /// It was lost then.
    Down(Instant),
    /// There will not be one any more.
    Over,
}

/// Which sessions a call may be carried out by.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Whichever there is.
    Any,
    /// Those of one era, as it changes something: that of the first one.
    One,
    /// Those of this era.
    Of(u32),
}

/// A call that nobody waits for.
struct Started {
    number: Number,
    envelope: Vec<u8>,
}

/// See above.
pub(super) struct Returning {
    again: Box<dyn Again>,
    /// What it was told first.
    memory: Identity,
    session: AtomicU64,
    /// How many servers the memory had had when the last session was made.
    starts: AtomicU64,
    regions: Regions,
    /// How often what the client knew has become void.
    era: AtomicU32,
    /// That of the session that is used.
    era_in_use: AtomicU32,
    /// The client is being told so.
    renewing: AtomicBool,
    renew: OnceLock<Box<dyn Renew>>,
    /// For how long an operation may wait.
    timeout: Duration,
    link: RwLock<Arc<Link>>,
    state: Mutex<Phase>,
    changed: Condvar,
    slots: Mutex<Slots>,
    freed: Condvar,
    started: Mutex<Vec<Started>>,
    /// Lists that may have been carried out more than once.
    repeats: AtomicU64,
    /// How often it came back.
    returns: AtomicU64,
}

/// What a monotonic clock says.
fn time_of(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    // It began at zero.
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

impl fmt::Debug for Returning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returning").field("state", &*self.state.lock()).finish_non_exhaustive()
    }
}

impl Returning {
    /// From a first session, which is attached. Starts the thread that makes others.
    pub(super) fn new(
        remote: Arc<dyn Remote>,
        attached: &Attached,
        timeout: Duration,
        again: Box<dyn Again>,
    ) -> std::io::Result<Arc<Returning>> {
        let regions = Regions::of(attached);
        let places = Places::new(regions, 0, regions);
        let link = Link { remote, places, era: 0, lost: AtomicBool::new(false) };
        let returning = Arc::new(Returning {
            again,
            memory: attached.memory,
            session: AtomicU64::new(attached.session),
            starts: AtomicU64::new(attached.starts),
            regions,
            era: AtomicU32::new(0),
            era_in_use: AtomicU32::new(0),
            renewing: AtomicBool::new(false),
            renew: OnceLock::new(),
            timeout,
            link: RwLock::new(Arc::new(link)),
            state: Mutex::new(Phase::Up),
            changed: Condvar::new(),
            slots: Mutex::new(Slots::new(SLOTS)),
            freed: Condvar::new(),
            started: Mutex::default(),
            repeats: AtomicU64::new(0),
            returns: AtomicU64::new(0),
        });
        let comes_back = Arc::clone(&returning);
        thread::Builder::new().name("returning".into()).spawn(move || comes_back.run())?;
        Ok(returning)
    }

    /// Who is told of a new era. Without one, none begins.
    pub(super) fn set_renew(&self, renew: Box<dyn Renew>) {
        // It is set once, by whoever made this.
        let _ = self.renew.set(renew);
    }

    /// The session, once there is one. Gives up at `deadline`, and where it has been lost for longer than an operation may take.
    fn up(&self, deadline: Instant) -> Result<Arc<Link>, RequestError> {
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

    /// The same for who waits as long as it takes.
    fn up_at_last(&self, cancel: &Cancel) -> Result<Arc<Link>, RequestError> {
        loop {
            if cancel.is_cancelled() {
                return Err(RequestError::Cancelled);
            }
            let mut state = self.state.lock();
            match *state {
                Phase::Up => return Ok(Arc::clone(&self.link.read())),
                Phase::Over => return Err(RequestError::Disconnected),
                Phase::Down(_) => self.changed.wait_for(&mut state, LOOK),
            };
        }
    }

    /// A session is lost, if it is the one that there is.
    fn lost(&self, link: &Arc<Link>) {
        let mut state = self.state.lock();
        if *state == Phase::Up && Arc::ptr_eq(link, &self.link.read()) {
            link.lost.store(true, Ordering::Release);
            *state = Phase::Down(Instant::now());
            self.changed.notify_all();
        }
    }

    /// Makes a call until a session has carried it out that it may be carried out by. It is not made again after `deadline`.
    fn call_until(
        &self,
        deadline: Instant,
        mut by: By,
        mut call: impl FnMut(&dyn Remote) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        let mut is_sent = false;
        loop {
            let link = self.up(deadline)?;
            if is_sent && Instant::now() >= deadline {
                return Err(RequestError::Disconnected);
            }
            match by {
                By::Any => {}
                By::One => by = By::Of(link.era),
                By::Of(era) if era == link.era => {}
                By::Of(_) => return Err(RequestError::Disconnected),
            }
            is_sent = true;
            match call(&*link.remote) {
                Err(RequestError::Disconnected) => self.lost(&link),
                Err(RequestError::Timeout(after)) => {
                    self.lost(&link);
                    return Err(RequestError::Timeout(after));
                }
                outcome => return outcome,
            }
        }
    }

    /// Repeats a one-sided operation until a session has carried it out, as long as it may take.
    fn repeat(
        &self,
        mut operation: impl FnMut(&Link) -> Result<Result<(), RequestError>, Stale>,
    ) -> Result<(), RequestError> {
        // The time until it is known that the session is lost counts, too. Most often it is not lost, and the time is of no interest: so what is
        // asked each time is the clock that goes on with the kernel's ticks only. It is behind the other one, by a tick at most: nobody waits
        // longer than he should.
        let begun = time_of(ClockId::MonotonicCoarse);
        let left = || self.timeout.saturating_sub(time_of(ClockId::Monotonic).saturating_sub(begun));
        loop {
            let mut link = Arc::clone(&self.link.read());
            if link.lost.load(Ordering::Acquire) {
                link = self.up(Instant::now() + left())?;
            }
            let Ok(outcome) = operation(&link) else { return Err(RequestError::Disconnected) };
            let mending = match &outcome {
                Err(RequestError::Disconnected) => {
                    self.lost(&link);
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
            if mending {
                thread::sleep(MENDING);
            }
        }
    }

    fn take_number(&self, deadline: Instant) -> Result<Number, RequestError> {
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

    fn give_back(&self, number: Number) {
        self.slots.lock().give_back(number);
        self.freed.notify_one();
    }
}
