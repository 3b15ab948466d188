//! Keeps the number of resident pages within the budget.
//!
//! A victim is protected, copied to a registered buffer, and written to each of its servers. When
//! all have it and no store came in between, the page is dropped. The pages of a batch are written
//! together: adjacent ones merge into one WRITE.
//!
//! # Concurrency
//! See [`engine`](super). [Write-outs](super::write_out) go on while faults are resolved.

use super::{Engine, stats::add};
use crate::{
    error::PagerEvent,
    kernel::memory,
    logic::{
        PAGE,
        clock::{PageId, runs},
        page::Page,
    },
};

impl Engine {
    /// Makes room for `pages` pages, and starts to make room for later ones.
    ///
    /// The budget is exceeded only if no server has room.
    pub(super) fn reserve(&mut self, pages: usize) {
        self.reap();
        let batch = self.budget.batch();
        if self.budget.wants_batch(self.resident(), self.writing, pages) {
            self.evict(batch.max(pages));
        }
        while self.budget.is_exceeded(self.resident(), pages) {
            if !self.writes.is_empty() {
                self.wait_for_write();
            } else if !self.evict(batch.max(pages)) {
                self.report_no_room();
                return;
            }
        }
    }

    /// Waits until no write-out is under way.
    pub(super) fn finish_writes(&mut self) {
        self.reap();
        while !self.writes.is_empty() {
            self.wait_for_write();
        }
    }

    /// Waits for the end of one request, and takes all others that have ended.
    fn wait_for_write(&mut self) {
        // The engine itself has a sender, so the channel does not end. Each request does.
        if let Ok(completion) = self.completions.1.recv() {
            let mut written = Vec::new();
            self.complete(completion, &mut written);
            self.drop_written(written);
        }
        self.reap();
    }

    /// Takes the requests that have ended.
    pub(super) fn reap(&mut self) {
        let mut written = Vec::new();
        while let Ok(completion) = self.completions.1.try_recv() {
            self.complete(completion, &mut written);
        }
        self.drop_written(written);
    }

    /// Drops pages whose write-outs ended. A loss since then makes the page the only copy.
    pub(super) fn drop_written(&mut self, mut written: Vec<PageId>) {
        written
            .retain(|at| self.regions.get(&at.region).is_some_and(|region| region.get(at.page).is_clean()));
        written.sort_unstable();
        self.drop_pages(&written, Page::drop_clean);
    }

    /// Chooses victims, drops clean ones, and starts to write out the others. Returns false if no
    /// page left and none is on its way.
    pub(super) fn evict(&mut self, wanted: usize) -> bool {
        let sweep = self.clock.sweep(&mut self.regions, wanted);
        self.protect(&sweep.protect);
        let clean = self.drop_pages(&sweep.drop, Page::drop_clean);
        add(&self.counters.clean_evictions, clean as u64);
        let zeros = self.write_out(&sweep.clean);
        let zeros = self.drop_pages(&zeros, Page::drop_zero);
        add(&self.counters.zero_evictions, zeros as u64);
        self.reap_after(clean + zeros)
    }

    /// Takes requests that ended where they were started. Returns true if there was progress.
    fn reap_after(&mut self, dropped: usize) -> bool {
        let under_way = !self.writes.is_empty();
        self.reap();
        dropped > 0 || under_way
    }

    /// Protects pages. If the kernel refuses, the pages count as changed.
    pub(super) fn protect(&mut self, pages: &[PageId]) {
        for (start, run) in runs(pages) {
            let Some(region) = self.regions.get_mut(&start) else { continue };
            let (address, len) = (region.address(run.start), run.len() * PAGE);
            if let Err(error) = self.uffd.protect(address, len) {
                self.events.log(format!("cannot protect {len} bytes at {address:#x}: {error}"));
                run.for_each(|page| {
                    region.update(page, |page| page.store_fault());
                });
            }
        }
    }

    /// Frees the memory of pages, and notes it by `change`. Returns the number of pages.
    pub(super) fn drop_pages(&mut self, pages: &[PageId], change: fn(&mut Page)) -> usize {
        let mut dropped = 0;
        for (start, run) in runs(pages) {
            let Some(region) = self.regions.get_mut(&start) else { continue };
            let (address, len) = (region.address(run.start), run.len());
            // SAFETY: The pages belong to the region. They are protected, and zero or at a server.
            // No store can have come since, because only this thread lifts the protection.
            match unsafe { memory::discard(address, len * PAGE) } {
                Ok(()) => {
                    run.for_each(|page| region.update(page, change));
                    dropped += len;
                }
                Err(error) => {
                    self.events.log(format!("cannot drop {len} pages at {address:#x}: {error}"));
                }
            }
        }
        add(&self.counters.evictions, dropped as u64);
        dropped
    }

    /// Reports that the budget is exceeded, once until a server has room again.
    fn report_no_room(&mut self) {
        add(&self.counters.over_budget, 1);
        if !std::mem::replace(&mut self.no_room, true) {
            let (resident, budget) = (self.resident() as u64, self.budget.pages() as u64);
            self.events.report(PagerEvent::NoRoom { resident, budget });
        }
    }
}
