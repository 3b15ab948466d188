//! Advisory locks of all sessions and their waiters: record locks (fcntl, OFD) and flock.
//!
//! A waiter has a ticket in the queue of its file. [`Locks::take_answers`] returns exactly one
//! answer for it: success, EDEADLK, or EBADF after a close. Queues are first come, first served: a
//! waiter queues behind earlier conflicting waiters. There are two exceptions. It does not queue
//! behind a waiter that transitively waits for it. After [`Locks::insist`] it ignores queue order,
//! because its client may know of a dependency that the server cannot see. A request without a
//! ticket fails with EAGAIN for a held lock, and does not respect queue order.
//!
//! # Concurrency
//! None; one lock in `dispatch` protects the value. No I/O, no clock.

mod deadlock;
pub mod grant_queue;
pub mod held_locks;
#[cfg(test)]
mod model;
mod persistence;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::Hash,
};

use rfs_proto::{Errno, HeldLock, LockClass, LockKind, LockRange};
use seeded_faults::seeded;

pub use grant_queue::Grants;
use held_locks::{HeldLocks, Lock};
pub use held_locks::{Locked, Owner};

/// Limit of a session's locks and waiters, which bounds the memory that a client can take. The
/// pieces of the last unlock may exceed it.
pub const MAX_LOCKS: usize = 1 << 14;

/// Name of a waiter: the session, and the client's number of the request.
pub type Ticket = (u64, u64);

/// A range to lock or unlock.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// Owner of the lock.
    pub owner: Owner,
    /// Record lock or flock.
    pub class: LockClass,
    /// Range of bytes.
    pub range: LockRange,
    /// Process that F_GETLK reports.
    pub pid: u32,
}

/// Result of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The request is executed.
    Done,
    /// The request waits; [`Locks::take_answers`] returns the result later.
    Waits,
}

/// Result of a request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request.
    pub ticket: Ticket,
    /// The inode of the lock.
    pub ino: u64,
    /// Success, EDEADLK or EBADF.
    pub outcome: Result<(), Errno>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// The client's number of the request; the session is the owner's.
    number: u64,
    /// Position in the order of all waiters of all files.
    asked: u64,
    wanted: Lock,
    /// Ignores earlier waiters and waits for holders only.
    insists: bool,
}

impl Waiter {
    fn ticket(&self) -> Ticket {
        (self.wanted.owner.0, self.number)
    }
}

/// Locks and waiters of one file.
#[derive(Debug, Default)]
struct File {
    held: HeldLocks,
    /// Waiters in the order of their requests.
    queue: Vec<Waiter>,
}

/// The file locks of an export, and the requests that wait for them.
#[derive(Debug, Default)]
pub struct Locks {
    files: HashMap<u64, File>,
    /// Number of locks and waiters of each session.
    counts: HashMap<u64, usize>,
    /// Number of all locks and waiters.
    total: usize,
    /// Limit of `total`; `None` without a log.
    limit: Option<usize>,
    /// Number of locks of each owner.
    holding: HashMap<Owner, usize>,
    /// Number of waiters so far.
    asked: u64,
    /// Inode of each ticket.
    tickets: HashMap<Ticket, u64>,
    /// Tickets of each owner that waits.
    by_owner: HashMap<Owner, Vec<Ticket>>,
    answers: Vec<Answer>,
    /// Changes of held locks since the last [`Locks::take_changes`]; `None` if they are not
    /// recorded.
    changes: Option<Vec<(u64, Locked)>>,
}

