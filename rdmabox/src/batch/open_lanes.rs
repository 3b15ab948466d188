//! The share of a batch that one lane takes.
//!
//! A card processes the work requests of a queue pair one after another, and those of several
//! queue pairs side by side. So a large batch is spread over the lanes. Each lane costs a doorbell
//! and a completion, so a small batch stays on one lane.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// Work requests that are worth a doorbell and a completion of their own. The requests of a list
/// end together, and release their part of the window together. So with long lists a small window
/// is empty for much of the time.
pub(crate) const MIN_SHARE: usize = 4;

/// The lanes that can take work requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenLanes {
    /// Number of lanes.
    count: usize,
    /// Work requests outstanding on them.
    outstanding: usize,
}

impl OpenLanes {
    /// Adds a lane with `outstanding` work requests.
    pub(crate) fn add(&mut self, outstanding: usize) {
        self.count += 1;
        self.outstanding += outstanding;
    }

    /// Returns true if a batch of `batch` work requests has two shares or more.
    pub(crate) fn is_worth_spreading(batch: usize) -> bool {
        batch >= 2 * MIN_SHARE
    }

    /// Returns the number of work requests, of a batch of `batch`, that a lane takes which has
    /// `own` outstanding ones.
    ///
    /// The share fills the lane to the level that all lanes have in the end, and has at least
    /// [`MIN_SHARE`] work requests. So there are no more shares than lanes.
    pub(crate) fn share(&self, batch: usize, own: usize) -> usize {
        if !OpenLanes::is_worth_spreading(batch) {
            return batch;
        }
        let level = (self.outstanding + batch).div_ceil(self.count.max(1));
        level.saturating_sub(own).clamp(MIN_SHARE, batch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives a batch to lanes with outstanding requests, beginning at one of them. Returns the
    /// shares in order.
    fn spread(batch: usize, lanes: &mut [usize], first: usize) -> Vec<usize> {
        let (mut rest, mut shares, mut at) = (batch, Vec::new(), first);
        while rest > 0 {
            let mut open = OpenLanes::default();
            lanes.iter().for_each(|outstanding| open.add(*outstanding));
            let share = open.share(rest, lanes[at]);
            lanes[at] += share;
            rest -= share;
            shares.push(share);
            at = (at + 1) % lanes.len();
        }
        shares
    }

    #[test]
    fn a_batch_is_spread_from_two_least_shares_on() {
        let idle = |batch| spread(batch, &mut [0; 4], 0);
        assert_eq!([1, 4, 7].map(idle), [vec![1], vec![4], vec![7]]);
        assert_eq!(idle(8), [4, 4]);
        // A rest of less than two shares stays together.
        assert_eq!(idle(15), [4, 4, 7]);
        assert_eq!(idle(16), [4; 4]);
        assert_eq!(idle(192), [48; 4]);
        assert_eq!(spread(192, &mut [0], 0), [192]);
    }

    #[test]
    fn a_lane_with_less_takes_more() {
        assert_eq!(spread(64, &mut [0, 40], 0), [52, 12]);
        assert_eq!(spread(64, &mut [40, 0], 0), [12, 52]);
        assert_eq!(spread(64, &mut [60, 0], 0), [4, 60]);
        assert_eq!(spread(64, &mut [0, 100, 100], 0), [64]);
    }

    proptest! {
        /// Catches a batch that stays on one lane, and a share that is not worth its doorbell.
        #[test]
        fn shares_of_idle_lanes_are_few_fair_and_large_enough(batch in 1..2000usize, lanes in 1..17usize) {
            let shares = spread(batch, &mut vec![0; lanes], 0);
            prop_assert_eq!(shares.iter().sum::<usize>(), batch);
            prop_assert!(shares.len() <= lanes, "{:?}", shares);
            prop_assert!(shares.len() > 1 || batch < 2 * MIN_SHARE || lanes == 1, "{:?}", shares);
            // All but the last one are equal, up to the rounding of the level.
            let (last, equal) = shares.split_last().unwrap();
            let differ = equal.iter().max().unwrap_or(&0) - equal.iter().min().unwrap_or(&0);
            prop_assert!(differ <= 1, "{:?}", shares);
            prop_assert!(equal.iter().all(|share| *share >= MIN_SHARE), "{:?}", shares);
            prop_assert!(equal.is_empty() || last + lanes >= MIN_SHARE, "{:?}", shares);
            prop_assert!(*last < 2 * MIN_SHARE || equal.first().is_none_or(|first| last <= first));
        }

        /// Catches more doorbells than lanes, and a lane that gets more than the others have.
        #[test]
        fn a_spread_over_busy_lanes_levels_them(
            batch in 1..1000usize,
            before in prop::collection::vec(0..300usize, 1..17),
            first in 0..16usize,
        ) {
            let (mut lanes, first) = (before.clone(), first % before.len());
            let shares = spread(batch, &mut lanes, first);
            prop_assert_eq!(shares.iter().sum::<usize>(), batch);
            prop_assert!(shares.len() <= lanes.len(), "one doorbell for each lane: {:?}", shares);
            let level = (before.iter().sum::<usize>() + batch).div_ceil(before.len());
            for (before, after) in before.iter().zip(&lanes) {
                prop_assert!(*after <= level.max(before + 2 * MIN_SHARE), "{:?}", shares);
            }
        }
    }
}
