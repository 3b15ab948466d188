//! Decides whether operations that ran at the same time have an order in which the model gives
//! the same answers.
//!
//! [`serialize`] searches all orders that respect real time: an operation that returned before
//! another began comes first. Answers, sizes, attributes, names and identities have to fit as a
//! whole, in one order. Each byte, and each name of a listing, has to fit in some such order. The
//! reason is in docs/semantics: overlapping writes may mix, and a copy or listing is no snapshot.
//! No I/O, no locks, no clock.

mod call;
mod elements;

use std::{collections::HashMap, rc::Rc};

pub(crate) use self::call::Call;
use self::{
    call::{overlap, uses_an_old_size},
    elements::Elements,
};
use super::{
    model::{Act, Resolved, State, Walk},
    operation::{Op, Outcome, Runs},
    view::{View, Where},
};

/// States that a search may visit. A round that needs more is undecided.
const MAX_STATES: usize = 300_000;
/// Nanoseconds after which a mount acknowledges a recall although none of its changes has ended.
const GRACE: u64 = 50_000_000;
/// Nanoseconds in which a mount drops a recalled name after its own change.
const DROP_LIMIT: u64 = 1_000_000_000;
/// All last components of paths.
const LEAVES: [&str; 7] = ["a", "b", "c", "d", "e", "x", "y"];

/// Why there is no such order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The model cannot give these answers, or not this state at the end.
    Wrong(String),
    /// There are too many orders to look at.
    Undecided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Waiting,
    Begun(Resolved),
    Ended,
}

/// Whether mounts may use names as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// All names are current.
    Current,
    /// Beside its own change of a directory, a mount may use a name there as it was. So it may with
    /// a name that it changes itself, until that call returns. So says
    /// docs/semantics/between-mounts.md, "Changes at the same moment".
    Earlier,
}

struct Search<'a> {
    calls: &'a [Call],
    names: Names,
    views: &'a [View],
    /// Workers whose client was killed at the end.
    killed: &'a [usize],
    /// For each call, the calls that returned before it began. The next two fields tell whether the
    /// call takes two steps, and whether its sizes may be old or change meanwhile.
    before: Vec<Vec<usize>>,
    split: Vec<bool>,
    resized: Vec<bool>,
    of_calls: Vec<Elements>,
    of_views: Vec<Vec<Elements>>,
    memo: HashMap<Vec<Phase>, Vec<(State, bool)>>,
    states: usize,
    found: Option<State>,
    /// The most operations that an order explained, and why it went no further.
    farthest: (usize, String),
}

/// Returns the state after all calls, with the bytes that were seen.
///
/// # Errors
/// Fails if no order explains all answers and views.
pub(crate) fn serialize(
    start: &State,
    calls: &[Call],
    views: &[View],
    killed: &[usize],
    names: Names,
) -> Result<State, Mismatch> {
    let mut search = Search::new(calls, views, killed, names);
    search.explore(start, &mut vec![Phase::Waiting; calls.len()]);
    search.verdict()
}

/// Returns true if an answer fits; single bytes and names apart.
fn fits(model: &Outcome, call: &Call, resized: bool) -> bool {
    match (model, &call.outcome) {
        (Outcome::Bytes(_), Outcome::Bytes(_)) if !call.checked => true,
        // A read looks at the size first, then at the bytes: its length is one more element.
        (Outcome::Bytes(_), Outcome::Bytes(_)) if resized => true,
        (Outcome::Bytes(model), Outcome::Bytes(seen)) if call.is_part() => seen.len() <= model.len(),
        (Outcome::Bytes(model), Outcome::Bytes(seen)) => model.len() == seen.len(),
        (Outcome::Names(_), Outcome::Names(seen)) => seen.iter().all(|name| LEAVES.contains(&name.as_str())),
        (model, seen) => model == seen,
    }
}

