//! Blocked lock requests, and work between the grant of a lock and its reply.
//!
//! A blocked lock request occupies no session thread: the server queues it, and grants it later.
//! The thread `grants` receives the grants. The thread `locks` interrupts waiters with a pending
//! signal, which it reads from `/proc` because fuser does not pass FUSE_INTERRUPT on. It also
//! drops stale pages of a file before it answers a lock. A session thread must not wait for that
//! drop, because the drop may wait for pages that only a session thread can bring.
//!
//! # Concurrency
//! Session threads, the threads `grants` and `locks`, and up to [`MAX_CONFIRMING`] threads
//! `confirming`. `state` and `confirmations` have a lock each. No thread holds both, and none
//! holds one during a call.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fuser::Errno;
use parking_lot::{Condvar, Mutex};
use rdmabox::{Cancel, RequestError};
use rfs_proto::{Granted, Locked};

use super::{
    affinity,
    background::Background,
    convert,
    kernel::{KernelLink, Part},
    process::Signals,
    session::{Lock, ReplyEmpty, ReplyLock},
};
use rfs_client::{Asked, Client, ClientError, LockRequest};

/// Interval of polls for signals of waiters. Two polls detect a signal.
const SIGNAL_POLL: Duration = Duration::from_millis(10);
/// Minimum interval per waiter. One poll takes about a twentieth of it, so polls take at most 5 %
/// of a processor.
const POLL_PER_WAITER: Duration = Duration::from_micros(250);
/// Time for which a waiter queues behind conflicting waiters. Longer could deadlock: a lock's
/// holder may wait for one of the queued requests in a way that the server does not see.
const QUEUE_LIMIT: Duration = Duration::from_secs(1);

/// Returns the interval of polls for a number of waiters.
fn pause(waiting: usize) -> Duration {
    SIGNAL_POLL.max(POLL_PER_WAITER.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX)))
}

/// A blocked lock request.
struct Waiter {
    wanted: LockRequest,
    /// The thread that waits.
    tid: u32,
    reply: ReplyEmpty,
    since: Instant,
    /// True if the request does not queue behind conflicting waiters any more.
    insists: bool,
    /// True until the server's reply has reached the requesting thread. Meanwhile no other thread
    /// repeats or answers the request.
    asking: bool,
    /// Outcome that has arrived while `asking` is true.
    outcome: Option<Result<Locked, rfs_proto::Errno>>,
}

#[derive(Default)]
struct State {
    /// Blocked requests by ticket, and requests that may block.
    waiters: HashMap<u64, Waiter>,
    /// Granted locks of files whose pages in the kernel are stale.
    stale: Vec<(LockRequest, ReplyEmpty)>,
    /// Number of times that all waiters had to repeat their requests.
    rounds: u64,
    stop: bool,
}

/// A request that a conflicting lock refuses. The lock's file may be closed already, with its
/// RELEASE on the way.
pub(super) enum Refused {
    /// A lock request that does not block.
    Lock(ReplyEmpty),
    /// A test for a conflicting lock.
    Test(Lock, ReplyLock),
}

/// Maximum number of threads that confirm locks. Each occupies one of the session's calls.
const MAX_CONFIRMING: usize = 3;

#[derive(Default)]
struct Confirmations {
    jobs: VecDeque<(LockRequest, Refused)>,
    threads: usize,
    idle: usize,
    stop: bool,
}

/// The blocked requests of a mount, and their threads. Dropping this ends the threads, and
/// answers waiters with EINTR.
pub(super) struct Locks {
    shared: Arc<Shared>,
    cancel: Cancel,
    /// Thread `locks`: interrupts waiters, and drops pages of locked files.
    poller: Background,
    /// Thread `grants`: receives grants from the server.
    grants: Background,
}

struct Shared {
    client: Arc<Client>,
    kernel: KernelLink,
    tickets: AtomicU64,
    state: Mutex<State>,
    work: Condvar,
    confirmations: Mutex<Confirmations>,
    confirm_work: Condvar,
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    pub(super) fn new(client: Arc<Client>, kernel: KernelLink) -> Locks {
        let (tickets, state, work) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        Locks {
            shared: Arc::new(Shared {
                client,
                kernel,
                tickets,
                state,
                work,
                confirmations: Mutex::default(),
                confirm_work: Condvar::new(),
            }),
            cancel: Cancel::new(),
            poller: Background::new("locks"),
            grants: Background::new("grants"),
        }
    }

