//! Who has locked what, and who waits for it: record locks (fcntl, open file descriptions) and whole-file locks (flock) of all
//! sessions. Pure.
//!
//! Who waits stands in his file's queue under a ticket and is answered once, through [`Locks::take_answers`]: he has the lock, or
//! would wait for ever ([EDEADLK](Errno::EDEADLK)), or has the file open no more. Whoever asked first is first. Behind somebody who waits
//! himself one waits, too, where their locks conflict, but
//!
//! - not if that one waits, over others or not, for the one who asks: he would wait for himself;
//! - not once he [insists](Locks::insist). An owner may wait outside of here for another one, which nobody can know of.
//!
//! Who does not want to wait is refused for locks that are held, and for no others.
//!
//! Threading: none; a lock of its own protects it.

mod circles;
mod held;
mod kept;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::Hash,
};

use rfs_proto::{Errno, HeldLock, LockClass, LockKind, LockRange};
use seeded_faults::{Fault, seeded};

use crate::durable::op::Locked;
use held::{Held, Lock};

/// Most locks that a session has or waits for at a time, give or take the pieces of the last ones; a client takes no more memory
/// with them.
pub const MAX_LOCKS: usize = 1 << 14;

/// Whose lock it is: a session, and what its client calls the owner.
pub type Owner = (u64, u64);

/// What a session calls a lock that it waits for.
pub type Ticket = (u64, u64);

/// A lock that is asked for, or given up.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Who.
    pub owner: Owner,
    /// In which of the two worlds.
    pub class: LockClass,
    /// Where.
    pub range: LockRange,
    /// For whoever asks who is in the way.
    pub pid: u32,
}

/// What asking led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is so.
    Done,
    /// The answer comes later.
    Waits,
}

/// What became of somebody who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who.
    pub ticket: Ticket,
    /// For a lock on which inode.
    pub ino: u64,
    /// He has it, or why not.
    pub outcome: Result<(), Errno>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// The number alone: the session is the owner's.
    number: u64,
    /// Its place among all who have ever begun to wait.
    asked: u64,
    wanted: Lock,
    /// Waits for nobody who waits.
    insists: bool,
}

impl Waiter {
    fn ticket(&self) -> Ticket {
        (self.wanted.owner.0, self.number)
    }
}

/// One file.
#[derive(Debug, Default)]
struct File {
    held: Held,
    /// In the order in which they asked.
    queue: Vec<Waiter>,
}

/// The locks.
#[derive(Debug, Default)]
pub struct Locks {
    files: HashMap<u64, File>,
    /// How many each session has and waits for.
    counts: HashMap<u64, usize>,
    /// How many there are and are waited for in all.
    total: usize,
    /// How many there may be.
    most: Option<usize>,
    /// How many each owner has.
    holding: HashMap<Owner, usize>,
    /// How many have begun to wait.
    asked: u64,
    /// The inode that each ticket is for.
    tickets: HashMap<Ticket, u64>,
    /// The tickets of each owner who waits.
    by_owner: HashMap<Owner, Vec<Ticket>>,
    answers: Vec<Answer>,
    /// What has been locked and unlocked since this was asked last; `None` if nobody asks.
    noted: Option<Vec<(u64, Locked)>>,
}

impl Locks {
    /// Locks or unlocks a range, replacing what the owner had there. With a `ticket`, a number of the session's own, it waits for
    /// a lock: until then the owner keeps what he has there, but for one of class flock. EAGAIN if somebody is in the way; EDEADLK
    /// if it would wait for somebody who waits for it; ENOLCK if the session has too many; EINVAL if something else waits under the ticket.
    pub fn set(&mut self, ino: u64, wish: Wish, kind: LockKind, ticket: Option<u64>) -> Result<Asked, Errno> {
        let Wish { owner, class, range, pid } = wish;
        let new = Lock { owner, class, exclusive: kind == LockKind::Exclusive, range, pid };
        let full = self.count(owner.0) >= self.most_of_one();
        match kind {
            LockKind::Unlock if full && self.file(ino).is_some_and(|file| file.held.would_split(&new)) => {
                Err(Errno::ENOLCK)
            }
            LockKind::Unlock => {
                self.give_up(ino, &new);
                Ok(Asked::Done)
            }
            _ if full => Err(Errno::ENOLCK),
            _ => self.ask(ino, new, ticket),
        }
    }

