//! Locks in the model: `flock`, and record locks of open file descriptions. No operation waits
//! for a lock.

use std::ops::Range;

use libc::{EAGAIN, EBADF};

use super::{Handle, Open, State, Step};
use crate::concurrent::operation::{Lock, Outcome};

fn conflicts(held: Option<Lock>, wanted: Lock) -> bool {
    match held {
        None | Some(Lock::Free) => false,
        Some(Lock::Shared) => wanted == Lock::Exclusive,
        Some(Lock::Exclusive) => wanted != Lock::Free,
    }
}

impl State {
    fn any_other(&self, handle: Handle, test: impl Fn(&Open) -> bool) -> bool {
        let inode = self.handles[&handle].inode;
        let mut others = self.handles.iter().filter(|(other, open)| **other != handle && open.inode == inode);
        others.any(|(_, open)| test(open))
    }

    /// Takes or drops the lock on a whole file. A lock that is held is dropped before another
    /// kind is taken, as `flock(2)` says.
    pub(super) fn lock_file(&mut self, handle: Handle, lock: Lock) -> Step<Outcome> {
        let refused = self.any_other(handle, |open| conflicts(open.flock, lock));
        let open = self.handles.get_mut(&handle).expect("an open file");
        if refused {
            open.flock = None;
            return Err(EAGAIN);
        }
        open.flock = (lock != Lock::Free).then_some(lock);
        Ok(Outcome::Done)
    }

    /// Takes or drops the lock on some bytes.
    pub(super) fn lock_range(&mut self, handle: Handle, lock: Lock, range: Range<usize>) -> Step<Outcome> {
        if lock == Lock::Exclusive && !self.handles[&handle].write {
            return Err(EBADF);
        }
        if self.any_other(handle, |open| open.ranges[range.clone()].iter().any(|&held| conflicts(held, lock)))
        {
            return Err(EAGAIN);
        }
        let open = self.handles.get_mut(&handle).expect("an open file");
        open.ranges[range].fill((lock != Lock::Free).then_some(lock));
        Ok(Outcome::Done)
    }

    /// Returns true if any open file of a worker has a lock.
    pub(crate) fn has_locks(&self, worker: usize) -> bool {
        let mut own = self.handles.iter().filter(|(handle, _)| handle.0 == worker);
        own.any(|(_, open)| open.flock.is_some() || open.ranges.iter().any(Option::is_some))
    }
}
