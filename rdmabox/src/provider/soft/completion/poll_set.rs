//! A set of queue pairs whose sockets are waited for together: one per completion queue and one
//! per engine.
//!
//! # Concurrency
//! Any thread may call any method. `members` and `requested` are never held while a member makes
//! progress, because a member that fails removes itself.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::verbs::VerbsError;

/// Event data of the wake descriptor. Queue pair numbers are larger.
const WAKE: u64 = 0;
const MAX_EVENTS: usize = 32;
/// Events that report a closed connection.
const OVER: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
/// Maximum number of members that are polled one by one without epoll.
const FEW: usize = 2;

/// Events for which a queue pair waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Interest {
    pub read: bool,
    pub write: bool,
}

/// A queue pair that makes progress when its socket is ready.
pub(crate) trait Member: std::fmt::Debug + Send + Sync + 'static {
    /// Moves the bytes that can move without waiting. Returns true if any byte moved.
    fn progress(&self) -> bool;

    /// Returns true while the queue pair takes no further requests.
    fn must_wait(&self) -> bool;

    /// Handles a disconnect of the peer.
    fn hung_up(&self);

    /// Fails all requests.
    fn fail(&self);
}

/// The queue pairs of one thread, and the descriptors that it waits for.
#[derive(Debug)]
pub(crate) struct PollSet<M> {
    epoll: OwnedFd,
    wake: OwnedFd,
    members: RwLock<HashMap<u32, Weak<M>>>,
    count: AtomicUsize,
    /// Members to poll even without a socket event, and their number.
    requested: Mutex<SmallVec<[u32; 8]>>,
    requested_count: AtomicUsize,
    /// Number of the member that was ready last.
    last: AtomicU32,
}