impl Locks {
    /// Locks or unlocks a range, and replaces the locks of the owner there.
    ///
    /// With a `ticket`, a conflicting request waits. Meanwhile the owner keeps its record locks in
    /// the range, but loses its flock.
    ///
    /// # Errors
    /// EAGAIN for a conflict without a ticket; EDEADLK if the wait would close a cycle; ENOLCK if
    /// the session has too many locks; EINVAL if the ticket is taken by another request.
    pub fn set(
        &mut self,
        ino: u64,
        request: LockRequest,
        kind: LockKind,
        ticket: Option<u64>,
    ) -> Result<LockOutcome, Errno> {
        let LockRequest { owner, class, range, pid } = request;
        let new = Lock { owner, class, exclusive: kind == LockKind::Exclusive, range, pid };
        let full = self.count(owner.0) >= self.session_limit();
        match kind {
            LockKind::Unlock if full && self.file(ino).is_some_and(|file| file.held.would_split(&new)) => {
                Err(Errno::ENOLCK)
            }
            LockKind::Unlock => {
                self.release(ino, &new);
                Ok(LockOutcome::Done)
            }
            _ if full => Err(Errno::ENOLCK),
            _ => self.request(ino, new, ticket),
        }
    }

    fn request(&mut self, ino: u64, new: Lock, ticket: Option<u64>) -> Result<LockOutcome, Errno> {
        if let Some(number) = ticket
            && let Some(&taken) = self.tickets.get(&(new.owner.0, number))
        {
            // A repeated request continues to wait.
            let same = |waiter: &&Waiter| waiter.number == number && waiter.wanted == new;
            let waits =
                taken == ino && self.file(ino).is_some_and(|file| file.queue.iter().any(|w| same(&w)));
            return if waits { Ok(LockOutcome::Waits) } else { Err(Errno::EINVAL) };
        }
        let conflicts = self.is_held(ino, &new);
        if !conflicts && (ticket.is_none() || !self.is_behind(ino, &new, None)) {
            let changed = self.grant(ino, new);
            self.grant_waiters_in(changed);
            return Ok(LockOutcome::Done);
        }
        if conflicts && new.class == LockClass::Flock {
            // flock(2) converts a lock by removing it and requesting the new one.
            self.release(ino, &new);
        }
        let Some(number) = ticket else { return Err(Errno::EAGAIN) };
        if self.closes_cycle(ino, &new) {
            return Err(Errno::EDEADLK);
        }
        self.asked += 1;
        let waiter = Waiter { number, asked: self.asked, wanted: new, insists: false };
        self.change(new.owner, ino, |file| file.queue.push(waiter));
        self.tickets.insert(waiter.ticket(), ino);
        self.by_owner.entry(new.owner).or_default().push(waiter.ticket());
        let freed = self.freed_from_order(ino, &waiter);
        self.grant_waiters_in(freed.into_iter().map(|other| (other, LockRange::ALL)).collect());
        Ok(LockOutcome::Waits)
    }

    /// Cancels a wait without an answer. Returns false if there is no such waiter, because it was
    /// already answered.
    pub fn stop_waiting(&mut self, ticket: Ticket) -> bool {
        let Some((ino, waiter)) = self.dequeue(ticket) else { return false };
        self.grant_waiters(ino, &waiter.wanted.range);
        true
    }

    /// Lets a waiter ignore the queue order and wait for holders only. Returns false if there is no
    /// such waiter.
    pub fn insist(&mut self, ticket: Ticket) -> bool {
        let Some(&ino) = self.tickets.get(&ticket) else { return false };
        let queue = self.files.get_mut(&ino).map_or(&mut [][..], |file| &mut file.queue[..]);
        let Some(waiter) = queue.iter_mut().find(|waiter| waiter.ticket() == ticket) else { return false };
        waiter.insists = true;
        let range = waiter.wanted.range;
        self.grant_waiters(ino, &range);
        true
    }

    /// Returns the session and the description of a lock that conflicts with `request`, if there is
    /// one.
    pub fn conflict(&self, ino: u64, request: LockRequest, exclusive: bool) -> Option<(u64, HeldLock)> {
        let LockRequest { owner, class, range, pid } = request;
        let wanted = Lock { owner, class, exclusive, range, pid };
        let found = self.file(ino)?.held.conflicting(&wanted).next()?;
        Some((found.owner.0, HeldLock { exclusive: found.exclusive, range: found.range, pid: found.pid }))
    }

