//! Decides which fault happens next.
//!
//! # Concurrency
//! Any thread may ask. One lock around the random numbers, held for each number.

use parking_lot::Mutex;

use super::Chance;

/// Frequency of each fault, per thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Selects the sequence of decisions.
    pub seed: u64,
    /// Completions that become available some polls later. With the same frequency another queue
    /// pair's completions come first.
    pub late: u16,
    /// Completions that are lost although their request was executed.
    pub lost: u16,
    /// Completions that report a failure although their request was executed.
    pub failed: u16,
    /// Posts that take part of their list.
    pub short: u16,
    /// Posts after which the queue pair breaks, and direct executions that break it.
    pub broken: u16,
    /// Registrations of callers' buffers that are refused.
    pub refused: u16,
    /// Network connections that end after some bytes, in either direction.
    pub cut: u16,
    /// Places in the send queue of each queue pair for data; 0 for as many as the device has.
    pub places: u32,
    /// Whether queue pairs for calls have faults too, which usually end the session.
    pub calls: bool,
    /// Whether the device lacks the atomics of [`AtomicOp`](crate::AtomicOp), as RDMA devices do.
    pub no_atomic_ops: bool,
}

impl Faults {
    /// Returns no faults at all, for the caller to set their frequencies.
    pub fn none(seed: u64) -> Faults {
        Faults { seed, ..Faults::default() }
    }

    /// Returns a mix of all faults for queue pairs for data.
    pub fn some(seed: u64) -> Faults {
        Faults {
            seed,
            late: 200,
            lost: 3,
            failed: 15,
            short: 15,
            broken: 10,
            refused: 30,
            cut: 300,
            places: 0,
            calls: false,
            no_atomic_ops: false,
        }
    }

    /// Returns one kind of fault, or all of them, depending on the seed.
    pub fn varied(seed: u64) -> Faults {
        let all = Faults::some(seed);
        let one = Faults::none(seed);
        match seed % 8 {
            0 => Faults { late: 500, ..one },
            1 => Faults { lost: 10, ..one },
            2 => Faults { failed: 50, ..one },
            3 => Faults { short: 50, ..one },
            4 => Faults { broken: 50, ..one },
            5 => Faults { refused: 300, cut: 700, ..one },
            _ => all,
        }
    }
}

/// Fate of a successful completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Now,
    /// Available after this number of polls.
    Late(u32),
    Lost,
    Failed,
}

/// Fate of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posting {
    Whole,
    /// Takes the first requests only, fewer than all.
    Part(usize),
    /// Takes all requests, then the queue pair breaks.
    Broken,
}

/// Position at which a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Number of bytes that pass before the end.
    pub after: u64,
    /// True to count bytes from the peer, false to count bytes to the peer.
    pub incoming: bool,
}

/// Maximum number of polls by which a completion is late.
const MAX_DELAY_POLLS: u64 = 40;
/// Maximum number of bytes before a connection ends: the handshake of a queue pair and some
/// requests.
const MAX_CUT_BYTES: u64 = 96 << 10;

/// The sequence of decisions of devices. Devices that share a plan continue its sequence, so that
/// sessions of one client do not all fail at the same point.
#[derive(Debug)]
pub struct Plan {
    faults: Faults,
    chance: Mutex<Chance>,
}

impl Plan {
    /// Creates the sequence that the seed of `faults` selects.
    pub fn new(faults: Faults) -> Plan {
        Plan { faults, chance: Mutex::new(Chance::new(faults.seed)) }
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns a number below `limit`, which must not be zero.
    fn below(&self, limit: u64) -> u64 {
        self.chance.lock().below(limit)
    }

    fn happens(&self, of_thousand: u16) -> bool {
        of_thousand > 0 && self.below(1000) < of_thousand.into()
    }

    pub(super) fn arrival(&self) -> Arrival {
        match self {
            _ if self.happens(self.faults.lost) => Arrival::Lost,
            _ if self.happens(self.faults.failed) => Arrival::Failed,
            _ if self.happens(self.faults.late) => Arrival::Late(1 + self.below(MAX_DELAY_POLLS) as u32),
            _ => Arrival::Now,
        }
    }

    /// Returns which of `count` queue pairs comes first.
    pub(super) fn first(&self, count: usize) -> usize {
        if count > 1 && self.happens(self.faults.late) { self.below(count as u64) as usize } else { 0 }
    }

    pub(super) fn posting(&self, requests: usize) -> Posting {
        if requests > 0 && self.happens(self.faults.short) {
            return Posting::Part(self.below(requests as u64) as usize);
        }
        if self.happens(self.faults.broken) { Posting::Broken } else { Posting::Whole }
    }

    pub(super) fn breaks(&self) -> bool {
        self.happens(self.faults.broken)
    }

    pub(super) fn refuses(&self) -> bool {
        self.happens(self.faults.refused)
    }

    pub(super) fn cut(&self) -> Option<Cut> {
        let cuts = self.happens(self.faults.cut);
        cuts.then(|| Cut { after: self.below(MAX_CUT_BYTES), incoming: self.below(2) == 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions(plan: &Plan) -> Vec<(Arrival, Posting, bool, Option<Cut>)> {
        (0..1000).map(|_| (plan.arrival(), plan.posting(5), plan.refuses(), plan.cut())).collect()
    }

    #[test]
    fn a_seed_determines_all_decisions() {
        let plan = |seed| Plan::new(Faults::some(seed));
        assert_eq!(decisions(&plan(1)), decisions(&plan(1)));
        assert_ne!(decisions(&plan(1)), decisions(&plan(2)));
    }

    #[test]
    fn faults_happen_with_their_frequency_and_no_others_happen() {
        for seed in 0..200 {
            let quiet = Plan::new(Faults { seed, ..Faults::default() });
            assert!(decisions(&quiet).iter().all(|one| *one == (Arrival::Now, Posting::Whole, false, None)));
            assert_eq!(quiet.first(9), 0);
            let always = Plan::new(Faults { seed, late: 1000, short: 1000, cut: 1000, ..Faults::default() });
            for (arrival, posting, refused, cut) in decisions(&always) {
                assert!(matches!(arrival, Arrival::Late(1..=40)) && matches!(posting, Posting::Part(0..5)));
                assert!(!refused && cut.is_some_and(|cut| cut.after < MAX_CUT_BYTES));
            }
            let half = Plan::new(Faults { seed, lost: 500, ..Faults::default() });
            let lost = (0..1000).filter(|_| half.arrival() == Arrival::Lost).count();
            // Ten standard deviations on either side.
            assert!((340..=660).contains(&lost), "{lost}");
        }
    }
}
