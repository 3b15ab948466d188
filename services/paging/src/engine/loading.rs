//! Reads pages from servers.
//!
//! # Concurrency
//! See [`engine`](super). The fault thread waits for the reads, all of which are under way at once.

use std::collections::BTreeMap;

use rdmabox::{Buffer, RemoteAddr, RequestError, Transfer};

use super::Engine;
use crate::{
    logic::{PAGE, chunks::CHUNK_PAGES, clock::PageId},
    remote::{ATTEMPTS, may_repeat, page_address},
    stats::add,
};

/// A page to read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// A thread waits for the page; otherwise it is read ahead.
    pub(super) is_demanded: bool,
    /// The thread will store.
    pub(super) is_store: bool,
}

/// A read under way.
struct Read {
    at: PageId,
    load: Load,
    server: usize,
    transfer: Transfer<Buffer>,
}

impl Engine {
    /// Reads pages and maps them. A page that is no longer at a server is left to its next fault.
    pub(super) fn load(&mut self, loads: &BTreeMap<PageId, Load>) {
        for read in self.start_reads(loads) {
            let Read { at, load, server, transfer } = read;
            match transfer.wait() {
                Ok(buffer) => {
                    self.map(at, load, &buffer);
                    self.servers.give_buffer(server, buffer);
                }
                Err(failed) => self.load_again(at, load, server, failed.error),
            }
        }
    }

    /// Starts a read for each page, and posts those of a server together.
    fn start_reads(&mut self, loads: &BTreeMap<PageId, Load>) -> Vec<Read> {
        let mut jobs: Vec<Vec<(PageId, Load, RemoteAddr, Buffer)>> = Vec::new();
        jobs.resize_with(self.servers.len(), Vec::new);
        for (at, load) in loads {
            let Some((server, remote)) = self.source(*at) else {
                self.wake_page(*at);
                continue;
            };
            match self.servers.take_buffer(server) {
                Ok(buffer) => jobs[server].push((*at, *load, remote, buffer)),
                Err(error) => {
                    let error = RequestError::Invalid(format!("no registered buffer: {error}"));
                    self.load_again(*at, *load, server, error);
                }
            }
        }
        let mut reads = Vec::with_capacity(loads.len());
        for (server, jobs) in jobs.into_iter().enumerate().filter(|(_, jobs)| !jobs.is_empty()) {
            let session = self.servers.session(server);
            session.together(|| {
                for (at, load, remote, buffer) in jobs {
                    let transfer = session.start_read(remote, buffer);
                    reads.push(Read { at, load, server, transfer });
                }
            });
        }
        reads
    }

    /// Returns a server that has the page, and where. The copies of a chunk take turns by chunk.
    fn source(&self, at: PageId) -> Option<(usize, RemoteAddr)> {
        let region = self.regions.get(&at.region)?;
        if !region.get(at.page).is_remote() {
            return None;
        }
        let replicas = region.replicas(at.page);
        let chunk = at.page / CHUNK_PAGES;
        let replica = replicas.get(chunk % replicas.len().max(1))?;
        Some((replica.server, page_address(&replica.memory, at.page % CHUNK_PAGES)))
    }

    /// Repeats a read that failed: at the same server, and after its loss at the others.
    fn load_again(&mut self, at: PageId, load: Load, failed: usize, mut error: RequestError) {
        let mut attempt = 1;
        let mut bytes = [0; PAGE];
        while let Some((server, remote)) = self.source(at) {
            if server == failed && (attempt >= ATTEMPTS || !may_repeat(&error)) {
                self.lose_server(server, error.clone());
                attempt = 0;
                continue;
            }
            add(&self.counters.retries, 1);
            match self.servers.session(server).read(remote, &mut bytes) {
                Ok(()) => return self.map(at, load, &bytes),
                Err(again) if server == failed => (error, attempt) = (again, attempt + 1),
                // The other copy failed as well: it gets its attempts like the first one.
                Err(again) => return self.load_again(at, load, server, again),
            }
        }
        self.wake_page(at);
    }

    fn map(&mut self, at: PageId, load: Load, bytes: &[u8]) {
        let Some(region) = self.regions.get(&at.region) else { return };
        if !region.get(at.page).is_remote() {
            return self.wake_page(at);
        }
        let protect = !load.is_store;
        let filled = self.uffd.copy(region.address(at.page), bytes, protect);
        add(&self.counters.pages_read, 1);
        add(&self.counters.read_ahead_pages, (!load.is_demanded).into());
        add(&self.counters.bytes_read, PAGE as u64);
        self.filled(at, filled, protect, load.is_demanded);
    }

    /// Lets the threads that wait for a page fault again, and so find its new state.
    fn wake_page(&self, at: PageId) {
        if let Some(region) = self.regions.get(&at.region) {
            self.wake(region.address(at.page));
        }
    }
}
