//! Every counter of a session, in one place.
//!
//! Counters only grow, are added to from any thread with relaxed atomics, and order nothing: a snapshot taken while
//! requests run may show one counter ahead of another. No rates, no times, no output.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::Plan;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The counters.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        }

        impl Stats {
            /// The values now, by name and in the order of the definition.
            pub fn snapshot(&self) -> StatsSnapshot {
                StatsSnapshot { counters: vec![$((stringify!($name), self.$name.get()),)+] }
            }
        }
    };
}

counters! {
    /// READ requests submitted.
    read_requests,
    /// WRITE requests submitted.
    write_requests,
    /// Atomics submitted.
    atomic_requests,
    /// Bytes of READs that completed.
    bytes_read,
    /// Bytes of WRITEs that completed.
    bytes_written,
    /// Requests that travelled in another one's work request.
    merged,
    /// Work requests posted.
    wqes,
    /// Posts of a list of work requests.
    doorbells,
    /// Doorbells that stood for more than one work request.
    chains,
    /// Work requests in those chains.
    chain_length_sum,
    /// Bytes copied through the pre-registered pool.
    pre_mr_bytes,
    /// Bytes moved from or to memory that was registered for them.
    dyn_mr_bytes,
    /// Bytes moved from or to memory that its owner had registered.
    registered_bytes,
    /// Memory registrations made on the way.
    registrations,
    /// Times that a request had to wait for the admission window.
    window_waits,
    /// Times that a request had to wait for one in flight that it overlaps.
    overlap_waits,
    /// Polls of a completion queue.
    polls,
    /// Polls that found nothing.
    empty_polls,
    /// Completions polled.
    completions,
    /// Sleeps on a completion queue.
    sleeps,
    /// Sleeps that an event ended.
    events,
    /// Threads woken because another thread polled their completion.
    wakeups,
    /// Remote procedure calls.
    calls,
    /// Requests and calls that failed.
    errors,
}

impl Stats {
    /// Counts what posting a whole plan amounts to.
    pub fn count_plan(&self, plan: &Plan) {
        self.merged.add(plan.merged() as u64);
        for chain in plan.chains() {
            self.count_post(chain.len());
        }
    }

    /// Counts one post of a list of `wqes` work requests.
    pub fn count_post(&self, wqes: usize) {
        self.wqes.add(wqes as u64);
        self.doorbells.inc();
        if wqes > 1 {
            self.chains.inc();
            self.chain_length_sum.add(wqes as u64);
        }
    }

    /// Counts one poll of a completion queue.
    pub fn count_poll(&self, found: usize) {
        self.polls.inc();
        if found == 0 {
            self.empty_polls.inc();
        } else {
            self.completions.add(found as u64);
        }
    }
}

/// Counters by name, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Name and value of each.
    pub counters: Vec<(&'static str, u64)>,
}

impl StatsSnapshot {
    /// The value of a counter; zero if there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.counters.iter().find(|(counter, _)| *counter == name).map_or(0, |&(_, value)| value)
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &StatsSnapshot) -> StatsSnapshot {
        let difference =
            |&(name, value): &(&'static str, u64)| (name, value.saturating_sub(earlier.get(name)));
        StatsSnapshot { counters: self.counters.iter().map(difference).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{BatchMode, Item, PlanLimits, plan},
        verbs::RemoteAddr,
    };

    #[test]
    fn names_are_those_of_the_fields() {
        let stats = Stats::default();
        stats.wqes.add(3);
        stats.errors.inc();
        let snapshot = stats.snapshot();
        assert_eq!((snapshot.get("wqes"), snapshot.get("errors"), snapshot.get("calls")), (3, 1, 0));
        assert_eq!(snapshot.get("no such counter"), 0);
        assert_eq!(snapshot.counters[0].0, "read_requests");
        let mut names: Vec<_> = snapshot.counters.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), snapshot.counters.len());
    }

    #[test]
    fn differences() {
        let stats = Stats::default();
        stats.calls.add(2);
        let before = stats.snapshot();
        stats.calls.add(5);
        stats.polls.inc();
        let since = stats.snapshot().since(&before);
        assert_eq!((since.get("calls"), since.get("polls"), since.get("wqes")), (5, 1, 0));
    }

    #[test]
    fn polls() {
        let stats = Stats::default();
        for found in [0, 3, 0, 1] {
            stats.count_poll(found);
        }
        assert_eq!((stats.polls.get(), stats.empty_polls.get(), stats.completions.get()), (4, 2, 4));
    }

    #[test]
    fn plans() {
        let items: Vec<Item> = [0, 1, 2, 10, 20]
            .map(|page| Item {
                remote: RemoteAddr { addr: page * 4096, rkey: 1 },
                len: 4096,
                sges: 1,
                stageable: true,
            })
            .to_vec();
        let counted = |mode, max_chain| {
            let limits = PlanLimits { mode, max_msg_sz: 1 << 20, max_sge: 30, max_chain, stage_threshold: 0 };
            let mut out = Plan::new();
            plan(&items, &limits, &mut out);
            let stats = Stats::default();
            stats.count_plan(&out);
            let s = stats.snapshot();
            ["merged", "wqes", "doorbells", "chains", "chain_length_sum"].map(|name| s.get(name))
        };
        assert_eq!(counted(BatchMode::Hybrid, 64), [2, 3, 1, 1, 3]);
        assert_eq!(counted(BatchMode::Hybrid, 2), [2, 3, 2, 1, 2]);
        assert_eq!(counted(BatchMode::Merge, 64), [2, 3, 3, 0, 0]);
        assert_eq!(counted(BatchMode::Doorbell, 64), [0, 5, 1, 1, 5]);
        assert_eq!(counted(BatchMode::Single, 64), [0, 5, 5, 0, 0]);
    }
}