    /// Returns up to `limit` requests that wait, in no order. Each has its inode and the first
    /// conflicting lock; `None` if it queues behind another request.
    pub fn waiting(&self, limit: usize) -> Vec<(u64, Locked, Option<Locked>)> {
        let waiter = |(ticket, ino): (&Ticket, &u64)| {
            let file = self.file(*ino)?;
            let waiter = file.queue.iter().find(|waiter| waiter.ticket() == *ticket)?;
            let holder = file.held.conflicting(&waiter.wanted).next().map(Lock::describe);
            Some((*ino, waiter.wanted.describe(), holder))
        };
        self.tickets.iter().filter_map(waiter).take(limit).collect()
    }

    /// Returns the numbers of held locks and of requests that wait.
    pub fn totals(&self) -> (usize, usize) {
        (self.total - self.tickets.len(), self.tickets.len())
    }

    /// Returns the number of locks and waiting requests of a session.
    pub fn of_session(&self, session: u64) -> usize {
        self.count(session)
    }

    /// Returns the sessions that hold locks on an inode.
    pub fn holders(&self, ino: u64) -> Vec<u64> {
        let held = self.file(ino).into_iter().flat_map(|file| file.held.iter());
        let mut sessions: Vec<u64> = held.map(|lock| lock.owner.0).collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions
    }

    /// Drops a session's locks on an inode that it closed, and answers EBADF to its waiters there.
    pub fn closed(&mut self, session: u64, ino: u64) {
        let Some(File { held, queue }) = self.file(ino) else { return };
        let owners: HashSet<Owner> = held.owners(session).collect();
        let own = queue.iter().map(Waiter::ticket).filter(|ticket| ticket.0 == session);
        let waiting: Vec<Ticket> = own.collect();
        for owner in owners {
            self.drop_owner(owner, ino);
        }
        for ticket in waiting {
            self.answer(ticket, Err(Errno::EBADF));
        }
        self.grant_waiters(ino, &LockRange::ALL);
    }

