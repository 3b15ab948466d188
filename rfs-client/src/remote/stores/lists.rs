//! Lists of steps for several sessions, which run at the same time.
//!
//! # Concurrency
//! A list belongs to the thread that runs it. No locks.

use std::sync::Arc;

use rdmabox::{Op as Step, RequestError, Session, across};
use smallvec::SmallVec;

/// Most steps of a list for one session, below the depth of every queue pair.
const MAX_STEPS: usize = 16;

/// The steps of several sessions.
#[derive(Debug, Default)]
pub(super) struct Lists<'a> {
    lists: SmallVec<[List<'a>; 4]>,
}

/// The steps of a session.
#[derive(Debug)]
struct List<'a> {
    store: u16,
    session: Arc<Session>,
    steps: Vec<Step<'a>>,
}

impl<'a> Lists<'a> {
    #[inline]
    pub(super) fn push(&mut self, store: u16, session: &Arc<Session>, step: Step<'a>) {
        match self.lists.iter_mut().find(|list| list.store == store) {
            Some(list) => list.steps.push(step),
            None => self.lists.push(List { store, session: Arc::clone(session), steps: vec![step] }),
        }
    }

    /// Runs the lists of all sessions, in rounds of up to [`MAX_STEPS`] steps for each. Returns the
    /// first error with its store. An error of the server comes first.
    #[inline]
    pub(super) fn run(mut self) -> Result<(), (u16, RequestError)> {
        let longest = self.lists.iter().map(|list| list.steps.len()).max().unwrap_or(0);
        for round in 0..longest.div_ceil(MAX_STEPS) {
            let (mut stores, mut parts) = (SmallVec::<[u16; 4]>::new(), SmallVec::<[_; 4]>::new());
            for List { store, session, steps } in &mut self.lists {
                let end = steps.len().min((round + 1) * MAX_STEPS);
                if let Some(part) = steps.get_mut(round * MAX_STEPS..end).filter(|part| !part.is_empty()) {
                    stores.push(*store);
                    parts.push((&**session, part));
                }
            }
            let outcomes = stores.into_iter().zip(across(&mut parts));
            let errors = outcomes.filter_map(|(store, outcome)| Some((store, outcome.err()?)));
            if let Some(first) = errors.min_by_key(|(store, _)| *store) {
                return Err(first);
            }
        }
        Ok(())
    }
}
