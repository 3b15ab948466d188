//! The time for which one thread combines for all.
//!
//! A combiner takes along the requests that other threads queue while it posts. If they queue
//! faster than it posts, it would never return to its caller, whose request is long done. After a
//! shift it hands the queue over.
//!
//! # Concurrency
//! A plain value of the combiner's thread.

use std::time::{Duration, Instant};

/// Length of a shift, after the first clock read. Long against the wake-up of another thread, which
/// each hand-over costs, and short against a timeout.
const LENGTH: Duration = Duration::from_millis(5);
/// Posts between two clock reads. Few combiners come this far, and the others read no clock.
const POSTS_PER_CLOCK_READ: u32 = 4;

/// A thread's time as the combiner.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shift {
    posts: u32,
    /// Time of the first clock read.
    began: Option<Instant>,
    is_over: bool,
}

impl Shift {
    /// Counts a post. Returns true if the shift is over.
    pub(crate) fn count_post(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.posts = self.posts.wrapping_add(1);
        if self.posts.is_multiple_of(POSTS_PER_CLOCK_READ) {
            let now = now();
            let began = *self.began.get_or_insert(now);
            self.is_over = now.saturating_duration_since(began) >= LENGTH;
        }
        self.is_over
    }

    /// Returns true if the shift is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the posts of a shift whose posts take `each`.
    fn posts_of_a_shift(each: Duration) -> u32 {
        let (start, mut shift) = (Instant::now(), Shift::default());
        let ends = |post: &u32| shift.count_post(|| start + each * *post);
        (1..1_000_000).find(ends).unwrap()
    }

    #[test]
    fn a_shift_has_a_length() {
        assert_eq!(posts_of_a_shift(Duration::from_micros(10)), 504);
        assert_eq!(posts_of_a_shift(Duration::from_micros(1)), 5004);
    }

    #[test]
    fn a_shift_of_slow_posts_ends_at_the_second_clock_read() {
        assert_eq!(posts_of_a_shift(Duration::from_secs(1)), 2 * POSTS_PER_CLOCK_READ);
    }

    #[test]
    fn few_posts_read_no_clock() {
        let mut shift = Shift::default();
        for _ in 1..POSTS_PER_CLOCK_READ {
            assert!(!shift.count_post(|| unreachable!("a clock read")));
        }
        assert!(!shift.is_over());
    }
}