    /// Returns the answers since the last call, in order.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    fn file(&self, ino: u64) -> Option<&File> {
        self.files.get(&ino)
    }

    /// Returns the limit of a session's locks and waiters. If the log limits the total, a session
    /// may not have more than remain free. So the sessions with the most locks are refused first.
    fn session_limit(&self) -> usize {
        self.limit.map_or(MAX_LOCKS, |limit| limit.saturating_sub(self.total + 1).min(MAX_LOCKS))
    }

    /// Returns the number of locks and waiters of a session.
    fn count(&self, session: u64) -> usize {
        self.counts.get(&session).copied().unwrap_or(0)
    }

    /// Changes the locks and waiters of one owner on a file, and adjusts all counts.
    fn change(&mut self, owner: Owner, ino: u64, change: impl FnOnce(&mut File)) {
        let file = self.files.entry(ino).or_default();
        let (held, waiting) = (file.held.len(), file.queue.len());
        change(file);
        let (held_now, waiting_now) = (file.held.len(), file.queue.len());
        if held_now + waiting_now == 0 {
            self.files.remove(&ino);
        }
        self.total = (self.total + held_now + waiting_now).saturating_sub(held + waiting);
        recount(&mut self.holding, owner, held, held_now);
        recount(&mut self.counts, owner.0, held + waiting, held_now + waiting_now);
    }

    fn release(&mut self, ino: u64, lock: &Lock) {
        if self.changes.is_some() && self.file(ino).is_some_and(|file| file.held.has_any(lock)) {
            self.note(ino, lock, LockKind::Unlock);
        }
        self.change(lock.owner, ino, |file| file.held.release(lock));
        self.grant_waiters(ino, &lock.range);
    }

    /// Returns true if a held lock conflicts with `wanted`.
    fn is_held(&self, ino: u64, wanted: &Lock) -> bool {
        self.file(ino).is_some_and(|file| file.held.conflicting(wanted).next().is_some())
    }

    /// Removes a waiter from its queue.
    fn dequeue(&mut self, ticket: Ticket) -> Option<(u64, Waiter)> {
        let ino = self.tickets.remove(&ticket)?;
        let queue = &self.file(ino)?.queue;
        let at = queue.iter().position(|waiter| waiter.ticket() == ticket)?;
        let waiter = queue[at];
        let owner = waiter.wanted.owner;
        self.change(owner, ino, |file| {
            file.queue.remove(at);
        });
        if let Some(own) = self.by_owner.get_mut(&owner) {
            own.retain(|other| *other != ticket);
            if own.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
        Some((ino, waiter))
    }

    fn answer(&mut self, ticket: Ticket, outcome: Result<(), Errno>) {
        if let Some((ino, _)) = self.dequeue(ticket) {
            self.answers.push(Answer { ticket, ino, outcome });
        }
    }

    /// Grants all requests that a change in this range made possible, in queue order.
    fn grant_waiters(&mut self, ino: u64, range: &LockRange) {
        self.grant_waiters_in(vec![(ino, *range)]);
    }

    fn grant_waiters_in(&mut self, mut changed: Vec<(u64, LockRange)>) {
        changed.retain(|(ino, _)| self.file(*ino).is_some_and(|file| !file.queue.is_empty()));
        if changed.is_empty() {
            return;
        }
        // Grants follow the order of requests over all files, because one grant can rule out
        // another. `first` has the first waiter of each file that could be granted when it was
        // examined.
        let (mut first, mut ranges) = (BinaryHeap::new(), HashMap::<u64, LockRange>::new());
        loop {
            for (ino, also) in changed.drain(..) {
                let range =
                    ranges.entry(ino).and_modify(|range| *range = range.around(&also)).or_insert(also);
                first.extend(self.next_grantable(ino, range).map(|waiter| Reverse((waiter.asked, ino))));
            }
            let Some(Reverse((asked, ino))) = first.pop() else { return };
            let Some(waiter) = self.next_grantable(ino, &ranges[&ino]) else { continue };
            if waiter.asked == asked {
                self.answer(waiter.ticket(), Ok(()));
                changed = self.grant(ino, waiter.wanted);
            } else {
                first.push(Reverse((waiter.asked, ino)));
            }
        }
    }

    /// Adds a lock without conflicts. Returns the ranges where other waiters may succeed now.
    fn grant(&mut self, ino: u64, lock: Lock) -> Vec<(u64, LockRange)> {
        self.note(ino, &lock, lock.kind());
        self.change(lock.owner, ino, |file| file.held.insert(lock));
        // The new lock may be weaker than the one it replaces.
        let mut changed = vec![(ino, lock.range)];
        // The owner may also wait elsewhere, in another thread. Waiters behind the new lock then
        // wait for that, too.
        if self.by_owner.contains_key(&lock.owner) {
            changed.extend(self.inodes_waited_for(lock.owner).into_iter().map(|ino| (ino, LockRange::ALL)));
            if self.refuse_cycles(ino) {
                changed.push((ino, LockRange::ALL));
            }
        }
        changed
    }

    /// Returns the first waiter in a range that can be granted.
    fn next_grantable(&self, ino: u64, range: &LockRange) -> Option<Waiter> {
        let queue = &self.file(ino)?.queue;
        let can = |(at, waiter): &(usize, &Waiter)| {
            waiter.wanted.range.overlaps(range)
                && (waiter.insists || !self.is_behind(ino, &waiter.wanted, Some(*at)))
                && !self.is_held(ino, &waiter.wanted)
        };
        seeded!(OutOfTurn => return queue.iter().enumerate().rev().find(can).map(|(_, waiter)| *waiter));
        queue.iter().enumerate().find(can).map(|(_, waiter)| *waiter)
    }

    /// Answers EDEADLK to waiters of an inode that a new lock put on a cycle. Returns true if there
    /// were any.
    fn refuse_cycles(&mut self, ino: u64) -> bool {
        let all = self.file(ino).map_or_else(Vec::new, |file| file.queue.clone());
        let before = self.answers.len();
        for waiter in all {
            if self.closes_cycle(ino, &waiter.wanted) {
                self.answer(waiter.ticket(), Err(Errno::EDEADLK));
            }
        }
        self.answers.len() > before
    }
}

fn recount<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K, before: usize, after: usize) {
    let count = (counts.get(&key).copied().unwrap_or(0) + after).saturating_sub(before);
    match count {
        0 => counts.remove(&key),
        _ => counts.insert(key, count),
    };
}
