//! Places of the kept state that are free. No I/O, no locks, no clock.

use std::sync::atomic::Ordering;

use super::area::Area;

/// Places that are free: those given back, and those that were never in use.
#[derive(Debug)]
pub(super) struct FreePlaces {
    returned: Vec<usize>,
    count: usize,
    /// Offset of the word with the number of places that were in use.
    used: usize,
}

impl FreePlaces {
    /// Returns all of `count` places, of which the word at `used` tells how many were in use.
    pub(super) fn new(count: usize, used: usize) -> FreePlaces {
        FreePlaces { returned: Vec::new(), count, used }
    }

    pub(super) fn take(&mut self, area: &Area) -> Option<usize> {
        self.returned.pop().or_else(|| {
            let used = area.word(self.used);
            let next = used.load(Ordering::Relaxed) as usize;
            (next < self.count).then(|| {
                used.store(next as u64 + 1, Ordering::Release);
                next
            })
        })
    }

    pub(super) fn put_back(&mut self, place: usize) {
        self.returned.push(place);
    }

    /// Returns the number of places that were in use.
    pub(super) fn used(&self, area: &Area) -> usize {
        (area.word(self.used).load(Ordering::Acquire) as usize).min(self.count)
    }
}
