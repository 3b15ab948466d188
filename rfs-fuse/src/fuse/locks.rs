//! Locks that are waited for, and what has to happen between getting a lock and saying so.
//!
//! A session thread never waits for a lock: the server is told to wait, and says when that is over. One thread asks it for that
//! all the time, from the first wait on. Another one ends the wait of who has a signal to handle: fuser does not pass
//! FUSE_INTERRUPT on, so that it looks into `/proc`. What the kernel keeps of the file is dropped before a lock is answered;
//! on a session thread that could wait for pages which only a session thread can bring.

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
    background::Background,
    convert,
    kernel::{KernelLink, Part},
    placement,
    process::Signals,
    session::{Lock, ReplyEmpty, ReplyLock},
};
use crate::client::{Asked, Client, ClientError, LockRequest};

/// So often somebody looks whether those who wait have a signal. It takes two looks to know.
const LOOK: Duration = Duration::from_millis(10);
/// A look at one of them takes about a twentieth of it: however many wait, looking takes no more of a processor than that.
const SHARE_OF_ONE: Duration = Duration::from_micros(250);
/// So long one waits behind others who wait. Whoever holds a lock may be waiting, unseen, for one who waits behind a third one.
const COURTESY: Duration = Duration::from_secs(1);

/// From one look to the next, with so many who wait.
fn pause(waiting: usize) -> Duration {
    LOOK.max(SHARE_OF_ONE.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX)))
}

/// A process that waits.
struct Waiting {
    wanted: LockRequest,
    /// The thread that waits.
    tid: u32,
    reply: ReplyEmpty,
    since: Instant,
    insists: bool,
    /// The thread that asks for it has not heard yet that it waits: nobody else asks again for it, or answers.
    asking: bool,
    /// What has become of it meanwhile.
    outcome: Option<Result<Locked, rfs_proto::Errno>>,
}

#[derive(Default)]
struct State {
    /// Those who wait, by ticket, and those who are about to.
    waiting: HashMap<u64, Waiting>,
    /// Locks that are there, of files that the kernel keeps old pages of.
    void: Vec<(LockRequest, ReplyEmpty)>,
    /// How often all who wait had to ask again.
    rounds: u64,
    stop: bool,
}

/// A lock that was in the way of this, and may be given up already.
pub(super) enum Doubted {
    /// Of a lock that does not wait.
    Lock(ReplyEmpty),
    /// Of the question for such a lock.
    Test(Lock, ReplyLock),
}

/// Locks to be confirmed at a time, by a thread each. Each holds one of the calls that a session can have under way.
const MAX_CONFIRMING: usize = 3;

#[derive(Default)]
struct Doubts {
    jobs: VecDeque<(LockRequest, Doubted)>,
    threads: usize,
    idle: usize,
    stop: bool,
}

/// The threads. Dropping it ends them; who still waits is answered with EINTR.
pub(super) struct Locks {
    shared: Arc<Shared>,
    cancel: Cancel,
    /// Ends waits, and drops pages of files whose locks were there at once.
    looking: Background,
    /// Hears from the server.
    hearing: Background,
}

