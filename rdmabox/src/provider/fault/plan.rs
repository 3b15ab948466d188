//! What goes wrong next. Pure, but for the lock.

use parking_lot::Mutex;

use super::Chance;

/// How often what goes wrong, of a thousand times each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Makes other decisions.
    pub seed: u64,
    /// Completions that can be polled some polls later only; and as often, another queue pair's come first.
    pub late: u16,
    /// Completions that do not come, although their request was carried out.
    pub lost: u16,
    /// Completions that say that their request failed, although it was carried out.
    pub failed: u16,
    /// Posts that take a part of their list.
    pub short: u16,
    /// Posts behind which the queue pair breaks; and requests on the spot that break it.
    pub broken: u16,
    /// Registrations of callers' buffers that are refused.
    pub refused: u16,
    /// Network connections that end after some bytes, in either direction.
    pub cut: u16,
    /// Queue pairs for calls have faults, too: as a rule they end the session.
    pub calls: bool,
}

impl Faults {
    /// Some of each on queue pairs for data.
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
            calls: false,
        }
    }

    /// One kind of fault at a time, or all of them, as the seed says.
    pub fn varied(seed: u64) -> Faults {
        let all = Faults::some(seed);
        let one = Faults { seed, ..Faults::default() };
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

/// What happens to a completion that says that all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Now,
    /// After so many polls.
    Late(u32),
    Lost,
    Failed,
}

/// What happens to a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posting {
    Whole,
    /// The first so many requests, fewer than all.
    Part(usize),
    /// All of them, and the queue pair breaks.
    Broken,
}

/// Where a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Bytes that pass before that.
    pub after: u64,
    /// Of those that the peer sends, or of those that this side sends.
    pub incoming: bool,
}

/// Most polls that a completion is late by.
const LATEST: u64 = 40;
/// Most bytes before a connection ends: the handshake of a queue pair, and some requests.
const LONGEST: u64 = 96 << 10;

/// The decisions of devices. Those that share it go on with it, one after the other: sessions of one client do not all fail at the same point.
#[derive(Debug)]
pub struct Plan {
    faults: Faults,
    chance: Mutex<Chance>,
}

impl Plan {
    /// Makes those that the seed of `faults` says.
    pub fn new(faults: Faults) -> Plan {
        Plan { faults, chance: Mutex::new(Chance::new(faults.seed)) }
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// A number below `limit`, which is not zero.
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
            _ if self.happens(self.faults.late) => Arrival::Late(1 + self.below(LATEST) as u32),
            _ => Arrival::Now,
        }
    }

    /// Which of `count` queue pairs comes first.
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
        cuts.then(|| Cut { after: self.below(LONGEST), incoming: self.below(2) == 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions(plan: &Plan) -> Vec<(Arrival, Posting, bool, Option<Cut>)> {
        (0..1000).map(|_| (plan.arrival(), plan.posting(5), plan.refuses(), plan.cut())).collect()
    }

    #[test]
    fn a_seed_says_all() {
        let plan = |seed| Plan::new(Faults::some(seed));
        assert_eq!(decisions(&plan(1)), decisions(&plan(1)));
        assert_ne!(decisions(&plan(1)), decisions(&plan(2)));
    }

    #[test]
    fn what_happens_happens_as_often_as_it_should_and_nothing_else() {
        for seed in 0..200 {
            let quiet = Plan::new(Faults { seed, ..Faults::default() });
            assert!(decisions(&quiet).iter().all(|one| *one == (Arrival::Now, Posting::Whole, false, None)));
            assert_eq!(quiet.first(9), 0);
            let always = Plan::new(Faults { seed, late: 1000, short: 1000, cut: 1000, ..Faults::default() });
            for (arrival, posting, refused, cut) in decisions(&always) {
                assert!(matches!(arrival, Arrival::Late(1..=40)) && matches!(posting, Posting::Part(0..5)));
                assert!(!refused && cut.is_some_and(|cut| cut.after < LONGEST));
            }
            let half = Plan::new(Faults { seed, lost: 500, ..Faults::default() });
            let lost = (0..1000).filter(|_| half.arrival() == Arrival::Lost).count();
            // Ten standard deviations on either side.
            assert!((340..=660).contains(&lost), "{lost}");
        }
    }
}