impl<'a> Search<'a> {
    fn new(calls: &'a [Call], views: &'a [View], killed: &'a [usize], names: Names) -> Search<'a> {
        let others = |call: &'a Call, test: fn(&Op) -> bool| {
            calls.iter().any(|other| other.id != call.id && overlap(call, other) && test(&other.op))
        };
        let resized: Vec<_> = calls
            .iter()
            .map(|call| others(call, Op::changes_size) || uses_an_old_size(call, calls))
            .collect();
        let split = calls.iter().zip(&resized).map(|(call, &resized)| match call.op {
            // Any operation may see the size between the two requests. A client that is killed may
            // perform the first one only.
            Op::Write { .. } => resized || (call.paged && (call.killed || others(call, |_| true))),
            _ => others(call, Op::changes_names),
        });
        let of_calls = calls.iter().map(|call| match &call.outcome {
            Outcome::Bytes(seen) if call.checked => Elements::new(seen.len() + 1),
            Outcome::Names(_) => Elements::new(LEAVES.len()),
            _ => Elements::default(),
        });
        let of_view = |view: &View| {
            view.objects
                .iter()
                .map(|object| Elements::new(object.bytes.as_ref().map_or(0, Vec::len)))
                .collect()
        };
        let before = |call: &Call| (0..calls.len()).filter(|&other| calls[other].to < call.from).collect();
        Search {
            before: calls.iter().map(before).collect(),
            split: split.collect(),
            of_calls: of_calls.collect(),
            of_views: views.iter().map(of_view).collect(),
            calls,
            names,
            views,
            killed,
            resized,
            states: 0,
            memo: HashMap::new(),
            found: None,
            farthest: (0, String::new()),
        }
    }

    fn is_complete(&self) -> bool {
        let views = self.of_views.iter().flatten();
        self.found.is_some() && self.of_calls.iter().chain(views).all(|elements| elements.left == 0)
    }

    fn verdict(self) -> Result<State, Mismatch> {
        if !self.is_complete() && self.states >= MAX_STATES {
            return Err(Mismatch::Undecided);
        }
        let Some(mut state) = self.found.clone() else { return Err(Mismatch::Wrong(self.farthest.1)) };
        for (call, elements) in self.calls.iter().zip(&self.of_calls) {
            let Some(index) = elements.first_unexplained() else { continue };
            let element = match call.outcome {
                Outcome::Names(_) => format!("name '{}'", LEAVES[index]),
                _ => format!("byte {index}"),
            };
            return Err(Mismatch::Wrong(format!("no order explains {element} of operation {}", call.id)));
        }
        for (view, elements) in self.views.iter().zip(&self.of_views) {
            for (object, elements) in view.objects.iter().zip(elements) {
                let Some(index) = elements.first_unexplained() else { continue };
                let (place, mount) = (object.place, view.mount);
                let seen = Runs(object.bytes.as_deref().unwrap_or_default());
                let found = object.place.find(&state).map(|id| state.inodes[&id].bytes.to_vec());
                let found = found.unwrap_or_default();
                return Err(Mismatch::Wrong(format!(
                    "no order explains byte {index} of {place:?} on mount {mount}: {seen}; an order gives {}",
                    Runs(&found)
                )));
            }
        }
        adopt(&mut state, self.views);
        Ok(state)
    }

    /// Tries all calls that can be next. Returns true if an order explains everything from here
    /// on.
    fn explore(&mut self, state: &State, progress: &mut Vec<Phase>) -> bool {
        if progress.iter().all(|phase| *phase == Phase::Ended) {
            return self.reach_end(state);
        }
        if let Some((_, known)) =
            self.memo.get(progress).and_then(|all| all.iter().find(|(at, _)| at == state))
        {
            return *known;
        }
        self.states += 1;
        let mut explained = false;
        for index in 0..self.calls.len() {
            if self.is_complete() || self.states >= MAX_STATES {
                return explained;
            }
            explained |= self.advance(state, progress, index);
        }
        self.memo.entry(progress.clone()).or_default().push((state.clone(), explained));
        explained
    }

