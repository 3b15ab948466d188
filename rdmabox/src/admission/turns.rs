//! Whose turn it is to take room, of the two directions that share the window and the lanes.
//!
//! Room is bytes of the window, and places in a lane's send queue. Without turns, a direction whose
//! requests fit would take all room that completions return, and the other direction would wait for
//! ever. An ordered list, which needs several places at once, would get none beside single READs.
//! While both directions wait for room, only the one whose turn it is may take some. The turn
//! passes when that direction has taken room, or waits no more.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The runtime's admission lock protects it.

/// The turns of two directions, 0 and 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    /// Directions whose last attempt ended because there was no room.
    waiting: [bool; 2],
    /// The direction whose turn it is, if both wait.
    next: usize,
}

impl Turns {
    /// Returns true if `direction` may take room now.
    pub(crate) fn may_take(&self, direction: usize) -> bool {
        !self.waiting[1 - direction] || self.next == direction
    }

    /// Ends an attempt of `direction`, which `took` room and still `waits` for more, or not.
    /// Returns true if the turn has passed to the other direction. The caller then tries that
    /// direction now, because its last attempt may have been refused only for the sake of this
    /// direction.
    #[must_use]
    pub(crate) fn end_attempt(&mut self, direction: usize, took: bool, waits: bool) -> bool {
        let other = 1 - direction;
        self.waiting[direction] = waits;
        if !self.waiting[other] {
            self.next = direction;
            return false;
        }
        let passes = self.next == direction && (took || !waits);
        if passes {
            self.next = other;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_direction_alone_needs_no_turn() {
        let mut turns = Turns::default();
        for (took, waits) in [(true, false), (true, true), (false, true), (false, false)] {
            for direction in [0, 1] {
                assert!(turns.may_take(direction));
                assert!(!turns.end_attempt(direction, took, waits));
                assert!(!turns.end_attempt(direction, false, false));
            }
        }
    }

    #[test]
    fn directions_that_both_wait_take_turns() {
        let mut turns = Turns::default();
        assert!(!turns.end_attempt(1, false, true));
        assert!(!turns.may_take(0) && turns.may_take(1));
        assert!(!turns.end_attempt(0, false, true), "refused, but it is not its turn");
        assert!(!turns.end_attempt(1, false, true), "there is still no room");
        assert!(turns.end_attempt(1, true, true));
        assert!(turns.may_take(0) && !turns.may_take(1));
        assert!(turns.end_attempt(0, true, true));
        assert!(turns.end_attempt(1, false, false), "withdrawn: the other must be tried");
        assert!(turns.may_take(0));
    }

    proptest! {
        /// The direction that is refused can always be tried later: the other one waits for room,
        /// or the turn is passed.
        #[test]
        fn a_refused_direction_gets_its_turn(
            attempts in prop::collection::vec((0..2usize, any::<bool>(), any::<bool>()), 0..100),
        ) {
            let mut turns = Turns::default();
            let mut waiting = [false; 2];
            for (direction, room, waits) in attempts {
                let may = turns.may_take(direction);
                prop_assert!(may || waiting[1 - direction]);
                prop_assert!(turns.may_take(0) || turns.may_take(1));
                // A refused direction waits and has taken nothing.
                let (took, waits) = if may { (room, waits) } else { (false, true) };
                let passed = turns.end_attempt(direction, took, waits);
                waiting[direction] = waits;
                if passed {
                    prop_assert!(turns.may_take(1 - direction) && waiting[1 - direction]);
                }
                if waiting == [true; 2] && took {
                    prop_assert!(turns.may_take(1 - direction), "the turn passes");
                }
                if !waits {
                    prop_assert!(turns.may_take(1 - direction));
                }
            }
        }
    }
}
