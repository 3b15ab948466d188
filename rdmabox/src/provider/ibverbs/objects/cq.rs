//! Completion queues with their completion channels.
//!
//! A stash holds completions in order that left the device without a poll by the owner. They are
//! completions that a failing queue pair takes from the device, and completions of requests that
//! never reached the device. A poll empties the stash first. Nothing is allocated unless a queue
//! pair fails.
//!
//! A device reports a lost completion by an event and may later deliver further completions,
//! which must not be polled. A queue that has lost a completion is full. So after each check of
//! the events, `depth` completions can be taken safely.
//!
//! # Concurrency
//! Any thread may poll. `inner` is held during a poll of the device, but not while events are
//! read or queue pairs fail.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use smallvec::SmallVec;

use super::{
    core_state::Core,
    ring::{MAX_PLACES, Name, Place, Ring},
    status,
    watch::{WatchedCq, WatchedQp},
};
use crate::{
    provider::ibverbs::raw::{RawCq, RawWc},
    verbs::{CompletionQueue, VerbsError, WcStatus, WorkCompletion},
};

/// Maximum number of completions per poll of the device.
const BATCH: usize = 32;
/// Extra slots for the markers of failing queue pairs.
const MARKER_SLOTS: usize = 8;

/// Queue pairs with a failed request among the polled completions.
type Failed = SmallVec<[Arc<dyn WatchedQp>; 2]>;

/// A completion that waits to be polled. The poll frees its slot.
#[derive(Debug)]
struct Stashed {
    name: Name,
    /// `None` for a marker.
    wc: Option<WorkCompletion>,
}

#[derive(Debug, Default)]
struct Row {
    generation: u16,
    ring: Option<Arc<Ring>>,
    qp: Option<Weak<dyn WatchedQp>>,
}

#[derive(Debug)]
struct Inner {
    raw: [RawWc; BATCH],
    stash: VecDeque<Stashed>,
    rows: Vec<Row>,
    free: Vec<u16>,
    /// Number of completions taken from the device.
    taken: u64,
    /// Number of completions that are known to precede any unknown loss.
    loss_free: u64,
}

impl Inner {
    fn row(&self, place: Place) -> Option<(&Arc<Ring>, &Weak<dyn WatchedQp>)> {
        let row = self.rows.get(usize::from(place.index))?;
        (row.generation == place.generation).then_some((row.ring.as_ref()?, row.qp.as_ref()?))
    }

    /// Returns how many of `wanted` completions can be taken without a check of the events.
    fn room(&self, wanted: usize) -> usize {
        let loss_free = usize::try_from(self.loss_free.saturating_sub(self.taken)).unwrap_or(usize::MAX);
        loss_free.min(wanted).min(BATCH)
    }

    /// Frees the slots that a completion covers.
    fn free(&self, name: Name) {
        if let Some((ring, _)) = self.row(name.place) {
            // A marker has no slot.
            ring.free_until(name.sequence.wrapping_add(u32::from(!name.is_marker)));
        }
    }

    /// Converts a completion of the device. Returns `None` if its queue pair no longer exists.
    fn digest(&self, raw: &RawWc, failed: &mut Failed) -> Option<Stashed> {
        let name = Name::decode(raw.wr_id);
        let (ring, qp) = self.row(name.place)?;
        if name.is_marker {
            ring.set_drained();
            return Some(Stashed { name, wc: None });
        }
        let mut wc = status::completion(raw, ring.wr_id(name.sequence), ring.is_recv, ring.qp_num);
        if wc.status != WcStatus::Success {
            if let Some(status) =
                ring.invalid_status(name.sequence).filter(|_| wc.status != WcStatus::WrFlushErr)
            {
                wc.status = status;
            }
            let known = failed.last().is_some_and(|last| std::ptr::addr_eq(Arc::as_ptr(last), qp.as_ptr()));
            if !known && let Some(qp) = qp.upgrade() {
                failed.push(qp);
            }
        }
        Some(Stashed { name, wc: Some(wc) })
    }
}

