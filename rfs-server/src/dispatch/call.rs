//! A request under way: the dispatcher's parts as one request uses them, and the recalls that it caused.
//!
//! Threading: a call belongs to one thread. Its steps take the metadata lock, one after the other.

use std::cell::RefCell;

use super::{Dispatcher, meta::Meta};
use crate::{clock::Clock, recalls::Need, scrub::Space};

/// A request under way.
pub(super) struct Call<'a> {
    dispatcher: &'a Dispatcher,
    pub(super) space: &'a Space,
    pub(super) clock: &'a dyn Clock,
    needs: RefCell<Vec<Need>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(dispatcher: &'a Dispatcher) -> Call<'a> {
        Call { dispatcher, space: &dispatcher.space, clock: &*dispatcher.clock, needs: RefCell::default() }
    }

    /// A step of it.
    pub(super) fn locked<T>(&self, step: impl FnOnce(&mut Meta) -> T) -> T {
        let (result, needs) = self.dispatcher.step(step);
        self.needs.borrow_mut().extend(needs);
        result
    }

    /// The recalls that it has to wait for, each once.
    pub(super) fn into_needs(self) -> Vec<Need> {
        let mut needs = self.needs.into_inner();
        needs.sort_unstable();
        needs.dedup();
        needs
    }
}