    /// Requests a lock that may block. The reply follows when the lock is granted.
    ///
    /// # Errors
    /// The request fails. The caller answers with the error.
    pub(super) fn lock_waiting(
        &self,
        wanted: LockRequest,
        tid: u32,
        reply: ReplyEmpty,
    ) -> Result<(), (ClientError, ReplyEmpty)> {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        // The outcome may arrive before the server's reply that the request waits.
        let (since, insists, asking, outcome) = (Instant::now(), false, true, None);
        let waiter = Waiter { wanted, tid, reply, since, insists, asking, outcome };
        let mut rounds = {
            let mut state = self.shared.state.lock();
            state.waiters.insert(ticket, waiter);
            state.rounds
        };
        let asked = loop {
            let asked = self.shared.client.lock(&wanted, Some(ticket));
            if !matches!(asked, Ok(Asked::Waits)) || self.shared.waits(ticket, &mut rounds) {
                break asked;
            }
        };
        if let Ok(Asked::Waits) = asked {
            if let Err(e) = self.start_threads() {
                log::error!("cannot start a thread for locks: {e}");
                self.shared.withdraw(ticket);
            }
            return Ok(());
        }
        // If the session has ended, the thread `grants` has answered.
        let Some(Waiter { reply, .. }) = self.shared.take(ticket) else { return Ok(()) };
        match asked {
            Ok(Asked::Locked { void }) => self.answer(wanted, void, reply),
            Ok(Asked::Waits) => {}
            Err(e) => return Err((e, reply)),
        }
        Ok(())
    }

    /// Has other mounts confirm that they hold the conflicting locks. Then repeats the request
    /// once, and answers.
    pub(super) fn confirm(&self, wanted: LockRequest, refused: Refused) {
        let mut confirmations = self.shared.confirmations.lock();
        confirmations.jobs.push_back((wanted, refused));
        if confirmations.jobs.len() <= confirmations.idle || confirmations.threads == MAX_CONFIRMING {
            self.shared.confirm_work.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        match thread::Builder::new().name("confirming".into()).spawn(move || shared.confirm()) {
            Ok(_) => confirmations.threads += 1,
            Err(e) if confirmations.threads == 0 => {
                log::error!("cannot start a thread for locks: {e}");
                confirmations.jobs.clear();
            }
            Err(e) => log::warn!("cannot start another thread that confirms locks: {e}"),
        }
    }

    /// Answers that a lock is granted. With `stale`, stale pages of the file are dropped first.
    pub(super) fn answer(&self, lock: LockRequest, stale: bool, reply: ReplyEmpty) {
        if !stale {
            return reply.ok();
        }
        if let Err(e) = self.start_poller() {
            log::error!("cannot start a thread for locks: {e}");
            self.shared.client.unlock(&lock).ok();
            return reply.error(Errno::ENOLCK);
        }
        self.shared.state.lock().stale.push((lock, reply));
        self.shared.work.notify_one();
    }

    /// Starts the threads `grants` and `locks`.
    fn start_threads(&self) -> io::Result<()> {
        let (shared, cancel) = (Arc::clone(&self.shared), self.cancel.clone());
        self.grants.start(move || shared.receive_grants(&cancel))?;
        self.start_poller()?;
        self.shared.work.notify_one();
        Ok(())
    }

    fn start_poller(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.poller.start(move || shared.poll_signals())
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.shared.confirmations.lock().stop = true;
        self.shared.confirm_work.notify_all();
        self.shared.state.lock().stop = true;
        self.shared.work.notify_one();
        self.grants.join();
        self.poller.join();
        let State { waiters, stale, .. } = std::mem::take(&mut *self.shared.state.lock());
        waiters.into_values().map(|waiter| waiter.reply).for_each(|reply| reply.error(Errno::EINTR));
        stale.into_iter().for_each(|(_, reply)| reply.error(Errno::EINTR));
    }
}

impl Shared {
    fn confirm(&self) {
        affinity::reset_affinity();
        loop {
            let (wanted, refused) = {
                let mut confirmations = self.confirmations.lock();
                loop {
                    if confirmations.stop {
                        return;
                    }
                    if let Some(job) = confirmations.jobs.pop_front() {
                        break job;
                    }
                    confirmations.idle += 1;
                    self.confirm_work.wait(&mut confirmations);
                    confirmations.idle -= 1;
                }
            };
            if let Err(e) = self.client.confirm_locks(wanted.ino) {
                log::debug!("locks of inode {} are not confirmed: {e}", wanted.ino);
            }
            self.repeat_refused(&wanted, refused);
        }
    }

