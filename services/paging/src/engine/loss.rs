//! Lost servers and lost pages, and the end of regions.
//!
//! # Concurrency
//! See [`engine`](super).

use std::{
    io,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use rdmabox::RequestError;

use super::Engine;
use super::stats::add;
use crate::{
    error::PagerEvent,
    kernel::memory,
    logic::{PAGE, clock::PageId, page::Page},
};

/// How long a lost page waits for the report of its loss. A handler of events may itself wait for
/// the fault thread, if it uses paged memory.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Pause between two checks of all connections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Engine {
    /// Returns the time until the next check of all connections; `None` if there is none.
    pub(super) fn check_timeout(&self) -> Option<Duration> {
        let is_repairable = self.layout.members() > self.layout.data() && self.servers.live() > 0;
        is_repairable.then(|| CHECK_INTERVAL.saturating_sub(self.checked.elapsed()))
    }

    /// Gives up servers whose connection has ended, if a check is due.
    ///
    /// No fault reads from a server that has parity pages, so no request would find it lost. Its
    /// pages would have no redundancy meanwhile.
    pub(super) fn check_connections(&mut self) {
        if self.check_timeout() != Some(Duration::ZERO) {
            return;
        }
        self.checked = Instant::now();
        for server in self.servers.disconnected() {
            self.lose_server(server, RequestError::Disconnected);
        }
    }

    /// Gives up a server. Pages that only it had, and that are not resident, are lost.
    pub(super) fn lose_server(&mut self, server: usize, error: RequestError) {
        if !self.servers.lose(server) {
            return;
        }
        let lost_pages = self.regions.values_mut().map(|region| region.remove_server(server)).sum();
        add(&self.counters.servers_lost, 1);
        add(&self.counters.pages_lost, lost_pages);
        self.events.report(PagerEvent::ServerLost {
            address: self.servers.address(server).clone(),
            error,
            lost_pages,
            servers_left: self.servers.live(),
        });
        self.begin_repair();
    }

    /// Gives up a page that the kernel does not take.
    pub(super) fn fail(&mut self, at: PageId, error: io::Error) {
        let Some(region) = self.region(at) else { return };
        let address = region.address(at.page);
        region.update(at.page, Page::lose);
        add(&self.counters.pages_lost, 1);
        self.events.report(PagerEvent::PageFailed { address, error: Arc::new(error) });
        self.poison(at);
    }

    /// Makes accesses to a lost page raise SIGBUS, for the threads that wait for it as well.
    pub(super) fn poison(&mut self, at: PageId) {
        let Some(region) = self.regions.get(&at.region) else { return };
        let address = region.address(at.page);
        // The error comes before the signal, which may end the program.
        self.events.flush(REPORT_TIMEOUT);
        if self.uffd.has_poison() {
            match self.uffd.poison(address, PAGE) {
                Ok(()) => return,
                // An earlier fault of the same page has poisoned it.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return self.wake(address),
                Err(error) => self.events.log(format!("cannot poison the page at {address:#x}: {error}")),
            }
        }
        // SAFETY: The page belongs to a region, and its bytes are lost.
        if let Err(error) = unsafe { memory::replace_by_hole(address, PAGE) } {
            // A thread would wait forever, or read other bytes than it stored.
            eprintln!("rfs-paging: the page at {address:#x} is lost, and SIGBUS cannot be raised: {error}");
            std::process::abort();
        }
        self.wake(address);
    }

    /// Forgets the bytes of pages. After an error some lost pages stay lost.
    pub(super) fn discard(&mut self, start: usize, pages: Range<usize>) -> io::Result<()> {
        self.finish_writes();
        let has_poison = self.uffd.has_poison();
        let Some(region) = self.regions.get_mut(&start) else { return Ok(()) };
        // SAFETY: The caller of the command gives the bytes up.
        unsafe { memory::discard(region.address(pages.start), pages.len() * PAGE)? };
        let mut outcome = Ok(());
        for page in pages {
            // Without UFFDIO_POISON another mapping stands where a lost page was.
            if !has_poison && region.get(page).is_lost() {
                let address = region.address(page);
                // SAFETY: as above.
                let again = unsafe { memory::map_again(address, PAGE) };
                if let Err(error) = again.and_then(|()| self.uffd.register(address, PAGE)) {
                    outcome = Err(error);
                    continue;
                }
            }
            region.update(page, Page::discard);
        }
        self.settle();
        outcome
    }

    /// Ends a region. The caller has no use of it any more, and unmaps it.
    pub(super) fn unmap(&mut self, start: usize) -> io::Result<()> {
        self.finish_writes();
        let Some(region) = self.regions.remove(&start) else { return Ok(()) };
        let unregistered = self.uffd.unregister(start, region.pages() * PAGE);
        self.servers.free(region.end());
        self.settle();
        unregistered
    }
}