    fn ask(&mut self, ino: u64, new: Lock, ticket: Option<u64>) -> Result<Asked, Errno> {
        if let Some(number) = ticket
            && let Some(&taken) = self.tickets.get(&(new.owner.0, number))
        {
            // Who asks again for what he waits for goes on waiting.
            let same = |waiter: &&Waiter| waiter.number == number && waiter.wanted == new;
            let waits =
                taken == ino && self.file(ino).is_some_and(|file| file.queue.iter().any(|w| same(&w)));
            return if waits { Ok(Asked::Waits) } else { Err(Errno::EINVAL) };
        }
        let held_up = self.is_held(ino, &new);
        if !held_up && (ticket.is_none() || !self.is_behind(ino, &new, None)) {
            let changed = self.take(ino, new);
            self.settle_all(changed);
            return Ok(Asked::Done);
        }
        if held_up && new.class == LockClass::Flock {
            // Changing a lock is giving it up and asking for another one, says flock(2).
            self.give_up(ino, &new);
        }
        let Some(number) = ticket else { return Err(Errno::EAGAIN) };
        if self.closes_circle(ino, &new) {
            return Err(Errno::EDEADLK);
        }
        self.asked += 1;
        let waiter = Waiter { number, asked: self.asked, wanted: new, insists: false };
        self.change(new.owner, ino, |file| file.queue.push(waiter));
        self.tickets.insert(waiter.ticket(), ino);
        self.by_owner.entry(new.owner).or_default().push(waiter.ticket());
        let held_up = self.held_up_by_order(ino, &waiter);
        self.settle_all(held_up.into_iter().map(|other| (other, LockRange::ALL)).collect());
        Ok(Asked::Waits)
    }

    /// Who waits under this ticket waits no more, and gets no answer. False if nobody does: an answer was there before.
    pub fn stop_waiting(&mut self, ticket: Ticket) -> bool {
        let Some((ino, waiter)) = self.leave(ticket) else { return false };
        self.settle(ino, &waiter.wanted.range);
        true
    }

    /// Who waits under this ticket waits only for those who have a lock from now on. False if nobody does.
    pub fn insist(&mut self, ticket: Ticket) -> bool {
        let Some(&ino) = self.tickets.get(&ticket) else { return false };
        let queue = self.files.get_mut(&ino).map_or(&mut [][..], |file| &mut file.queue[..]);
        let Some(waiter) = queue.iter_mut().find(|waiter| waiter.ticket() == ticket) else { return false };
        waiter.insists = true;
        let range = waiter.wanted.range;
        self.settle(ino, &range);
        true
    }

    /// A lock that is in the way of one, if any.
    pub fn conflict(&self, ino: u64, wish: Wish, exclusive: bool) -> Option<(u64, HeldLock)> {
        let Wish { owner, class, range, pid } = wish;
        let wanted = Lock { owner, class, exclusive, range, pid };
        let found = self.file(ino)?.held.in_the_way(&wanted).next()?;
        Some((found.owner.0, HeldLock { exclusive: found.exclusive, range: found.range, pid: found.pid }))
    }

    /// The sessions that have locks of an inode.
    pub fn holders(&self, ino: u64) -> Vec<u64> {
        let held = self.file(ino).into_iter().flat_map(|file| file.held.iter());
        let mut sessions: Vec<u64> = held.map(|lock| lock.owner.0).collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions
    }