    fn repeat_refused(&self, wanted: &LockRequest, refused: Refused) {
        match refused {
            Refused::Lock(reply) => match self.client.lock(wanted, None) {
                Ok(Asked::Locked { void: false }) => reply.ok(),
                Ok(_) => self.drop_pages(wanted, reply),
                Err(e) => reply.error(convert::errno(e.errno())),
            },
            Refused::Test(lock, reply) => match self.client.test_lock(wanted) {
                Ok(None) => reply.locked(lock.start, lock.end, convert::F_UNLCK, 0),
                Ok(Some(held)) => {
                    let typ = if held.exclusive { convert::F_WRLCK } else { convert::F_RDLCK };
                    let last = held.range.last.min(convert::OFFSET_MAX);
                    reply.locked(held.range.first, last, typ, held.pid);
                }
                Err(e) => reply.error(convert::errno(e.errno())),
            },
        }
    }

    fn take(&self, ticket: u64) -> Option<Waiter> {
        self.state.lock().waiters.remove(&ticket)
    }

    /// Handles the server's reply that a request waits. Returns false if the reply may come from a
    /// previous server: the thread repeats the request.
    fn waits(&self, ticket: u64, rounds: &mut u64) -> bool {
        let mut state = self.state.lock();
        let again = *rounds != state.rounds;
        *rounds = state.rounds;
        let Some(waiter) = state.waiters.get_mut(&ticket) else { return true };
        let outcome = waiter.outcome.take();
        waiter.asking = again;
        drop(state);
        if let Some(outcome) = outcome.filter(|_| !again) {
            self.granted(Granted { ticket, outcome });
        }
        !again
    }

    /// Withdraws a request whose grant no thread could receive.
    fn withdraw(&self, ticket: u64) {
        let Some(Waiter { wanted, reply, .. }) = self.take(ticket) else { return };
        if !matches!(self.client.stop_waiting(ticket), Ok(true)) {
            self.client.unlock(&wanted).ok();
        }
        reply.error(Errno::ENOLCK);
    }

    /// Receives grants and answers waiters, until the session or the mount ends.
    fn receive_grants(&self, cancel: &Cancel) {
        let end = loop {
            match self.client.grants(cancel) {
                Ok(Some(granted)) => granted.into_iter().for_each(|granted| self.granted(granted)),
                // The server has restarted, or the session is new. It does not know the waiters.
                Ok(None) => self.repeat_requests(),
                Err(ClientError::Request(RequestError::Disconnected)) if self.client.is_connected() => {
                    self.repeat_requests();
                }
                Err(e) => break e,
            }
        };
        if cancel.is_cancelled() {
            return;
        }
        // The session has ended, and all locks with it.
        if self.client.is_connected() {
            log::error!("cannot receive grants of locks: {end}");
            self.client.close_session();
        }
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        waiters.into_values().for_each(|waiter| waiter.reply.error(convert::errno(end.errno())));
    }

    /// Repeats the requests of all waiters.
    fn repeat_requests(&self) {
        let all: Vec<(u64, LockRequest)> = {
            let mut state = self.state.lock();
            state.rounds += 1;
            // A thread that is asking repeats its request itself. Two requests at a time could take
            // the lock again after its release.
            let heard = state.waiters.iter().filter(|(_, waiter)| !waiter.asking);
            heard.map(|(&ticket, waiter)| (ticket, waiter.wanted)).collect()
        };
        for (ticket, wanted) in all {
            let asked = self.client.lock(&wanted, Some(ticket));
            if let Ok(Asked::Waits) = asked {
                // If the waiter was interrupted meanwhile, the server did not know the request. The
                // request is withdrawn now.
                let waits = self.state.lock().waiters.contains_key(&ticket);
                if !waits && !matches!(self.client.stop_waiting(ticket), Ok(true)) {
                    self.client.unlock(&wanted).ok();
                }
                continue;
            }
            let Some(Waiter { wanted, reply, .. }) = self.take(ticket) else {
                // The waiter was interrupted.
                if asked.is_ok() {
                    self.client.unlock(&wanted).ok();
                }
                continue;
            };
            match asked {
                Ok(Asked::Locked { void: true }) => self.drop_pages(&wanted, reply),
                Ok(_) => reply.ok(),
                Err(e) => reply.error(convert::errno(e.errno())),
            }
        }
    }

