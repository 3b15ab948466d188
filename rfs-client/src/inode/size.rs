//! The known size of an open file, which lets an operation skip the read of its record.
//!
//! A [`KnownSize`] is a lower bound. Within one layout generation a size only rises, so the bound
//! holds as long as the generation does. A new generation can lower the size. Before the server
//! answers the call that shortened the file, it recalls the layout from every session that has the
//! file open. A [`RecallPeriod`] says whether the server is known to do so for this client. While
//! the server moves data of a file ([`rfs_proto::moves`]), no size counts as known. Each operation
//! then reads the record, which shows whether its places were still right.
//!
//! # Concurrency
//! An inode's lock protects its [`KnownSize`]. [`RecallPeriod`] is one atomic word.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::remote::address::Epoch;

/// Epoch and generation of a fetched layout. A later layout compares greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LayoutId {
    pub(crate) epoch: Epoch,
    pub(crate) generation: u64,
}

/// Value of [`RecallPeriod::now`] outside of a period.
const NONE: u64 = 0;

/// The time for which the server has recalled layouts from this client without a gap.
///
/// An odd word is the number of the current period. An even word means that there is none.
#[derive(Debug, Default)]
pub(crate) struct RecallPeriod(AtomicU64);

impl RecallPeriod {
    /// Returns the current period, or [`NONE`].
    pub(crate) fn now(&self) -> u64 {
        let word = self.0.load(Ordering::Acquire);
        if word.is_multiple_of(2) { NONE } else { word }
    }

    /// Begins a period, unless one is current: the server recalls layouts from now on.
    pub(crate) fn begin(&self) {
        let next = |word: u64| word.is_multiple_of(2).then_some(word + 1);
        // An error means that a period is current.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok();
    }

    /// Ends the period: sizes may fall without a recall from now on. Voids all sizes seen before.
    pub(crate) fn end(&self) {
        let next = |word: u64| (!word.is_multiple_of(2)).then_some(word + 1);
        // An error means that no period is current.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok();
    }
}

/// Epoch and recall period at the start of a read of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookStart {
    pub(crate) epoch: Epoch,
    pub(crate) period: u64,
}

/// A lower bound of a file's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownSize {
    layout: LayoutId,
    /// Period of the read; [`NONE`] if the bound is a guess.
    period: u64,
    size: u64,
}

impl KnownSize {
    /// Returns the size that was read last, which may be wrong by now.
    pub(crate) fn guess(self) -> u64 {
        self.size
    }

    /// Returns true if a file with this layout certainly has at least `end` bytes in this period.
    pub(crate) fn reaches(self, layout: LayoutId, end: u64, period: u64) -> bool {
        let is_known = self.period == period && period != NONE && self.layout == layout;
        // While data moves, only the record says whether the places are still right.
        is_known && end <= self.size && !rfs_proto::moves(layout.generation)
    }

