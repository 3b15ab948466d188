//! Where the fault thread runs.
//!
//! The fault thread decides, and a [watcher](core_watch) carries it out.
//!
//! # Concurrency
//! The fault thread. Takes no locks.

mod core_watch;

use std::time::Instant;

use rustix::thread::CpuSet;
use thread_placement::StatReader;

use self::core_watch::CoreWatch;
use super::Events;
use crate::{
    kernel::{cores, uffd::Uffd},
    logic::core_sharing::{CoreSharing, Sample, Step},
};

/// Has the fault thread follow the thread that faults to its core.
#[derive(Debug)]
pub(super) struct Placement {
    follow: CoreSharing,
    reader: StatReader,
    /// The cores at the start.
    cores: CpuSet,
    watch: CoreWatch,
    begin: Instant,
}

impl Placement {
    /// Returns the placement of the calling thread. Returns `None` if it has one core only, or no
    /// right to come back from a shared core.
    pub(super) fn new(uffd: &Uffd, events: &Events) -> Option<Placement> {
        let cores = cores::probe().ok()?;
        let watch = CoreWatch::start(cores, uffd, events).ok()?;
        let (follow, reader) = (CoreSharing::default(), StatReader::default());
        Some(Placement { follow, reader, cores, watch, begin: Instant::now() })
    }

    /// Counts faults, the last of them by `thread`.
    pub(super) fn count(&mut self, faults: usize, thread: Option<u32>) {
        let faults = self.watch.count(faults as u64);
        let (Some(thread), now) = (thread, self.begin.elapsed()) else { return };
        if self.follow.is_sharing()
            && let Some(was_starved) = self.watch.ended()
        {
            self.follow.end(now, was_starved);
        }
        if !self.follow.is_due(now) {
            return;
        }
        // The pager may use fewer cores than the program.
        let core = self.reader.core_of(thread);
        let core = core.filter(|core| *core < CpuSet::MAX_CPU && self.cores.is_set(*core));
        match self.follow.sample(Sample { now, thread, core, faults }) {
            Step::Stay => {}
            Step::Share(core) => self.watch.share(core),
            Step::Leave => self.watch.leave(),
        }
    }
}
