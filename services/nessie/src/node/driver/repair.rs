//! Repairs of operations that were given up.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Driver;
use crate::{
    logic::operations::put::{Leftover, Repair},
    node::{
        driver::{Aborted, Run},
        stats::Counters,
    },
};

/// A leftover, and the entries that it may still need.
pub(super) struct Pending {
    left: Leftover,
    held: SmallVec<[u32; 4]>,
    /// When no CAS of the operation can take effect any more.
    since: Instant,
}

impl Driver {
    /// Keeps the state that an operation leaves, for a repair.
    pub(in crate::node) fn keep(&self, left: Option<Leftover>, run: Run, is_issued: bool) {
        // A session that broke may have a CAS under way, which a new session cannot wait for.
        let since = Instant::now() + if is_issued { self.limit } else { Duration::ZERO };
        match left {
            Some(left) => self.pending.lock().push(Pending { left, held: run.held, since }),
            None => self.table.end_hold(&run.held),
        }
    }

    /// Returns the number of operations that wait for a repair.
    pub(in crate::node) fn pending(&self) -> usize {
        self.pending.lock().len()
    }

    /// Tries each repair once whose time has come.
    pub(in crate::node) fn repair(&self) {
        let now = Instant::now();
        let due: Vec<Pending> = self.pending.lock().extract_if(.., |pending| pending.since <= now).collect();
        for Pending { left, held, since } in due {
            Counters::add(&self.counters.repairs);
            let mut repair = Repair::new(left);
            let mut run = self.run();
            let outcome = self.drive(&mut run, |cx, answer| repair.step(cx, answer));
            run.held.extend(held);
            match outcome {
                Ok(()) => self.table.end_hold(&run.held),
                Err(Aborted { is_issued, .. }) => {
                    let left = repair.leftover(&self.context(), is_issued);
                    let since = if is_issued { Instant::now() + self.limit } else { since };
                    self.pending.lock().push(Pending { left, held: run.held, since });
                }
            }
        }
    }
}
