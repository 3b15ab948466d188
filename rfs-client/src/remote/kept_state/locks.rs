//! The locks of files in the kept state. No I/O, no locks of its own, no clock.

use std::{collections::HashMap, sync::atomic::Ordering};

use rfs_proto::LockClass;

use super::{
    area::Area,
    free_places::FreePlaces,
    layout::{LOCK_COUNT, LOCK_LEN, LOCKS, header},
};

/// A lock that may be held, or, with a ticket, waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeptLock {
    pub(crate) ino: u64,
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) class: LockClass,
    /// Ticket of the request, if it waits.
    pub(crate) ticket: Option<u64>,
}

/// The locks, and where each of them is written.
#[derive(Debug)]
pub(super) struct KeptLocks {
    free: FreePlaces,
    places: HashMap<KeptLock, usize>,
}

fn lock_at(place: usize) -> usize {
    LOCKS + LOCK_LEN * place
}

impl KeptLocks {
    pub(super) fn new() -> KeptLocks {
        KeptLocks { free: FreePlaces::new(LOCK_COUNT, header::LOCKS_USED), places: HashMap::new() }
    }

    /// Writes a lock down. Returns false if there is no room.
    pub(super) fn add(&mut self, area: &Area, lock: &KeptLock) -> bool {
        if self.places.contains_key(lock) {
            return true;
        }
        let Some(place) = self.free.take(area) else { return false };
        write_lock(area, place, lock);
        self.places.insert(*lock, place);
        true
    }

    /// Removes the locks that `hit` selects.
    pub(super) fn remove(&mut self, area: &Area, hit: impl Fn(&KeptLock) -> bool) {
        let gone: Vec<usize> = self.places.extract_if(|lock, _| hit(lock)).map(|(_, place)| place).collect();
        for place in gone {
            area.word(lock_at(place)).store(0, Ordering::Release);
            self.free.put_back(place);
        }
    }

    /// Takes in the locks that the previous process has written.
    pub(super) fn take_in(&mut self, area: &Area) -> Vec<KeptLock> {
        let mut locks = Vec::new();
        for place in 0..self.free.used(area) {
            match read_lock(area, place) {
                None => self.free.put_back(place),
                Some(lock) => {
                    self.places.insert(lock, place);
                    locks.push(lock);
                }
            }
        }
        locks
    }
}

fn write_lock(area: &Area, place: usize, lock: &KeptLock) {
    let at = lock_at(place);
    let class = u64::from(lock.class == LockClass::Flock);
    let ticket = lock.ticket.map_or(0, |ticket| ticket << 2 | 2);
    area.word(at + 8).store(lock.handle, Ordering::Relaxed);
    area.word(at + 16).store(lock.owner, Ordering::Relaxed);
    area.word(at + 24).store(ticket | class, Ordering::Relaxed);
    area.word(at).store(lock.ino, Ordering::Release);
}

fn read_lock(area: &Area, place: usize) -> Option<KeptLock> {
    let at = lock_at(place);
    let ino = area.word(at).load(Ordering::Acquire);
    let word = area.word(at + 24).load(Ordering::Relaxed);
    (ino != 0).then(|| KeptLock {
        ino,
        handle: area.word(at + 8).load(Ordering::Relaxed),
        owner: area.word(at + 16).load(Ordering::Relaxed),
        class: if word & 1 == 1 { LockClass::Flock } else { LockClass::Record },
        ticket: (word & 2 == 2).then_some(word >> 2),
    })
}