struct Shared {
    client: Arc<Client>,
    kernel: KernelLink,
    tickets: AtomicU64,
    state: Mutex<State>,
    work: Condvar,
    doubts: Mutex<Doubts>,
    doubted: Condvar,
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
                doubts: Mutex::default(),
                doubted: Condvar::new(),
            }),
            cancel: Cancel::new(),
            looking: Background::new("locks"),
            hearing: Background::new("grants"),
        }
    }

    /// Locks, for a thread that waits if need be, and answers when that is done. An error is left to the caller to answer with.
    pub(super) fn lock_waiting(
        &self,
        wanted: LockRequest,
        tid: u32,
        reply: ReplyEmpty,
    ) -> Result<(), (ClientError, ReplyEmpty)> {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        // What becomes of it may be there before the reply that it waits.
        let (since, insists, asking, outcome) = (Instant::now(), false, true, None);
        let waiting = Waiting { wanted, tid, reply, since, insists, asking, outcome };
        let mut rounds = {
            let mut state = self.shared.state.lock();
            state.waiting.insert(ticket, waiting);
            state.rounds
        };
        let asked = loop {
            let asked = self.shared.client.lock(&wanted, Some(ticket));
            if !matches!(asked, Ok(Asked::Waits)) || self.shared.waits(ticket, &mut rounds) {
                break asked;
            }
        };
        if let Ok(Asked::Waits) = asked {
            if let Err(e) = self.employ() {
                log::error!("cannot start a thread for locks: {e}");
                self.shared.give_back(ticket);
            }
            return Ok(());
        }
        // Nobody answers it now but whoever hears that the session is over.
        let Some(Waiting { reply, .. }) = self.shared.take(ticket) else { return Ok(()) };
        match asked {
            Ok(Asked::Locked { void }) => self.answer(wanted, void, reply),
            Ok(Asked::Waits) => {}
            Err(e) => return Err((e, reply)),
        }
        Ok(())
    }

    /// Has the mounts whose locks are in the way confirm that they are held, then tries once more and answers.
    pub(super) fn confirm(&self, wanted: LockRequest, doubted: Doubted) {
        let mut doubts = self.shared.doubts.lock();
        doubts.jobs.push_back((wanted, doubted));
        if doubts.jobs.len() <= doubts.idle || doubts.threads == MAX_CONFIRMING {
            self.shared.doubted.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        match thread::Builder::new().name("confirming".into()).spawn(move || shared.confirm()) {
            Ok(_) => doubts.threads += 1,
            Err(e) if doubts.threads == 0 => {
                log::error!("cannot start a thread for locks: {e}");
                doubts.jobs.clear();
            }
            Err(e) => log::warn!("locks are confirmed one after the other: {e}"),
        }
    }

    /// A lock is there. `void`: what the kernel keeps of the file is to be dropped first.
    pub(super) fn answer(&self, lock: LockRequest, void: bool, reply: ReplyEmpty) {
        if !void {
            return reply.ok();
        }
        if let Err(e) = self.look() {
            log::error!("cannot start a thread for locks: {e}");
            self.shared.client.unlock(&lock).ok();
            return reply.error(Errno::ENOLCK);
        }
        self.shared.state.lock().void.push((lock, reply));
        self.shared.work.notify_one();
    }

    /// Has the threads running.
    fn employ(&self) -> io::Result<()> {
        let (shared, cancel) = (Arc::clone(&self.shared), self.cancel.clone());
        self.hearing.start(move || shared.hear(&cancel))?;
        self.look()?;
        self.shared.work.notify_one();
        Ok(())
    }

    fn look(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.looking.start(move || shared.look())
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.shared.doubts.lock().stop = true;
        self.shared.doubted.notify_all();
        self.shared.state.lock().stop = true;
        self.shared.work.notify_one();
        self.hearing.join();
        self.looking.join();
        let State { waiting, void, .. } = std::mem::take(&mut *self.shared.state.lock());
        waiting.into_values().map(|waiting| waiting.reply).for_each(|reply| reply.error(Errno::EINTR));
        void.into_iter().for_each(|(_, reply)| reply.error(Errno::EINTR));
    }
}

impl Shared {
    fn confirm(&self) {
        placement::begin_unbound();
        loop {
            let (wanted, doubted) = {
                let mut doubts = self.doubts.lock();
                loop {
                    if doubts.stop {
                        return;
                    }
                    if let Some(job) = doubts.jobs.pop_front() {
                        break job;
                    }
                    doubts.idle += 1;
                    self.doubted.wait(&mut doubts);
                    doubts.idle -= 1;
                }
            };
            if let Err(e) = self.client.confirm_locks(wanted.ino) {
                log::debug!("locks of inode {} are not confirmed: {e}", wanted.ino);
            }
            self.try_once_more(&wanted, doubted);
        }
    }