    /// Performs the next step of one call, if it is possible, and explores from there.
    fn advance(&mut self, state: &State, progress: &mut Vec<Phase>, index: usize) -> bool {
        match progress[index] {
            Phase::Ended => false,
            Phase::Begun(found) => {
                self.skip(state, progress, index, found) | self.finish(state, progress, index, found)
            }
            Phase::Waiting if !self.before[index].iter().all(|&other| self.has_returned(progress, other)) => {
                false
            }
            Phase::Waiting => {
                let mut explained = self.skip(state, progress, index, Resolved::default());
                let mut next = state.clone();
                let found = next.resolve(self.act(index));
                self.note_names(state, &mut next, index, found);
                explained |= self.begin(&next, progress, index, found);
                if self.names == Names::Earlier {
                    let ways = state.resolve_by_earlier_names(self.act(index), self.walk(index));
                    for way in ways.into_iter().filter(|way| *way != found) {
                        explained |= self.begin(state, progress, index, way);
                    }
                }
                explained
            }
        }
    }

    /// Returns true if an order may begin other calls that began after the return of a call. All of
    /// it has happened, or the part that it has told.
    fn has_returned(&self, progress: &[Phase], index: usize) -> bool {
        let call = &self.calls[index];
        match progress[index] {
            Phase::Ended => true,
            Phase::Begun(found) => call.is_part() && found.has_written(&call.outcome),
            Phase::Waiting => false,
        }
    }

