//! One request of the kernel, from its arrival to its answer.
//!
//! # Concurrency
//! A session thread enters the scope while it serves the request. Any thread may end it. One lock,
//! held briefly.

use std::{
    cell::RefCell,
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use super::{
    calls::KeptCalls,
    counter::Counter,
    layout::{APPEND_LOCK, APPEND_OFFSET},
    state::KeptState,
};

#[derive(Default)]
struct State {
    /// Place of the request in the kept state, once it has an effect.
    entry: Option<usize>,
    effects: usize,
    /// Number of calls so far.
    calls: u32,
    /// Slots and sequence numbers of calls, which stay in flight until the answer.
    slots: Vec<(u32, u64)>,
    owner: Option<Weak<dyn KeptCalls>>,
    is_over: bool,
}

/// A request of the kernel whose effects and calls are kept until it is answered.
pub struct RequestScope {
    kept: Arc<KeptState>,
    unique: u64,
    is_repeated: bool,
    state: Mutex<State>,
}

impl fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestScope").field("unique", &self.unique).finish_non_exhaustive()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<RequestScope>>> = const { RefCell::new(None) };
}

/// Returns the request that the calling thread serves, if its state is kept.
pub(crate) fn current() -> Option<Arc<RequestScope>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Returns true if the calling thread serves a request that a previous process had taken, and
/// perhaps carried out. Such a request must not take another way than in that process.
pub fn is_repeated_request() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|request| request.is_repeated()))
}

/// The calling thread serves a request while this lives.
#[derive(Debug)]
pub struct InScope(());

impl Drop for InScope {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

impl RequestScope {
    /// Begins a request with the kernel's number `unique`. `is_repeated`: a previous process had
    /// taken it.
    #[must_use]
    pub fn begin(kept: &Arc<KeptState>, unique: u64, is_repeated: bool) -> Arc<RequestScope> {
        Arc::new(RequestScope { kept: Arc::clone(kept), unique, is_repeated, state: Mutex::default() })
    }

    /// Returns true if a previous process had taken the request. Replies to its calls may be older
    /// than recalls that the previous process has obeyed.
    pub(crate) fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Has the calling thread serve the request.
    pub fn enter(self: &Arc<Self>) -> InScope {
        CURRENT.with_borrow_mut(|current| *current = Some(Arc::clone(self)));
        InScope(())
    }

    /// Notes a change of a counter of an inode.
    pub(super) fn note_effect(&self, ino: u64, counter: Counter, amount: i64) {
        self.note(&[(ino, counter as u8, amount)]);
    }

    /// Notes effects, all at once: values, their kinds, and amounts.
    fn note(&self, effects: &[(u64, u8, i64)]) {
        let mut state = self.state.lock();
        if state.is_over {
            return;
        }
        let entry = match state.entry {
            Some(entry) => entry,
            None => {
                let Some(entry) = self.kept.begin_request(self.unique) else { return };
                state.entry = Some(entry);
                entry
            }
        };
        if self.kept.add_effects(entry, state.effects, effects) {
            state.effects += effects.len();
        }
    }

    /// Notes that the request is about to place bytes at an offset, under the append lock `hold`.
    pub(crate) fn note_append(&self, offset: u64, hold: u64) {
        self.note(&[(offset, APPEND_OFFSET, 0), (hold, APPEND_LOCK, 0)]);
    }

    /// Notes that the request has placed no bytes, and begins its append anew.
    pub(crate) fn give_append_up(&self) {
        self.note(&[(0, APPEND_LOCK, 0)]);
    }

    /// Returns the offset and the append lock of an append that the previous process had begun for
    /// this request.
    pub(crate) fn previous_append(&self) -> Option<(u64, u64)> {
        if self.is_repeated { self.kept.previous_append(self.unique) } else { None }
    }

    /// Returns true if the server has carried out calls of the request that it has not made again.
    pub(crate) fn has_replies(&self) -> bool {
        self.is_repeated && self.kept.replies().has(self.unique)
    }

    /// Counts a call of the request. Returns its ordinal.
    pub(crate) fn next_call(&self) -> u32 {
        let mut state = self.state.lock();
        state.calls += 1;
        state.calls - 1
    }

    /// Returns the kernel's number of the request.
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// Keeps the slot of a call that has been answered until the request is answered. Returns
    /// false if that is so already.
    pub(crate) fn keep_slot(&self, owner: &Weak<dyn KeptCalls>, slot: (u32, u64)) -> bool {
        let mut state = self.state.lock();
        if state.is_over {
            return false;
        }
        state.slots.push(slot);
        state.owner.get_or_insert_with(|| Weak::clone(owner));
        true
    }

    /// Ends the request, whose answer has been sent.
    pub fn end(&self) {
        let (entry, slots, owner) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_over, true) {
                return;
            }
            (state.entry.take(), std::mem::take(&mut state.slots), state.owner.take())
        };
        if let Some(entry) = entry {
            self.kept.end_request(entry);
        }
        if self.is_repeated {
            self.kept.end_append(self.unique);
        }
        let unused = self.kept.replies().drop_unused(self.unique);
        if let Some(owner) = owner.and_then(|owner| owner.upgrade()) {
            owner.end_calls(&slots);
            owner.end_calls(&unused);
        } else if !unused.is_empty() {
            self.kept.end_unused(&unused);
        }
    }
}

impl Drop for RequestScope {
    fn drop(&mut self) {
        self.end();
    }
}