    /// A session has the inode open no more. Who waits there for it is told EBADF.
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
        self.settle(ino, &LockRange::ALL);
    }

    /// The answers since this was asked last, in order.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    fn file(&self, ino: u64) -> Option<&File> {
        self.files.get(&ino)
    }

    /// How many a session may have. Where not all fit, no more than are left for the others afterwards: whoever takes what he can get is
    /// refused first.
    fn most_of_one(&self) -> usize {
        self.most.map_or(MAX_LOCKS, |most| most.saturating_sub(self.total + 1).min(MAX_LOCKS))
    }

    /// How many locks a session has or waits for.
    fn count(&self, session: u64) -> usize {
        self.counts.get(&session).copied().unwrap_or(0)
    }

    /// Changes what one owner has in a file or waits for there.
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

    fn give_up(&mut self, ino: u64, lock: &Lock) {
        if self.noted.is_some() && self.file(ino).is_some_and(|file| file.held.has_any(lock)) {
            self.note(ino, lock, LockKind::Unlock);
        }
        self.change(lock.owner, ino, |file| file.held.give_up(lock));
        self.settle(ino, &lock.range);
    }

    /// True if a lock that is held is in the way.
    fn is_held(&self, ino: u64, wanted: &Lock) -> bool {
        self.file(ino).is_some_and(|file| file.held.in_the_way(wanted).next().is_some())
    }

    /// Takes somebody out of his queue.
    fn leave(&mut self, ticket: Ticket) -> Option<(u64, Waiter)> {
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
        if let Some((ino, _)) = self.leave(ticket) {
            self.answers.push(Answer { ticket, ino, outcome });
        }
    }

    /// After a change in this range: gives all their locks who can have them by now, the first one first.
    fn settle(&mut self, ino: u64, range: &LockRange) {
        self.settle_all(vec![(ino, *range)]);
    }

    fn settle_all(&mut self, mut changed: Vec<(u64, LockRange)>) {
        changed.retain(|(ino, _)| self.file(*ino).is_some_and(|file| !file.queue.is_empty()));
        if changed.is_empty() {
            return;
        }
        // In the order in which they asked over all files: who gets his may decide who is refused. The first one of each file is here, who could
        // have his when it was looked at.
        let (mut first, mut ranges) = (BinaryHeap::new(), HashMap::<u64, LockRange>::new());
        loop {
            for (ino, also) in changed.drain(..) {
                let range =
                    ranges.entry(ino).and_modify(|range| *range = range.around(&also)).or_insert(also);
                first.extend(self.next(ino, range).map(|waiter| Reverse((waiter.asked, ino))));
            }
            let Some(Reverse((asked, ino))) = first.pop() else { return };
            let Some(waiter) = self.next(ino, &ranges[&ino]) else { continue };
            if waiter.asked == asked {
                self.answer(waiter.ticket(), Ok(()));
                changed = self.take(ino, waiter.wanted);
            } else {
                first.push(Reverse((waiter.asked, ino)));
            }
        }
    }

    /// Takes a lock that nobody is in the way of. Where others may get theirs for that.
    fn take(&mut self, ino: u64, lock: Lock) -> Vec<(u64, LockRange)> {
        self.note(ino, &lock, lock.kind());
        self.change(lock.owner, ino, |file| file.held.take(lock));
        // It may have had a stronger one there.
        let mut changed = vec![(ino, lock.range)];
        // Who has got it may be waiting for something else, in another thread: then others wait for him, who did not.
        if self.by_owner.contains_key(&lock.owner) {
            changed.extend(self.waited_for_by(lock.owner).into_iter().map(|ino| (ino, LockRange::ALL)));
            if self.refuse_circles(ino) {
                changed.push((ino, LockRange::ALL));
            }
        }
        changed
    }

    /// The first in a range who can have his lock.
    fn next(&self, ino: u64, range: &LockRange) -> Option<Waiter> {
        let queue = &self.file(ino)?.queue;
        let can = |(at, waiter): &(usize, &Waiter)| {
            waiter.wanted.range.overlaps(range)
                && (waiter.insists || !self.is_behind(ino, &waiter.wanted, Some(*at)))
                && !self.is_held(ino, &waiter.wanted)
        };
        if seeded(Fault::OutOfTurn) {
            return queue.iter().enumerate().rev().find(can).map(|(_, waiter)| *waiter);
        }
        queue.iter().enumerate().find(can).map(|(_, waiter)| *waiter)
    }

    /// Refuses those who wait for themselves since somebody got a lock. True if there were any.
    fn refuse_circles(&mut self, ino: u64) -> bool {
        let all = self.file(ino).map_or_else(Vec::new, |file| file.queue.clone());
        let before = self.answers.len();
        for waiter in all {
            if self.closes_circle(ino, &waiter.wanted) {
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
