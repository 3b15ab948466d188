//! Where the fault thread runs.
//!
//! # Concurrency
//! The fault thread.

use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::{
    kernel::cores::{self, CoreReader},
    logic::follow::{Follow, Sample, Step},
};

/// Time without a fault after which a shared core is left.
const QUIET: Duration = Duration::from_millis(4);

/// Moves the calling thread to the core of the thread that faults, and away from it.
#[derive(Debug)]
pub(super) struct Placement {
    follow: Follow,
    reader: CoreReader,
    /// The cores at the start.
    cores: CpuSet,
    begin: Instant,
    faults: u64,
}

impl Placement {
    /// Returns `None` if the kernel does not tell the cores of this thread.
    pub(super) fn new() -> Option<Placement> {
        let cores = cores::allowed().ok()?;
        let (follow, reader) = (Follow::default(), CoreReader::default());
        Some(Placement { follow, reader, cores, begin: Instant::now(), faults: 0 })
    }

    /// Counts faults, the last of them by `thread`.
    pub(super) fn count(&mut self, faults: usize, thread: Option<u32>) {
        self.faults += faults as u64;
        let (Some(thread), now) = (thread, self.begin.elapsed()) else { return };
        if !self.follow.is_due(now) {
            return;
        }
        // The pager may use fewer cores than the program.
        let core = self.reader.core_of(thread);
        let core = core.filter(|core| *core < CpuSet::MAX_CPU && self.cores.is_set(*core));
        let step = match core {
            Some(core) => self.follow.sample(Sample { now, thread, core, faults: self.faults }),
            None => self.follow.leave(),
        };
        self.take(step);
    }

    /// Returns the time after which [`leave`](Self::leave) is due if no fault comes.
    pub(super) fn quiet(&self) -> Option<Duration> {
        self.follow.is_sharing().then_some(QUIET)
    }

    /// Leaves a shared core: there, the next fault might wait for other threads.
    pub(super) fn leave(&mut self) {
        let step = self.follow.leave();
        self.take(step);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Stay => {}
            Step::Share(core) => {
                if cores::share_core(core).is_err() {
                    self.leave();
                }
            }
            // A core of this thread may have gone offline. The kernel then knows a better one.
            Step::Leave => _ = cores::leave_core(&self.cores),
        }
    }
}