    /// Takes in a size that was read. Ignores a read that began before the bound was voided.
    pub(crate) fn saw(&mut self, start: LookStart, generation: u64, size: u64) {
        let layout = LayoutId { epoch: start.epoch, generation };
        let seen = KnownSize { layout, period: start.period, size };
        match (layout, start.period).cmp(&(self.layout, self.period)) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => self.size = self.size.max(size),
            std::cmp::Ordering::Greater => *self = seen,
        }
    }

    /// Returns true if [`saw`](Self::saw) would change the bound.
    pub(crate) fn learns(self, start: LookStart, generation: u64, size: u64) -> bool {
        let mut after = self;
        after.saw(start, generation, size);
        after != self
    }

    /// Voids sizes of layouts before this one, including those of reads in flight.
    pub(crate) fn recalled(&mut self, layout: LayoutId) {
        if self.layout < layout {
            *self = KnownSize { layout, period: NONE, size: self.size };
        }
    }

    /// Turns the bound into a guess: the next operation reads the record.
    pub(crate) fn distrust(&mut self) {
        self.period = NONE;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generations of tests are those of files whose data does not move.
    const G: u64 = 2;

    fn id(generation: u64) -> LayoutId {
        LayoutId { epoch: Epoch(0), generation: generation * G }
    }

    fn start(period: u64) -> LookStart {
        LookStart { epoch: Epoch(0), period }
    }

    #[test]
    fn a_size_is_known_for_one_layout_and_one_period() {
        let mut known = KnownSize::default();
        known.saw(start(1), 3 * G, 100);
        assert!(known.reaches(id(3), 100, 1));
        assert!(!known.reaches(id(3), 101, 1), "a bound, no more");
        assert!(!known.reaches(id(4), 100, 1) && !known.reaches(id(2), 100, 1));
        assert!(!known.reaches(id(3), 100, 3) && !known.reaches(id(3), 100, NONE));
        known.distrust();
        assert!(!known.reaches(id(3), 1, 1) && known.guess() == 100);
        known.saw(start(NONE), 3 * G, 200);
        assert!(!known.reaches(id(3), 1, NONE), "nothing is recalled from this client");
    }

    #[test]
    fn no_size_is_known_while_data_moves() {
        let moves = LayoutId { epoch: Epoch(0), generation: 7 };
        let mut known = KnownSize::default();
        known.saw(start(1), moves.generation, 100);
        assert!(!known.reaches(moves, 1, 1), "the places may change without a recall that is awaited");
        assert_eq!(known.guess(), 100);
        known.saw(start(1), 8, 100);
        assert!(known.reaches(LayoutId { generation: 8, ..moves }, 1, 1));
    }

    #[test]
    fn a_read_from_before_a_recall_changes_nothing() {
        let mut known = KnownSize::default();
        known.saw(start(1), 3 * G, 100);
        known.recalled(id(4));
        known.saw(start(1), 3 * G, 100);
        assert!(!known.reaches(id(3), 1, 1) && !known.reaches(id(4), 1, 1));
        known.saw(start(1), 4 * G, 10);
        assert!(known.reaches(id(4), 10, 1) && !known.reaches(id(4), 11, 1));
        known.recalled(id(4));
        assert!(known.reaches(id(4), 10, 1), "it was seen with that one");
    }

    #[test]
    fn periods_begin_and_end_once() {
        let period = RecallPeriod::default();
        assert_eq!(period.now(), NONE);
        period.end();
        period.begin();
        let first = period.now();
        period.begin();
        assert_eq!((period.now(), first == NONE), (first, false));
        period.end();
        assert_eq!(period.now(), NONE);
        period.begin();
        assert!(period.now() > first);
    }

    /// An event at the file or at a client that reads its size.
    #[derive(Clone, Debug)]
    enum Step {
        Raise(u64),
        /// The size falls. The client hears of it in a later [`Step::Hear`].
        Fall(u64),
        Hear,
        Begin,
        Finish(usize),
        Distrust,
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..100u64).prop_map(Step::Raise),
            (0..100u64).prop_map(Step::Fall),
            Just(Step::Hear),
            Just(Step::Begin),
            (0..8usize).prop_map(Step::Finish),
            Just(Step::Distrust),
            Just(Step::Restart),
        ]
    }

    proptest! {
        /// Once the client has heard of every fall, no known size exceeds the file's size. The
        /// order in which its reads end does not matter.
        #[test]
        fn a_known_size_never_exceeds_the_size(steps in prop::collection::vec(step(), 1..80)) {
            let period = RecallPeriod::default();
            period.begin();
            let (mut size, mut generation, mut heard) = (0, 0, 0);
            let (mut known, mut looks) = (KnownSize::default(), Vec::new());
            for step in steps {
                match step {
                    Step::Raise(to) => size = to.max(size),
                    Step::Fall(to) if to < size => (size, generation) = (to, generation + 1),
                    Step::Fall(_) => {}
                    Step::Hear => {
                        known.recalled(id(generation));
                        heard = generation;
                    }
                    Step::Begin => looks.push((start(period.now()), generation, size)),
                    Step::Finish(at) if at < looks.len() => {
                        let (start, generation, size) = looks.remove(at);
                        known.saw(start, generation * G, size);
                    }
                    Step::Finish(_) => {}
                    Step::Distrust => known.distrust(),
                    // The client does not hear of a fall during a restart.
                    Step::Restart => {
                        period.end();
                        (size, generation, heard) = (size / 2, generation + 1, generation + 1);
                        period.begin();
                    }
                }
                if heard == generation {
                    for old in 0..=generation {
                        prop_assert!(!known.reaches(id(old), size + 1, period.now()));
                    }
                }
            }
        }
    }
}
