//! Small numbers for threads: at any time each belongs to one living thread. What is kept per slot has a single writer.

use parking_lot::Mutex;

/// Numbers that there are.
pub(crate) const COUNT: usize = 64;

/// A bit for each number that is free.
static FREE: Mutex<u64> = Mutex::new(u64::MAX);

/// The number of a thread, for as long as that lives.
struct Slot(Option<usize>);

impl Slot {
    fn take() -> Slot {
        let mut free = FREE.lock();
        let lowest = free.trailing_zeros() as usize;
        *free &= free.wrapping_sub(1);
        Slot((lowest < COUNT).then_some(lowest))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            // Whoever takes it next sees under this lock what was done with it.
            *FREE.lock() |= 1 << number;
        }
    }
}

thread_local! {
    static MINE: Slot = Slot::take();
}

/// The calling thread's number, below [`COUNT`]. `None` if there are more threads than numbers, for as long as it lives,
/// and while it ends.
#[inline]
pub(crate) fn mine() -> Option<usize> {
    MINE.try_with(|slot| slot.0).ok().flatten()
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
