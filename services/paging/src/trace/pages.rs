//! The pager without memory: the decisions of the [engine](crate::engine) about one region.
//!
//! # Concurrency
//! Plain values.

use std::collections::{BTreeMap, VecDeque};

use super::queries::Access;
use crate::logic::{
    PAGE,
    budget::Budget,
    clock::Clock,
    groups::Member,
    layout::Layout,
    page::{MissingFault, Page, Written},
    redundancy::Redundancy,
    region::Region,
};

/// Pages of the longest block that is read ahead: the default of [`PagerOptions`], 128 KiB.
///
/// [`PagerOptions`]: crate::PagerOptions
const READ_AHEAD: usize = (128 << 10) / PAGE;
/// The address of the one region.
const REGION: usize = 0;

/// The pages of a program.
#[derive(Debug)]
pub(super) struct Pages {
    /// One region.
    regions: BTreeMap<usize, Region<()>>,
    clock: Clock,
    budget: Budget,
    /// Threads and pages of the write-outs under way, the oldest first.
    writing: VecDeque<(usize, usize)>,
}

impl Pages {
    pub(super) fn new(pages: usize, budget: usize) -> Pages {
        let region = Region::new(REGION, pages, READ_AHEAD, Layout::new(Redundancy::None));
        Pages {
            regions: BTreeMap::from([(REGION, region)]),
            clock: Clock::default(),
            budget: Budget::new(budget),
            writing: VecDeque::new(),
        }
    }

    /// Accesses a page. Returns the pages that are written and read for it, if there are any.
    pub(super) fn access(&mut self, thread: usize, access: Access) -> Option<(Vec<usize>, Vec<usize>)> {
        let Access { page, store } = access;
        if self.region().get(page).is_resident() {
            if store {
                self.region().update(page, Page::store_fault);
            }
            return None;
        }
        let mut writes = Vec::new();
        self.reserve(thread, 1, &mut writes);
        let reads = match self.region().get(page).missing_fault() {
            MissingFault::Load => self.load(thread, access, &mut writes),
            MissingFault::Zero => {
                self.region().update(page, |page| page.fill(false, true));
                Vec::new()
            }
            // Nothing is lost, and no other thread fills pages.
            MissingFault::Present | MissingFault::Lost => Vec::new(),
        };
        (!writes.is_empty() || !reads.is_empty()).then_some((writes, reads))
    }

    /// Reads a page and the pages behind it that the detector asks for.
    fn load(&mut self, thread: usize, Access { page, store }: Access, writes: &mut Vec<usize>) -> Vec<usize> {
        let room = self.budget.reads() - 1;
        let block = self.region().block(page, room);
        if block.len() > 1 {
            self.reserve(thread, block.len(), writes);
        }
        for read in block.clone() {
            let is_demanded = read == page;
            self.region().update(read, |state| state.fill(!(is_demanded && store), is_demanded));
        }
        block.collect()
    }

    /// Makes room as the engine does. Write-outs of other threads end when their room is needed.
    fn reserve(&mut self, thread: usize, pages: usize, writes: &mut Vec<usize>) {
        let batch = self.budget.batch();
        if self.budget.wants_batch(self.resident(), self.writing.len(), pages) {
            self.evict(thread, batch.max(pages), writes);
        }
        while self.budget.is_exceeded(self.resident(), pages) {
            match self.writing.pop_front() {
                Some((_, page)) => self.end_write(page),
                None => self.evict(thread, batch.max(pages), writes),
            }
        }
    }

    /// Chooses victims, drops clean ones, and begins to write the others.
    fn evict(&mut self, thread: usize, wanted: usize, writes: &mut Vec<usize>) {
        let sweep = self.clock.sweep(&mut self.regions, wanted);
        for at in sweep.drop {
            self.region().update(at.page, Page::drop_clean);
        }
        for at in sweep.clean {
            let region = self.region();
            if region.members(at.page).is_empty() {
                region.place(at.page, vec![Some(Member { server: 0, memory: () })]);
            }
            region.update(at.page, Page::begin_write);
            self.writing.push_back((thread, at.page));
            writes.push(at.page);
        }
    }

    /// Ends the write-outs of a thread.
    pub(super) fn end_writes(&mut self, thread: usize) {
        for (of, page) in std::mem::take(&mut self.writing) {
            if of == thread {
                self.end_write(page);
            } else {
                self.writing.push_back((of, page));
            }
        }
    }

    fn end_write(&mut self, page: usize) {
        if self.region().update(page, |page| page.end_write(true)) == Written::Drop {
            self.region().update(page, Page::drop_clean);
        }
    }

    pub(super) fn resident(&mut self) -> usize {
        self.region().resident()
    }

    pub(super) fn region(&mut self) -> &mut Region<()> {
        self.regions.get_mut(&REGION).expect("the region is made with the pages")
    }
}