    fn try_once_more(&self, wanted: &LockRequest, doubted: Doubted) {
        match doubted {
            Doubted::Lock(reply) => match self.client.lock(wanted, None) {
                Ok(Asked::Locked { void: false }) => reply.ok(),
                Ok(_) => self.drop_pages(wanted, reply),
                Err(e) => reply.error(convert::errno(e.errno())),
            },
            Doubted::Test(lock, reply) => match self.client.test_lock(wanted) {
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

    fn take(&self, ticket: u64) -> Option<Waiting> {
        self.state.lock().waiting.remove(&ticket)
    }

    /// A thread hears that it waits. False if that may be from a server that is no more: it is to ask again.
    fn waits(&self, ticket: u64, rounds: &mut u64) -> bool {
        let mut state = self.state.lock();
        let again = *rounds != state.rounds;
        *rounds = state.rounds;
        let Some(waiting) = state.waiting.get_mut(&ticket) else { return true };
        let outcome = waiting.outcome.take();
        waiting.asking = again;
        drop(state);
        if let Some(outcome) = outcome.filter(|_| !again) {
            self.granted(Granted { ticket, outcome });
        }
        !again
    }

    /// Nobody is there to wait: takes back what was asked for.
    fn give_back(&self, ticket: u64) {
        let Some(Waiting { wanted, reply, .. }) = self.take(ticket) else { return };
        if !matches!(self.client.stop_waiting(ticket), Ok(true)) {
            self.client.unlock(&wanted).ok();
        }
        reply.error(Errno::ENOLCK);
    }

    /// Answers those who wait as the server says it, until the end.
    fn hear(&self, cancel: &Cancel) {
        let end = loop {
            match self.client.grants(cancel) {
                Ok(Some(granted)) => granted.into_iter().for_each(|granted| self.granted(granted)),
                // The server has been started again, or has begun anew: it does not know of those who wait.
                Ok(None) => self.ask_again(),
                Err(ClientError::Request(RequestError::Disconnected)) if self.client.is_connected() => {
                    self.ask_again();
                }
                Err(e) => break e,
            }
        };
        if cancel.is_cancelled() {
            return;
        }
        // The session is over, and with it all locks.
        if self.client.is_connected() {
            log::error!("nobody hears of locks any more: {end}");
            self.client.close_session();
        }
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        waiting.into_values().for_each(|waiting| waiting.reply.error(convert::errno(end.errno())));
    }

    /// Asks again for all locks that are waited for.
    fn ask_again(&self) {
        let all: Vec<(u64, LockRequest)> = {
            let mut state = self.state.lock();
            state.rounds += 1;
            // Who is asking asks again by himself. Two at once, and a lock could be had again after it was given up.
            let heard = state.waiting.iter().filter(|(_, waiting)| !waiting.asking);
            heard.map(|(&ticket, waiting)| (ticket, waiting.wanted)).collect()
        };
        for (ticket, wanted) in all {
            let asked = self.client.lock(&wanted, Some(ticket));
            if let Ok(Asked::Waits) = asked {
                // Who has stopped waiting meanwhile has done so before the server heard of it.
                let waits = self.state.lock().waiting.contains_key(&ticket);
                if !waits && !matches!(self.client.stop_waiting(ticket), Ok(true)) {
                    self.client.unlock(&wanted).ok();
                }
                continue;
            }
            let Some(Waiting { wanted, reply, .. }) = self.take(ticket) else {
                // He has stopped waiting.
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
        if let Some(waiting) = state.waiting.get_mut(&ticket).filter(|waiting| waiting.asking) {
            waiting.outcome = Some(outcome);
            return;
        }
        let Some(Waiting { wanted, reply, .. }) = state.waiting.remove(&ticket) else {
            return log::debug!("a lock that nobody waits for");
        };
        drop(state);
        match self.client.granted(&wanted, outcome) {
            Ok(true) => self.drop_pages(&wanted, reply),
            Ok(false) => reply.ok(),
            Err(e) => reply.error(convert::errno(e.errno())),
        }
    }

    /// Drops what the kernel keeps of a file that is locked, and says that it is.
    fn drop_pages(&self, lock: &LockRequest, reply: ReplyEmpty) {
        // Pages and attributes. A failure leaves old ones: say so rather than pretend to have the lock.
        if let Err(e) = self.kernel.drop_inode(lock.ino, Part::PagesFrom(0)) {
            log::warn!("cannot drop the pages of inode {}: {e}", lock.ino);
            self.client.unlock(lock).ok();
            return reply.error(Errno::EIO);
        }
        reply.ok();
    }

    /// Looks after those who wait, until the end.
    fn look(&self) {
        let (mut next, mut signals) = (Instant::now(), HashMap::<u64, Signals>::new());
        while let Some(void) = self.next(next) {
            void.into_iter().for_each(|(lock, reply)| self.drop_pages(&lock, reply));
            let now = Instant::now();
            if now < next {
                continue;
            }
            let looked_at = self.looked_at(now);
            signals.retain(|ticket, _| looked_at.iter().any(|looked_at| looked_at.ticket == *ticket));
            next = now + pause(looked_at.len());
            for LookedAt { ticket, tid, insists } in looked_at {
                if signals.entry(ticket).or_default().interrupt(tid) {
                    self.interrupt(ticket);
                } else if insists && let Err(e) = self.client.insist(ticket) {
                    log::debug!("waiting for a lock: {e}");
                }
            }
        }
    }

    /// Sleeps until there are pages to be dropped, which it gives, or until `look` if somebody waits. `None` at the end.
    fn next(&self, look: Instant) -> Option<Vec<(LockRequest, ReplyEmpty)>> {
        let mut state = self.state.lock();
        while !state.stop && state.void.is_empty() {
            if state.waiting.is_empty() {
                self.work.wait(&mut state);
            } else if self.work.wait_until(&mut state, look).timed_out() {
                break;
            }
        }
        (!state.stop).then(|| std::mem::take(&mut state.void))
    }

    /// Those who wait. Who has waited politely for long enough insists from now on.
    fn looked_at(&self, now: Instant) -> Vec<LookedAt> {
        let look = |(&ticket, waiting): (&u64, &mut Waiting)| {
            let insists = !waiting.insists && now >= waiting.since + COURTESY;
            waiting.insists |= insists;
            LookedAt { ticket, tid: waiting.tid, insists }
        };
        self.state.lock().waiting.iter_mut().map(look).collect()
    }

    /// Ends a wait. If it is over already, what became of it is on its way, and answers.
    fn interrupt(&self, ticket: u64) {
        // A thread that is gone may have had what it waited for, since those who wait were looked at.
        if !self.state.lock().waiting.contains_key(&ticket) {
            return;
        }
        match self.client.stop_waiting(ticket) {
            Ok(true) => {
                if let Some(waiting) = self.take(ticket) {
                    waiting.reply.error(Errno::EINTR);
                }
            }
            Ok(false) => {}
            // Whoever hears from the server hears of that, too.
            Err(e) => log::debug!("waiting for a lock: {e}"),
        }
    }
}

/// One who waits, to be looked at.
struct LookedAt {
    ticket: u64,
    tid: u32,
    /// From now on.
    insists: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two looks tell, says [`Signals`].
    #[test]
    fn a_signal_is_seen_within_20_ms_or_half_a_millisecond_for_each_who_waits() {
        for waiting in [0, 1, 40] {
            assert_eq!(2 * pause(waiting), Duration::from_millis(20), "{waiting}");
        }
        for waiting in [41, 1000, 16_384] {
            assert_eq!(2 * pause(waiting), Duration::from_micros(500) * waiting as u32, "{waiting}");
        }
        assert!(pause(usize::MAX) > Duration::from_secs(3600));
    }
}
