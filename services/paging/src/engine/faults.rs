//! Resolves faults.
//!
//! Faults that wait together are one batch: their pages are read together, so that reads of
//! adjacent pages merge.
//!
//! # Concurrency
//! See [`engine`](super).

use std::{collections::BTreeMap, io};

use super::{Engine, loads::Load, stats::add};
use crate::{
    kernel::uffd::{FaultKind, Uffd},
    logic::{
        PAGE,
        clock::PageId,
        code::ZEROS,
        page::{MissingFault, StoreFault},
    },
};

/// Requests to fill a page for which the kernel has no memory, before the page is given up.
const FILL_ATTEMPTS: u32 = 4;

impl Engine {
    /// Resolves all faults that wait. A fault that turns out to be outdated is only woken.
    pub(super) fn serve_faults(&mut self) -> io::Result<()> {
        let mut faults = Vec::new();
        self.uffd.read_faults(&mut faults)?;
        if let (Some(placement), Some(last)) = (&mut self.placement, faults.last()) {
            placement.count(faults.len(), last.thread);
        }
        // True for a store.
        let mut missing: BTreeMap<PageId, bool> = BTreeMap::new();
        for fault in faults {
            let Some(at) = self.page_at(fault.address) else {
                self.uffd.wake(fault.address / PAGE * PAGE, PAGE)?;
                continue;
            };
            match fault.kind {
                FaultKind::Protected => self.allow_store(at),
                FaultKind::Load => *missing.entry(at).or_default() |= false,
                FaultKind::Store => *missing.entry(at).or_default() |= true,
            }
        }
        // All pages of a part fit into the budget at once.
        let missing: Vec<(PageId, bool)> = missing.into_iter().collect();
        for part in missing.chunks(self.budget.reads()) {
            self.bring(part);
        }
        Ok(())
    }

    /// Resolves a store to a protected page.
    pub(super) fn allow_store(&mut self, at: PageId) {
        let Some(region) = self.region(at) else { return };
        let address = region.address(at.page);
        let fault = region.update(at.page, |page| page.store_fault());
        match fault {
            // A page that the engine takes for writable may still be protected, if the kernel
            // refused an earlier request.
            StoreFault::Unprotect | StoreFault::Writable => {
                add(&self.counters.hits, (fault == StoreFault::Unprotect).into());
                if let Err(error) = self.uffd.unprotect(address, PAGE) {
                    let line = format!("cannot lift the protection of the page at {address:#x}: {error}");
                    self.events.log(line);
                    self.wake(address);
                }
            }
            StoreFault::Absent => self.wake(address),
        }
    }

    /// Resolves faults on missing pages.
    pub(super) fn bring(&mut self, missing: &[(PageId, bool)]) {
        self.reserve(missing.len());
        let room = self.budget.reads().saturating_sub(missing.len());
        let mut loads: BTreeMap<PageId, Load> = BTreeMap::new();
        for (at, store) in missing {
            let Some(region) = self.regions.get_mut(&at.region) else { continue };
            let address = region.address(at.page);
            match region.get(at.page).missing_fault() {
                // Another fault of an earlier batch brought the page.
                MissingFault::Present => self.wake(address),
                MissingFault::Zero => {
                    add(&self.counters.faults, 1);
                    self.fill_with_zeros(*at, *store);
                }
                MissingFault::Load => {
                    add(&self.counters.faults, 1);
                    let block = match loads.contains_key(at) {
                        true => at.page..at.page + 1,
                        false => region.block(at.page, room.saturating_sub(loads.len())),
                    };
                    for page in block {
                        loads.entry(PageId { page, ..*at }).or_default();
                    }
                    loads.insert(*at, Load { is_demanded: true, is_store: *store });
                }
                MissingFault::Lost => {
                    add(&self.counters.faults, 1);
                    self.poison(*at);
                }
            }
        }
        let ahead = loads.values().filter(|load| !load.is_demanded).count();
        if ahead > 0 {
            self.reserve(loads.len());
        }
        self.load(&loads);
    }

    /// Maps a page of zeros. For a store it is a page of its own, for a load the kernel's.
    fn fill_with_zeros(&mut self, at: PageId, store: bool) {
        let filled =
            self.fill(
                at,
                |uffd, address| {
                    if store { uffd.copy(address, &ZEROS, false) } else { uffd.zero(address, PAGE) }
                },
            );
        add(&self.counters.zero_fills, 1);
        self.filled(at, filled, false, true);
    }

    /// Fills an absent page by `request`. If the kernel has no memory, pages leave, and the request
    /// is repeated. The error is `WouldBlock` if the page has another state then.
    pub(super) fn fill(
        &mut self,
        at: PageId,
        request: impl Fn(&Uffd, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut attempt = 1;
        loop {
            let Some(region) = self.regions.get(&at.region) else { return Ok(()) };
            let before = region.get(at.page);
            match request(&self.uffd, region.address(at.page)) {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && attempt < FILL_ATTEMPTS => {}
                outcome => return outcome,
            }
            attempt += 1;
            self.evict(self.budget.batch());
            self.finish_writes();
            // A write-out may have shown the loss of a server.
            if self.regions.get(&at.region).is_none_or(|region| region.get(at.page) != before) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Notes the outcome of filling a page.
    pub(super) fn filled(&mut self, at: PageId, outcome: io::Result<()>, protect: bool, demanded: bool) {
        let Some(region) = self.regions.get_mut(&at.region) else { return };
        let address = region.address(at.page);
        match outcome {
            Ok(()) => region.update(at.page, |page| page.fill(protect, demanded)),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                // The kernel has a page that the pager does not know: its protection is unknown.
                region.update(at.page, |page| page.fill(false, true));
                self.wake(address);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wake(address),
            Err(error) if demanded => self.fail(at, error),
            Err(_) => {}
        }
    }

    /// Lets the threads that wait for a page try again.
    pub(super) fn wake(&self, address: usize) {
        if let Err(error) = self.uffd.wake(address, PAGE) {
            let line = format!("cannot wake the threads that wait for the page at {address:#x}: {error}");
            self.events.log(line);
        }
    }
}