#[derive(Debug)]
pub(crate) struct IbvCq {
    raw: Arc<RawCq>,
    depth: usize,
    inner: Mutex<Inner>,
    wake: OwnedFd,
    /// True if an event was requested and has not arrived.
    armed: AtomicBool,
    /// True if the device has lost completions.
    overrun: AtomicBool,
    /// True if a poll has reported the loss.
    broken: AtomicBool,
    core: Arc<Core>,
}

impl IbvCq {
    pub(crate) fn new(core: &Arc<Core>, depth: usize) -> Result<Arc<IbvCq>, VerbsError> {
        let limit = core.attr().max_cqe as usize;
        if depth > limit {
            let what = "completion queue depth";
            return Err(VerbsError::Limit { what, asked: depth as u64, limit: limit as u64 });
        }
        let asked = (depth.max(1) + MARKER_SLOTS).min(limit);
        let raw = RawCq::new(core.opened(), i32::try_from(asked).unwrap_or(i32::MAX))
            .map_err(|e| VerbsError::os("ibv_create_cq", e))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| VerbsError::os("eventfd", e.into()))?;
        let inner = Inner {
            raw: [RawWc::default(); BATCH],
            stash: VecDeque::new(),
            rows: Vec::new(),
            free: Vec::new(),
            taken: 0,
            loss_free: raw.depth() as u64,
        };
        let cq = Arc::new(IbvCq {
            depth: raw.depth(),
            raw: Arc::new(raw),
            inner: Mutex::new(inner),
            wake,
            armed: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            core: Arc::clone(core),
        });
        let weak: Weak<IbvCq> = Arc::downgrade(&cq);
        core.watch().add_cq(cq.raw.addr(), weak);
        Ok(cq)
    }

    pub(crate) fn raw(&self) -> &Arc<RawCq> {
        &self.raw
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Registers one direction of a queue pair. Returns `None` if the table is full.
    pub(crate) fn enter(&self, ring: &Arc<Ring>, qp: Weak<dyn WatchedQp>) -> Option<Place> {
        let mut inner = self.inner.lock();
        let index = match inner.free.pop() {
            Some(index) => index,
            None if inner.rows.len() < MAX_PLACES => {
                inner.rows.push(Row::default());
                (inner.rows.len() - 1) as u16
            }
            None => return None,
        };
        let row = &mut inner.rows[usize::from(index)];
        row.generation = row.generation.wrapping_add(1);
        (row.ring, row.qp) = (Some(Arc::clone(ring)), Some(qp));
        Some(Place { index, generation: row.generation })
    }

    /// Removes one direction of a queue pair. Its unpolled completions are dropped, except those in
    /// the stash.
    pub(crate) fn leave(&self, place: Place) {
        let mut inner = self.inner.lock();
        if inner.row(place).is_some() {
            inner.rows[usize::from(place.index)].ring = None;
            inner.free.push(place.index);
        }
    }

    /// Moves all completions of the device to the stash.
    pub(crate) fn stash_all(&self) -> Result<(), VerbsError> {
        loop {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let mut room = inner.room(BATCH);
            // After a loss only markers are used.
            let keep = room > 0;
            if room == 0 {
                if !self.has_lost() {
                    let taken = inner.taken;
                    drop(guard);
                    self.check_for_losses(taken);
                    continue;
                }
                room = BATCH;
            }
            let found = self.take_raw(inner, room)?;
            if found == 0 {
                return Ok(());
            }
            // The poller learns of failures from the completion statuses.
            let mut failed = Failed::new();
            for index in 0..found {
                if let Some(stashed) = inner.digest(&inner.raw[index], &mut failed).filter(|_| keep) {
                    inner.stash.push_back(stashed);
                }
            }
        }
    }

    /// Takes up to `room` completions from the device into `inner.raw`.
    fn take_raw(&self, inner: &mut Inner, room: usize) -> Result<usize, VerbsError> {
        let found = self.raw.poll(&mut inner.raw[..room]).map_err(|e| VerbsError::os("ibv_poll_cq", e))?;
        inner.taken += found as u64;
        if found == 0 {
            // The device's queue is empty, so a whole `depth` fits before a loss.
            inner.loss_free = inner.loss_free.max(inner.taken + self.depth as u64);
        }
        Ok(found)
    }

    fn has_lost(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// Reads the device's events after `taken` completions have been taken. The device reports a
    /// loss before it delivers any later completion.
    fn check_for_losses(&self, taken: u64) {
        self.core.watch().read_events();
        if !self.has_lost() {
            let mut inner = self.inner.lock();
            inner.loss_free = inner.loss_free.max(taken + self.depth as u64);
        }
    }

    /// Reports a request that never reached the device.
    pub(crate) fn push(&self, name: Name, wc: WorkCompletion) {
        self.inner.lock().stash.push_back(Stashed { name, wc: Some(wc) });
        if self.armed.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Takes completions. The inner `Err` holds the number of completions taken so far: the caller
    /// must check for losses before it takes more.
    fn take(
        &self,
        out: &mut [WorkCompletion],
        failed: &mut Failed,
    ) -> Result<Result<usize, u64>, VerbsError> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut count = 0;
        while count < out.len() {
            let Some(Stashed { name, wc }) = inner.stash.pop_front() else { break };
            inner.free(name);
            if let Some(wc) = wc {
                out[count] = wc;
                count += 1;
            }
        }
        let stashed = count;
        // Repeats until a completion is found, because completions of removed queue pairs do not
        // count.
        while count == stashed && count < out.len() {
            let room = inner.room(out.len() - count);
            if room == 0 {
                return Ok(if count > 0 { Ok(count) } else { Err(inner.taken) });
            }
            let found = self.take_raw(inner, room)?;
            if found == 0 {
                break;
            }
            for index in 0..found {
                let Some(Stashed { name, wc }) = inner.digest(&inner.raw[index], failed) else { continue };
                inner.free(name);
                if let Some(wc) = wc {
                    out[count] = wc;
                    count += 1;
                }
            }
        }
        Ok(Ok(count))
    }
}

impl WatchedCq for IbvCq {
    fn set_overrun(&self) {
        self.overrun.store(true, Ordering::SeqCst);
        self.wake();
    }
}

impl crate::verbs::Sealed for IbvCq {}

impl CompletionQueue for IbvCq {
    fn event_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.raw.channel_fd()), Some(self.wake.as_fd())]
    }

    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        if self.broken.load(Ordering::Acquire) {
            return Err(VerbsError::CqOverrun);
        }
        let mut failed = Failed::new();
        let count = loop {
            match self.take(out, &mut failed)? {
                Ok(count) => break count,
                Err(_) if self.has_lost() => break 0,
                Err(taken) => self.check_for_losses(taken),
            }
        };
        for qp in failed {
            qp.fail("a work request failed");
        }
        if count == 0 && !out.is_empty() && self.has_lost() {
            self.broken.store(true, Ordering::Release);
            return Err(VerbsError::CqOverrun);
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.armed.store(true, Ordering::SeqCst);
        self.raw.request_event().map_err(|e| VerbsError::os("ibv_req_notify_cq", e))
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        let channel = self.raw.channel_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(channel, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        // A timeout that the system cannot represent means no timeout.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(e) => return Err(VerbsError::os("poll", e.into())),
        }
        if !fds[0].revents().is_empty() {
            self.armed.store(false, Ordering::SeqCst);
            while self.raw.take_event() {}
        }
        if !fds[1].revents().is_empty() {
            // Fails only if another thread has read the counter.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        Ok(true)
    }

    fn wake(&self) {
        // Fails only if the counter is full, when the waiter is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Drop for IbvCq {
    fn drop(&mut self) {
        self.core.watch().remove_cq(self.raw.addr());
    }
}