fn owned(raw: i32, what: &'static str) -> Result<OwnedFd, VerbsError> {
    if raw < 0 {
        return Err(VerbsError::last_os(what));
    }
    // SAFETY: a fresh descriptor that no other object owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

impl<M: Member> PollSet<M> {
    pub(crate) fn new() -> Result<PollSet<M>, VerbsError> {
        // SAFETY: plain system calls without pointers.
        let (epoll, wake) = unsafe {
            (
                libc::epoll_create1(libc::EPOLL_CLOEXEC),
                libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK),
            )
        };
        let set = PollSet {
            epoll: owned(epoll, "epoll_create1")?,
            wake: owned(wake, "eventfd")?,
            members: RwLock::default(),
            count: AtomicUsize::new(0),
            requested: Mutex::default(),
            requested_count: AtomicUsize::new(0),
            last: AtomicU32::new(0),
        };
        set.control(libc::EPOLL_CTL_ADD, set.wake.as_raw_fd(), WAKE, Interest { read: true, write: false })?;
        Ok(set)
    }

    fn control(&self, what: i32, fd: i32, data: u64, interest: Interest) -> Result<(), VerbsError> {
        let read = if interest.read { libc::EPOLLIN } else { 0 };
        let write = if interest.write { libc::EPOLLOUT } else { 0 };
        // The end of the stream is reported even while nothing is read.
        let events = read | write | libc::EPOLLRDHUP;
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: both descriptors are open and the event outlives the call.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &mut event) } < 0 {
            return Err(VerbsError::last_os("epoll_ctl"));
        }
        Ok(())
    }

    pub(crate) fn add(&self, qp_num: u32, fd: i32, qp: Weak<M>) -> Result<(), VerbsError> {
        // The next wait reports an event again that arrives before its member is inserted.
        self.control(libc::EPOLL_CTL_ADD, fd, u64::from(qp_num), Interest { read: true, write: false })?;
        self.members.write().insert(qp_num, qp);
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_interest(&self, qp_num: u32, fd: i32, interest: Interest) {
        if let Err(e) = self.control(libc::EPOLL_CTL_MOD, fd, u64::from(qp_num), interest) {
            log::debug!("queue pair {qp_num}: {e}");
        }
    }

    pub(crate) fn remove(&self, qp_num: u32, fd: i32) {
        if self.members.write().remove(&qp_num).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
            // A failure leaves nothing to undo.
            let _ = self.control(libc::EPOLL_CTL_DEL, fd, u64::from(qp_num), Interest::default());
        }
    }

    /// Makes progress on the members without waiting. Returns true if any byte moved.
    pub(crate) fn progress(&self) -> Result<bool, VerbsError> {
        match self.count.load(Ordering::Relaxed) {
            0 => Ok(false),
            1..=FEW => {
                // Collected first, because a member that fails removes itself from the map.
                let members: SmallVec<[Arc<M>; FEW]> =
                    self.members.read().values().filter_map(Weak::upgrade).collect();
                let moved = members.iter().fold(false, |moved, qp| qp.progress() | moved);
                if members.iter().any(|qp| qp.must_wait()) {
                    // The member reads nothing now, so only epoll reports a disconnect of its peer.
                    return self.serve(0, false, || ());
                }
                Ok(moved)
            }
            // With many members, one call reports which are ready.
            _ => self.serve(0, false, || ()),
        }
    }

    /// Makes progress on the member that was ready last, without a call to epoll. A peer that
    /// issues one request after another issues the next one there. Returns true if any byte moved.
    pub(crate) fn progress_last_ready(&self) -> bool {
        self.member(self.last.load(Ordering::Relaxed)).is_some_and(|qp| qp.progress())
    }

    /// Makes the current or next wait poll this member, even without a socket event.
    pub(crate) fn request_poll(&self, qp_num: u32) {
        let mut requested = self.requested.lock();
        if !requested.contains(&qp_num) {
            requested.push(qp_num);
            self.requested_count.store(requested.len(), Ordering::Release);
        }
        drop(requested);
        self.wake();
    }

    /// Takes the members to poll, each once.
    fn take_requested(&self) -> SmallVec<[u32; 8]> {
        let mut requested = self.requested.lock();
        self.requested_count.store(0, Ordering::Release);
        std::mem::take(&mut *requested)
    }

    /// Fails the requests of all members, because no thread makes progress on them any more.
    pub(crate) fn fail_all(&self) {
        // Collected first, because a member that fails removes itself from the map.
        let members: Vec<Arc<M>> = self.members.read().values().filter_map(Weak::upgrade).collect();
        members.iter().for_each(|qp| qp.fail());
    }

    /// Makes the current or next wait return.
    pub(crate) fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes 8 bytes from a live array. It fails only if the counter is full, when the
        // waiter is awake anyway.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Returns the descriptor that is readable while a wait would not block.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits for a socket or a wake, then makes progress on the ready sockets. Returns true if
    /// there was an event.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.wait_and(timeout, || ())
    }

    /// Waits like [`wait`](Self::wait), and calls `over` after the waiting and before any progress.
    pub(crate) fn wait_and(
        &self,
        timeout: Option<Duration>,
        over: impl FnOnce(),
    ) -> Result<bool, VerbsError> {
        let millis = match timeout {
            None => -1,
            // Rounded up, so that a wait without an event never returns early.
            Some(t) => i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        self.serve(millis, true, over)
    }

    /// Makes progress on the sockets that become ready within `millis` milliseconds; -1 means no
    /// limit. A wake ends the wait. Only a caller that `waits` consumes the wake; a caller that
    /// polls leaves it to the next wait. Calls `over` after the waiting and before any progress.
    /// Returns true if there was an event for the caller.
    fn serve(&self, millis: i32, waits: bool, over: impl FnOnce()) -> Result<bool, VerbsError> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
        // SAFETY: the array outlives the call and has the given length.
        let found = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), MAX_EVENTS as i32, millis)
        };
        let error = (found < 0).then(io::Error::last_os_error);
        over();
        if let Some(error) = error {
            if error.kind() == io::ErrorKind::Interrupted {
                return Ok(true);
            }
            return Err(VerbsError::os("epoll_wait", error));
        }
        let mut any = false;
        for event in &events[..found as usize] {
            let data = event.u64;
            if data == WAKE {
                if waits {
                    let mut count = [0u8; 8];
                    // SAFETY: reads 8 bytes into a live array.
                    unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
                    any = true;
                }
                continue;
            }
            any = true;
            self.last.store(data as u32, Ordering::Relaxed);
            if let Some(qp) = self.member(data as u32) {
                qp.progress();
                if event.events & OVER != 0 {
                    qp.hung_up();
                }
            }
        }
        if self.requested_count.load(Ordering::Acquire) > 0 {
            any = true;
            for qp in self.take_requested().into_iter().filter_map(|number| self.member(number)) {
                qp.progress();
            }
        }
        Ok(any)
    }

    fn member(&self, qp_num: u32) -> Option<Arc<M>> {
        self.members.read().get(&qp_num).and_then(Weak::upgrade)
    }
}
