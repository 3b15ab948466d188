//! The bytes or names of an answer, each of which an order has to explain.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// Bytes, or names, of one answer that an order has explained already.
#[derive(Debug, Default)]
pub(super) struct Elements {
    explained: Vec<bool>,
    pub(super) left: usize,
}

impl Elements {
    pub(super) fn new(count: usize) -> Elements {
        Elements { explained: vec![false; count], left: count }
    }

    pub(super) fn explain(&mut self, fits: impl Fn(usize) -> bool) {
        if self.left == 0 {
            return;
        }
        for (index, explained) in self.explained.iter_mut().enumerate() {
            if !*explained && fits(index) {
                *explained = true;
                self.left -= 1;
            }
        }
    }

    pub(super) fn explain_bytes(&mut self, seen: &[u8], model: &[u8]) {
        self.explain(|index| seen[index] == model.get(index).copied().unwrap_or(0));
    }

    pub(super) fn first_unexplained(&self) -> Option<usize> {
        self.explained.iter().position(|explained| !explained)
    }
}
