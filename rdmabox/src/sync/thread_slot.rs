//! Small numbers for threads: at any time each belongs to one living thread. What is kept per slot has a single writer.

use std::cell::Cell;

use parking_lot::Mutex;

/// Numbers that there are.
pub(crate) const COUNT: usize = 64;

/// A bit for each number that is free.
static FREE: Mutex<u64> = Mutex::new(u64::MAX);

/// Gives the number of a thread back when that ends.
struct Taken(usize);

impl Taken {
    fn new() -> Taken {
        let mut free = FREE.lock();
        let lowest = free.trailing_zeros() as usize;
        *free &= free.wrapping_sub(1);
        // COUNT if there is none.
        Taken(lowest)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        MINE.set(COUNT);
        if self.0 < COUNT {
            // Whoever takes it next sees under this lock what was done with it.
            *FREE.lock() |= 1 << self.0;
        }
    }
}

/// Not asked for yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// The number, or COUNT for none. Apart from what gives it back, so that a look at it is no more than that.
    static MINE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static TAKEN: Taken = Taken::new();
}

#[cold]
fn take() -> usize {
    let number = TAKEN.try_with(|taken| taken.0).unwrap_or(COUNT);
    MINE.set(number);
    number
}

/// The calling thread's number, below [`COUNT`]. `None` if there are more threads than numbers, for as long as it lives,
/// and while it ends.
#[inline]
pub(crate) fn mine() -> Option<usize> {
    let mut mine = MINE.get();
    if mine == UNKNOWN {
        mine = take();
    }
    (mine < COUNT).then_some(mine)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Barrier, thread};

    use super::*;

    #[test]
    fn no_two_living_threads_have_the_same_and_those_that_end_give_theirs_back() {
        // More than there are numbers, twice: the second lot finds those of the first.
        for _ in 0..2 {
            let threads = COUNT + 10;
            let together = Barrier::new(threads);
            let slots: Vec<Option<usize>> = thread::scope(|scope| {
                let run = || {
                    let first = mine();
                    together.wait();
                    assert_eq!(mine(), first);
                    first
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let given: Vec<usize> = slots.iter().copied().flatten().collect();
            assert!(given.iter().all(|slot| *slot < COUNT));
            assert_eq!(given.iter().collect::<HashSet<_>>().len(), given.len());
            // Other tests of this process may hold some.
            assert!(slots.contains(&None));
            assert!(!given.is_empty());
        }
    }
}
