//! GET: returns the value of a key.
//!
//! A GET reads the slots from the highest rank to the lowest, and returns the first valid entry of
//! the key. If it finds none, it reads all words a second time. Two equal readings prove that at
//! one moment no slot had a valid entry of the key.

use crate::logic::{
    context::Context,
    entry::Entry,
    operations::scan::{Order, Scan, ScanStep, Seen},
    placement::Place,
    verb::{Answer, Failure, Step, Verb},
};

/// Result of a GET.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Got {
    Found(Entry),
    NotFound,
    /// The key may have had a value on a lost node.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Scan,
    Pause,
    SecondLook,
}

/// The state of a GET.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Get {
    key: Box<[u8]>,
    place: Place,
    scan: Scan,
    phase: Phase,
}

impl Get {
    pub(crate) fn new(cx: &Context<'_>, key: &[u8]) -> Get {
        let place = cx.placement.place(key);
        Get { key: key.into(), scan: Scan::new(Order::Down, &place), place, phase: Phase::Scan }
    }

    /// Returns the position of the last slot. The slot of the lowest rank was read last, so no
    /// second look at it is needed.
    fn last(&self) -> Option<usize> {
        Some(self.scan.seen.len() - 1)
    }

    fn is_lost(&self) -> bool {
        self.scan.seen.iter().any(Seen::is_lost)
    }

    pub(crate) fn step(&mut self, cx: &Context<'_>, mut answer: Answer) -> Step<Result<Got, Failure>> {
        loop {
            match self.phase {
                Phase::Scan => {
                    let given = std::mem::replace(&mut answer, Answer::None);
                    match self.scan.step(cx, &self.key, &self.place, given) {
                        Err(e) => return Step::Done(Err(e.into())),
                        Ok(ScanStep::Issue(verb)) => return Step::Issue(verb),
                        Ok(ScanStep::Slot(rank)) => match &self.scan.seen[rank] {
                            Seen::Mine(found) if found.entry.is_valid() && found.entry.is_tombstone() => {
                                return Step::Done(Ok(Got::NotFound));
                            }
                            Seen::Mine(found) if found.entry.is_valid() => {
                                return Step::Done(Ok(Got::Found(found.entry.clone())));
                            }
                            _ => {}
                        },
                        // A PUT or MIGRATE of the key is under way.
                        Ok(ScanStep::Done)
                            if self.scan.seen.iter().any(|seen| seen.unfinished().is_some()) =>
                        {
                            self.phase = Phase::Pause;
                            return Step::Issue(Verb::Pause);
                        }
                        Ok(ScanStep::Done) if cx.rules.get_verifies => {
                            self.phase = Phase::SecondLook;
                            return Step::Issue(self.scan.second_look(&self.place, self.last()));
                        }
                        Ok(ScanStep::Done) => return Step::Done(Ok(self.absent())),
                    }
                }
                Phase::Pause => self.restart(),
                Phase::SecondLook => {
                    let Answer::Words(words) = std::mem::replace(&mut answer, Answer::None) else {
                        unreachable!("the answer to a READ of words")
                    };
                    if self.scan.is_stable(&words, self.last()) {
                        return Step::Done(Ok(self.absent()));
                    }
                    self.restart();
                }
            }
        }
    }

    fn restart(&mut self) {
        self.scan.restart();
        self.phase = Phase::Scan;
    }

    fn absent(&self) -> Got {
        if self.is_lost() { Got::Lost } else { Got::NotFound }
    }
}
