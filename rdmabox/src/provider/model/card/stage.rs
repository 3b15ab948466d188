//! A part of the card that serves one request at a time, in order of arrival.
//!
//! No I/O, no locks, no clock: callers pass model times in nanoseconds, in ascending order.

/// A server with one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage {
    free_at: u64,
}

impl Stage {
    /// Serves a request that arrives at `arrival` for `service` ns. Returns the end.
    pub(super) fn serve(&mut self, arrival: u64, service: u64) -> u64 {
        self.free_at = arrival.max(self.free_at) + service;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stage_is_never_idle_while_a_request_waits(
            requests in prop::collection::vec((0..100u64, 0..100u64), 1..100),
        ) {
            let (mut stage, mut arrival, mut end) = (Stage::default(), 0, 0);
            for (gap, service) in requests {
                arrival += gap;
                let begin = arrival.max(end);
                end = stage.serve(arrival, service);
                prop_assert_eq!(end, begin + service);
            }
        }
    }
}