    fn act(&self, index: usize) -> Act<'a> {
        let calls = self.calls;
        let call = &calls[index];
        Act {
            worker: call.worker,
            id: call.id,
            op: &call.op,
            seen: &call.outcome,
            resized: self.resized[index],
            paged: call.paged,
        }
    }

    fn walk(&self, index: usize) -> Walk {
        Walk { mount: self.calls[index].mount, from: self.calls[index].from }
    }

    /// Notes the names that a step of a call has changed. Mounts may use them as they were.
    fn note_names(&self, before: &State, after: &mut State, index: usize, found: Resolved) {
        if self.names == Names::Current {
            return;
        }
        let (calls, change) = (self.calls, &self.calls[index]);
        after.note_own_change(before, change.mount, &change.op, found);
        let mounts = calls.iter().map(|call| call.mount);
        let drops = |mount, directory| {
            // The kernel changes its own names when the answer has come, perhaps after other mounts
            // have seen the change.
            if mount == change.mount {
                return Some(change.to);
            }
            let delays = |own: &&Call| {
                let is_long = own.to.saturating_sub(own.from) >= GRACE;
                own.mount == mount && overlap(own, change) && own.op.delays_drops(directory, is_long)
            };
            let last = calls.iter().filter(delays).map(|own| own.to).max();
            let late = last.map(|last| last.saturating_add(DROP_LIMIT));
            // A mount that asks for one name of a rename sees it, and may have the other name
            // cached until the rename returns.
            let meanwhile = matches!(change.op, Op::Rename { .. }).then_some(change.to);
            late.max(meanwhile)
        };
        after.note_earlier_names(before, (change.mount, mounts), drops);
    }

    /// Explores from a call that has walked its paths, before or after its second step.
    fn begin(&mut self, state: &State, progress: &mut Vec<Phase>, index: usize, found: Resolved) -> bool {
        if !self.split[index] {
            return self.finish(state, progress, index, found);
        }
        let phase = std::mem::replace(&mut progress[index], Phase::Begun(found));
        let explained = self.explore(state, progress);
        progress[index] = phase;
        explained
    }

    /// Explores from a call of which nothing more happens. Its client was killed.
    fn skip(&mut self, state: &State, progress: &mut Vec<Phase>, index: usize, found: Resolved) -> bool {
        let call = &self.calls[index];
        let told = call.is_part() && found.has_written(&call.outcome);
        if !told && call.outcome != Outcome::Unknown {
            return false;
        }
        let phase = std::mem::replace(&mut progress[index], Phase::Ended);
        let explained = self.explore(state, progress);
        progress[index] = phase;
        explained
    }

    /// Performs the last step of a call, and explores from there.
    fn finish(&mut self, state: &State, progress: &mut Vec<Phase>, index: usize, found: Resolved) -> bool {
        let call = &self.calls[index];
        let mut next = state.clone();
        let outcome = next.perform(self.act(index), found);
        let told = call.is_part() && found.has_written(&call.outcome);
        if call.outcome != Outcome::Unknown && !told && !fits(&outcome, call, self.resized[index]) {
            self.note_farthest(progress, || format!("operation {} has to give {outcome:?}", call.id));
            return false;
        }
        self.note_names(state, &mut next, index, found);
        let phase = std::mem::replace(&mut progress[index], Phase::Ended);
        let explained = self.explore(&next, progress);
        if explained {
            self.explain(state, index, found, &outcome);
        }
        progress[index] = phase;
        explained
    }

    /// Notes the bytes and names of an answer that an order explains.
    fn explain(&mut self, state: &State, index: usize, found: Resolved, outcome: &Outcome) {
        let (call, walk) = (&self.calls[index], self.walk(index));
        match (&call.outcome, outcome) {
            (Outcome::Bytes(seen), Outcome::Bytes(model)) if call.checked => {
                // A read through pages looks at the size again for each page.
                let length = seen.len() == model.len()
                    || (call.paged && self.resized[index])
                    || (call.is_part() && seen.len() < model.len());
                let byte = |at: usize| model.get(at).copied().unwrap_or(0);
                self.of_calls[index].explain(|at| seen.get(at).map_or(length, |&seen| seen == byte(at)));
            }
            (Outcome::Names(seen), Outcome::Names(model)) => self.of_calls[index].explain(|leaf| {
                let (leaf, listed) = (LEAVES[leaf], seen.contains(LEAVES[leaf]));
                listed == model.contains(leaf) || state.may_list_as_it_was(found, leaf, walk, listed)
            }),
            _ => {}
        }
    }

    fn note_farthest(&mut self, progress: &[Phase], reason: impl FnOnce() -> String) {
        let ended = progress.iter().filter(|phase| **phase == Phase::Ended).count();
        if ended > self.farthest.0 || self.farthest.1.is_empty() {
            self.farthest = (ended, reason());
        }
    }

    /// Compares the state after all calls with the views of the mounts.
    fn reach_end(&mut self, state: &State) -> bool {
        let mut state = state.clone();
        self.killed.iter().for_each(|&worker| state.close_all(worker));
        state.collect();
        state.earlier.clear();
        if let Some(difference) = self.views.iter().find_map(|view| view.difference(&state)) {
            self.farthest = (self.calls.len(), difference);
            return false;
        }
        for (view, all) in self.views.iter().zip(&mut self.of_views) {
            for (object, elements) in view.objects.iter().zip(all) {
                if let (Some(seen), Some(id)) = (&object.bytes, object.place.find(&state)) {
                    elements.explain_bytes(seen, &state.inodes[&id].bytes);
                }
            }
        }
        self.found.get_or_insert(state);
        true
    }
}

/// Gives the model the bytes that were seen. Each has been explained, perhaps by different
/// orders.
fn adopt(state: &mut State, views: &[View]) {
    for object in views.iter().flat_map(|view| &view.objects) {
        let found = object.place.find(state).and_then(|id| state.inodes.get_mut(&id));
        if let (Some(inode), Some(seen)) = (found, &object.bytes)
            && *inode.bytes != *seen
        {
            inode.bytes = Rc::new(seen.clone());
        }
    }
}

impl Where {
    /// Returns the object that is there in the model.
    pub(crate) fn find(&self, state: &State) -> Option<u64> {
        match self {
            Where::Name(path) => state.lookup(path),
            Where::Handle(handle) => state.handles.get(handle).map(|open| open.inode),
        }
    }
}

#[cfg(test)]
mod tests;
