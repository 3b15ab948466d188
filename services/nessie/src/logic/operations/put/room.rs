//! Frees a slot of a key: a search for a path, then its migrations.

use crate::logic::{
    context::Context,
    operations::migrate::{Migrate, Migrated, Move, UnfinishedMove},
    operations::path::PathSearch,
    placement::Place,
    verb::{Answer, Failure, Step},
    word::Word,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Search(PathSearch),
    Move(Migrate),
}

/// The state of a search and of the migrations that follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::logic::operations) struct Room {
    phase: Phase,
    /// Moves that are to be made, the last one first.
    moves: Vec<Move>,
}

impl Room {
    pub(in crate::logic::operations) fn new(
        cx: &Context<'_>,
        place: &Place,
        words: impl Iterator<Item = Option<Word>>,
    ) -> Room {
        Room { phase: Phase::Search(PathSearch::new(cx, place, words)), moves: Vec::new() }
    }

    /// Makes one step. It also ends with `Ok` if another client interfered: the slots are to be
    /// read again.
    pub(in crate::logic::operations) fn step(
        &mut self,
        cx: &Context<'_>,
        mut answer: Answer,
    ) -> Step<Result<(), Failure>> {
        loop {
            let given = std::mem::replace(&mut answer, Answer::None);
            match &mut self.phase {
                Phase::Search(search) => match search.step(cx, given) {
                    Step::Issue(verb) => return Step::Issue(verb),
                    Step::Done(Err(e)) => return Step::Done(Err(e)),
                    Step::Done(Ok(moves)) => {
                        self.moves = moves;
                        self.moves.reverse();
                        let Some(first) = self.moves.pop() else {
                            return Step::Done(Err(Failure::IndexFull));
                        };
                        self.phase = Phase::Move(Migrate::new(first));
                    }
                },
                Phase::Move(migrate) => match migrate.step(cx, given) {
                    Step::Issue(verb) => return Step::Issue(verb),
                    Step::Done(Migrated::DataFull) => return Step::Done(Err(Failure::DataFull)),
                    Step::Done(Migrated::Failed) => return Step::Done(Ok(())),
                    Step::Done(Migrated::Moved(cleared)) => match self.moves.pop() {
                        None => return Step::Done(Ok(())),
                        Some(next) => {
                            let next = Move { destination_word: cleared, ..next };
                            self.phase = Phase::Move(Migrate::new(next));
                        }
                    },
                },
            }
        }
    }

    pub(in crate::logic::operations) fn unfinished(
        &self,
        cx: &Context<'_>,
        is_issued: bool,
    ) -> Option<UnfinishedMove> {
        match &self.phase {
            Phase::Search(_) => None,
            Phase::Move(migrate) => migrate.unfinished(cx, is_issued),
        }
    }
}