    fn granted(&self, Granted { ticket, outcome }: Granted) {
        let mut state = self.state.lock();
        if let Some(waiter) = state.waiters.get_mut(&ticket).filter(|waiter| waiter.asking) {
            waiter.outcome = Some(outcome);
            return;
        }
        let Some(Waiter { wanted, reply, .. }) = state.waiters.remove(&ticket) else {
            return log::debug!("a grant of a lock without a waiter");
        };
        drop(state);
        match self.client.granted(&wanted, outcome) {
            Ok(true) => self.drop_pages(&wanted, reply),
            Ok(false) => reply.ok(),
            Err(e) => reply.error(convert::errno(e.errno())),
        }
    }

    /// Has the kernel drop pages of a locked file, and answers the lock request.
    fn drop_pages(&self, lock: &LockRequest, reply: ReplyEmpty) {
        // Pages and attributes. If that fails, stale pages remain, so the lock is not granted.
        if let Err(e) = self.kernel.drop_inode(lock.ino, Part::PagesFrom(0)) {
            log::warn!("cannot drop the pages of inode {}: {e}", lock.ino);
            self.client.unlock(lock).ok();
            return reply.error(Errno::EIO);
        }
        reply.ok();
    }

    /// Runs the thread `locks`.
    fn poll_signals(&self) {
        let (mut next, mut signals) = (Instant::now(), HashMap::<u64, Signals>::new());
        while let Some(stale) = self.next(next) {
            stale.into_iter().for_each(|(lock, reply)| self.drop_pages(&lock, reply));
            let now = Instant::now();
            if now < next {
                continue;
            }
            let polled = self.waiters_to_poll(now);
            signals.retain(|ticket, _| polled.iter().any(|polled| polled.ticket == *ticket));
            next = now + pause(polled.len());
            for Polled { ticket, tid, insists } in polled {
                if signals.entry(ticket).or_default().interrupt(tid) {
                    self.interrupt(ticket);
                } else if insists && let Err(e) = self.client.insist(ticket) {
                    log::debug!("cannot insist on a lock: {e}");
                }
            }
        }
    }

    /// Sleeps until pages have to be dropped, or until `poll` if there are waiters. Returns the
    /// locks of the files. Returns `None` at the end.
    fn next(&self, poll: Instant) -> Option<Vec<(LockRequest, ReplyEmpty)>> {
        let mut state = self.state.lock();
        while !state.stop && state.stale.is_empty() {
            if state.waiters.is_empty() {
                self.work.wait(&mut state);
            } else if self.work.wait_until(&mut state, poll).timed_out() {
                break;
            }
        }
        (!state.stop).then(|| std::mem::take(&mut state.stale))
    }

    /// Returns the waiters to poll. A waiter that has queued for [`QUEUE_LIMIT`] insists from now
    /// on.
    fn waiters_to_poll(&self, now: Instant) -> Vec<Polled> {
        let poll = |(&ticket, waiter): (&u64, &mut Waiter)| {
            let insists = !waiter.insists && now >= waiter.since + QUEUE_LIMIT;
            waiter.insists |= insists;
            Polled { ticket, tid: waiter.tid, insists }
        };
        self.state.lock().waiters.iter_mut().map(poll).collect()
    }

    /// Ends a wait by a signal. If the wait has ended already, its outcome answers the request.
    fn interrupt(&self, ticket: u64) {
        // A thread that has ended may have been granted its lock since the poll.
        if !self.state.lock().waiters.contains_key(&ticket) {
            return;
        }
        match self.client.stop_waiting(ticket) {
            Ok(true) => {
                if let Some(waiter) = self.take(ticket) {
                    waiter.reply.error(Errno::EINTR);
                }
            }
            Ok(false) => {}
            // The thread `grants` meets the same error, and answers.
            Err(e) => log::debug!("cannot end the wait for a lock: {e}"),
        }
    }
}

/// A waiter to poll.
struct Polled {
    ticket: u64,
    tid: u32,
    /// True if the waiter insists from this poll on.
    insists: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`Signals`] needs two polls.
    #[test]
    fn a_signal_is_seen_within_20_ms_or_half_a_millisecond_per_waiter() {
        for waiting in [0, 1, 40] {
            assert_eq!(2 * pause(waiting), Duration::from_millis(20), "{waiting}");
        }
        for waiting in [41, 1000, 16_384] {
            assert_eq!(2 * pause(waiting), Duration::from_micros(500) * waiting as u32, "{waiting}");
        }
        assert!(pause(usize::MAX) > Duration::from_secs(3600));
    }
}
