//! Reads pages from servers.
//!
//! # Concurrency
//! See [`engine`](super). The fault thread waits for the reads, all of which are under way at once.

use std::collections::BTreeMap;

use rdmabox::{Buffer, RemoteAddr, RequestError, Transfer};
use smallvec::SmallVec;

use super::Engine;
use super::stats::add;
use crate::{
    logic::{PAGE, clock::PageId},
    remote::{ATTEMPTS, may_repeat, page_address},
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

/// Where the bytes of a page are.
enum Source {
    /// At a server.
    Server(usize, RemoteAddr),
    /// In other pages of the stripe: the server of the page is lost.
    Stripe,
    /// The page is not at a server any more.
    Nowhere,
}

/// A page to read by itself, and the server and error of a read that failed.
type Alone = (PageId, Load, Option<(usize, RequestError)>);

impl Engine {
    /// Reads pages and maps them. A page that is no longer at a server is left to its next fault.
    pub(super) fn load(&mut self, loads: &BTreeMap<PageId, Load>) {
        let (reads, mut alone) = self.start_reads(loads);
        // The loss of a server voids copies, so the bytes that are here are mapped first.
        for Read { at, load, server, transfer } in reads {
            match transfer.wait() {
                Ok(buffer) => {
                    self.map(at, load, &buffer);
                    self.servers.give_buffer(server, buffer);
                }
                Err(failed) => alone.push((at, load, Some((server, failed.error)))),
            }
        }
        for (at, load, failed) in alone {
            self.load_alone(at, load, failed);
        }
        self.decode(loads);
    }

    /// Maps those pages that have to be computed from other pages of their stripe.
    fn decode(&mut self, loads: &BTreeMap<PageId, Load>) {
        let coded = |at: &&PageId| matches!(self.source(**at), Source::Stripe);
        let pages: Vec<PageId> = loads.keys().filter(coded).copied().collect();
        let is_busy = |at: &PageId| {
            let region = self.regions.get(&at.region);
            region.is_some_and(|region| region.is_busy(self.layout.stripe(at.page)))
        };
        if pages.iter().any(is_busy) {
            self.finish_writes();
        }
        let mut bytes = match pages.is_empty() {
            true => BTreeMap::new(),
            false => self.read_pages(&pages),
        };
        for at in pages {
            match (bytes.remove(&at), loads.get(&at)) {
                (Some(bytes), Some(load)) => {
                    add(&self.counters.decoded_pages, 1);
                    self.map(at, *load, &bytes);
                }
                _ => self.wake_page(at),
            }
        }
    }

    /// Starts a read for each page, and posts those of a server together. Also returns the pages
    /// that have no buffer.
    fn start_reads(&mut self, loads: &BTreeMap<PageId, Load>) -> (Vec<Read>, Vec<Alone>) {
        let mut alone = Vec::new();
        let mut jobs: Vec<Vec<(PageId, Load, RemoteAddr, Buffer)>> = Vec::new();
        jobs.resize_with(self.servers.len(), Vec::new);
        for (at, load) in loads {
            let (server, remote) = match self.source(*at) {
                Source::Server(server, remote) => (server, remote),
                Source::Stripe => continue,
                Source::Nowhere => {
                    self.wake_page(*at);
                    continue;
                }
            };
            match self.servers.take_buffer(server) {
                Ok(buffer) => jobs[server].push((*at, *load, remote, buffer)),
                Err(_) => alone.push((*at, *load, None)),
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
        (reads, alone)
    }

    /// Returns where an absent page is. The copies of a mirror take turns by group.
    fn source(&self, at: PageId) -> Source {
        let Some(region) = self.regions.get(&at.region) else { return Source::Nowhere };
        if !region.get(at.page).is_remote() {
            return Source::Nowhere;
        }
        let members = region.members(at.page);
        let member = if self.layout.data() == 1 {
            let copies: SmallVec<[_; 2]> = members.iter().flatten().collect();
            copies.get(self.layout.group(at.page) % copies.len().max(1)).map(|copy| **copy)
        } else {
            members.get(self.layout.position(at.page)).copied().flatten()
        };
        match member {
            Some(member) => {
                Source::Server(member.server, page_address(&member.memory, self.layout.slot(at.page)))
            }
            None => Source::Stripe,
        }
    }

    /// Reads a page by itself, after a read of it `failed`: at the same server again, and after its
    /// loss at another one. Does nothing if the page has to be computed then.
    fn load_alone(&mut self, at: PageId, load: Load, mut failed: Option<(usize, RequestError)>) {
        let mut attempt = 1;
        let mut bytes = [0; PAGE];
        while let Source::Server(server, remote) = self.source(at) {
            match &failed {
                Some((last, error)) if *last == server => {
                    if attempt >= ATTEMPTS || !may_repeat(error) {
                        self.lose_server(server, error.clone());
                        continue;
                    }
                    attempt += 1;
                }
                // Another copy gets its own attempts.
                _ => attempt = 1,
            }
            add(&self.counters.retries, failed.is_some().into());
            match self.servers.session(server).read(remote, &mut bytes) {
                Ok(()) => return self.map(at, load, &bytes),
                Err(error) => failed = Some((server, error)),
            }
        }
        if matches!(self.source(at), Source::Nowhere) {
            self.wake_page(at);
        }
    }

    fn map(&mut self, at: PageId, load: Load, bytes: &[u8]) {
        let Some(region) = self.regions.get(&at.region) else { return };
        if !region.get(at.page).is_remote() {
            return self.wake_page(at);
        }
        let protect = !load.is_store;
        let filled = self.fill(at, |uffd, address| uffd.copy(address, bytes, protect));
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
