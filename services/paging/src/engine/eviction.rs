//! Keeps the number of resident pages within the budget.
//!
//! A victim is protected, copied to a registered buffer, and written to each of its servers. When
//! all have it and no store came in between, the page is dropped. The pages of a batch are written
//! together: adjacent ones merge into one WRITE.
//!
//! # Concurrency
//! See [`engine`](super). Write-outs go on while faults are resolved. Their callbacks run on any
//! thread, and only send a [`Completion`].

use rdmabox::{Buffer, Failed, RemoteAddr, RequestError};
use smallvec::SmallVec;

use super::{Engine, MAX_WRITES};
use crate::{
    error::PagerEvent,
    kernel::memory,
    logic::{
        PAGE,
        chunks::CHUNK_PAGES,
        clock::PageId,
        page::{Page, Written},
        runs::runs,
    },
    remote::{ATTEMPTS, Placement, may_repeat, page_address},
    stats::add,
};

/// A page on its way to its servers.
#[derive(Debug)]
pub(super) struct WriteOut {
    at: PageId,
    /// Requests that have not ended.
    waiting: usize,
    /// Servers that have the bytes.
    stored: SmallVec<[usize; 2]>,
}

/// One request of a write-out.
#[derive(Debug)]
struct Request {
    /// Key of the [`WriteOut`].
    key: usize,
    server: usize,
    remote: RemoteAddr,
    attempt: u32,
}

/// The end of a request.
#[derive(Debug)]
pub(super) struct Completion {
    request: Request,
    outcome: Result<Buffer, Failed<Buffer>>,
}

impl Engine {
    /// Makes room for `pages` pages, and starts to make room for later ones.
    ///
    /// The budget is exceeded only if no server has room.
    pub(super) fn reserve(&mut self, pages: usize) {
        self.reap();
        let batch = self.batch();
        let has_room = self.resident() - self.writes.len() + pages + batch <= self.budget;
        if !has_room && self.writes.len() < MAX_WRITES {
            self.evict(batch.max(pages));
        }
        while self.resident() + pages > self.budget {
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
    fn drop_written(&mut self, mut written: Vec<PageId>) {
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
    fn protect(&mut self, pages: &[PageId]) {
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
    fn drop_pages(&mut self, pages: &[PageId], change: fn(&mut Page)) -> usize {
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

    /// Starts the write-outs of protected pages. Returns the pages of zeros, which need none.
    fn write_out(&mut self, pages: &[PageId]) -> Vec<PageId> {
        let mut zeros = Vec::new();
        let mut requests: Vec<Vec<(Request, Buffer)>> = Vec::new();
        requests.resize_with(self.servers.len(), Vec::new);
        let mut is_full = false;
        for at in pages {
            let Some(region) = self.regions.get(&at.region) else { continue };
            // The protection may have failed.
            if !region.get(at.page).is_protected() {
                continue;
            }
            let address = region.address(at.page);
            // SAFETY: The page is resident, so the access does not fault. It is protected, and only
            // this thread lifts the protection, after this loop. So no thread stores to it.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, PAGE) };
            if is_zero(bytes) {
                zeros.push(*at);
            } else if self.has_place(*at, &mut is_full) {
                self.prepare(*at, bytes, &mut requests);
            }
        }
        for (server, requests) in requests.into_iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            let session = std::sync::Arc::clone(self.servers.session(server));
            session
                .together(|| requests.into_iter().for_each(|(request, buffer)| self.post(request, buffer)));
        }
        zeros
    }

    /// Gives the chunk of a page a place, if it has none. Returns false if no server has room, and
    /// sets `is_full`. Asks no server if it is set.
    fn has_place(&mut self, at: PageId, is_full: &mut bool) -> bool {
        loop {
            let Some(region) = self.regions.get_mut(&at.region) else { return false };
            if !region.replicas(at.page).is_empty() {
                return true;
            }
            if *is_full {
                return false;
            }
            match self.servers.place(self.servers.wanted(), &[]) {
                Placement::Placed(replicas) => {
                    region.place(at.page, replicas);
                    self.no_room = false;
                }
                Placement::NoRoom => *is_full = true,
                Placement::Failed(server, error) => self.lose_server(server, error),
            }
        }
    }

    /// Copies the bytes of a page for each of its servers. Without memory for the copies the page
    /// stays.
    fn prepare(&mut self, at: PageId, bytes: &[u8], requests: &mut [Vec<(Request, Buffer)>]) {
        let Some(region) = self.regions.get(&at.region) else { return };
        let replicas: SmallVec<[_; 2]> = region.replicas(at.page).iter().copied().collect();
        let entry = self.writes.vacant_entry();
        let key = entry.key();
        let mut buffers: SmallVec<[_; 2]> = SmallVec::new();
        for replica in replicas {
            match self.servers.take_buffer(replica.server) {
                Ok(mut buffer) => {
                    buffer.copy_from_slice(bytes);
                    let remote = page_address(&replica.memory, at.page % CHUNK_PAGES);
                    buffers.push((Request { key, server: replica.server, remote, attempt: 1 }, buffer));
                }
                Err(error) => {
                    self.events.log(format!("no buffer for a page that should leave: {error}"));
                    for (request, buffer) in buffers {
                        self.servers.give_buffer(request.server, buffer);
                    }
                    return;
                }
            }
        }
        entry.insert(WriteOut { at, waiting: buffers.len(), stored: SmallVec::new() });
        if let Some(region) = self.regions.get_mut(&at.region) {
            region.update(at.page, Page::begin_write);
        }
        add(&self.counters.pages_written, 1);
        for (request, buffer) in buffers {
            requests[request.server].push((request, buffer));
        }
    }

    /// Starts a request. Its end is a [`Completion`].
    fn post(&self, request: Request, buffer: Buffer) {
        let (send, wake) = (self.completions.0.clone(), std::sync::Arc::clone(&self.wake));
        let session = self.servers.session(request.server);
        add(&self.counters.bytes_written, PAGE as u64);
        session.write_then(request.remote, buffer, move |outcome| {
            let _ = send.send(Completion { request, outcome });
            wake.wake();
        });
    }

    /// Handles the end of a request. Appends the page to `written` if it can be dropped.
    fn complete(&mut self, completion: Completion, written: &mut Vec<PageId>) {
        let Completion { mut request, outcome } = completion;
        let (key, server) = (request.key, request.server);
        match outcome {
            Ok(buffer) => {
                self.servers.give_buffer(server, buffer);
                self.writes[key].stored.push(server);
            }
            Err(Failed { error, buffer, .. }) => match buffer {
                Some(buffer) if self.repeats(&request, &error) => {
                    add(&self.counters.retries, 1);
                    request.attempt += 1;
                    return self.post(request, buffer);
                }
                _ => self.lose_server(server, error),
            },
        }
        self.writes[key].waiting -= 1;
        if self.writes[key].waiting == 0 {
            let write = self.writes.remove(key);
            self.end_write(&write, written);
        }
    }

    fn repeats(&self, request: &Request, error: &RequestError) -> bool {
        request.attempt < ATTEMPTS && may_repeat(error) && !self.servers.is_lost(request.server)
    }

    /// Ends a write-out whose requests have all ended.
    fn end_write(&mut self, write: &WriteOut, written: &mut Vec<PageId>) {
        let at = write.at;
        let Some(region) = self.regions.get_mut(&at.region) else { return };
        // Copies at servers that are lost meanwhile do not count; all others have to be there.
        let replicas = region.replicas(at.page);
        let stored =
            !replicas.is_empty() && replicas.iter().all(|replica| write.stored.contains(&replica.server));
        match region.update(at.page, |page| page.end_write(stored)) {
            Written::Drop => written.push(at),
            Written::Keep => add(&self.counters.redirtied, stored.into()),
        }
    }

    /// Reports that the budget is exceeded, once until a server has room again.
    fn report_no_room(&mut self) {
        add(&self.counters.over_budget, 1);
        if !std::mem::replace(&mut self.no_room, true) {
            let (resident, budget) = (self.resident() as u64, self.budget as u64);
            self.events.report(PagerEvent::NoRoom { resident, budget });
        }
    }
}

/// Returns true if a page has only zeros.
fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: Each bit pattern is a valid `u64`.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
    let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    zero(head) && zero(tail) && words.iter().all(|word| *word == 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rdmabox::SessionOptions;

    use super::*;
    use crate::{
        Lender, LenderOptions,
        engine::{Events, Parts, Wake},
        kernel::uffd::Uffd,
        logic::region::Region,
        remote::Servers,
        stats::Counters,
    };

    #[test]
    fn a_page_whose_server_is_lost_before_the_drop_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let address = format!("unix:{}", dir.path().join("lend").display()).parse().expect("an address");
        let lender = Lender::listen(&[address], &LenderOptions::new(8 << 20)).expect("a lender");
        let parts = Parts {
            uffd: Uffd::open().expect("userfaultfd"),
            servers: Servers::connect(lender.addresses(), &SessionOptions::default(), 1).expect("a server"),
            events: Events::start(None).expect("a thread"),
            counters: Arc::<Counters>::default(),
            budget: 32,
            read_ahead: 1,
        };
        let mut engine = Engine::new(parts, Arc::new(Wake::new().expect("a descriptor")));
        let start = memory::map(PAGE).expect("memory");
        engine.uffd.register(start, PAGE).expect("registered");
        engine.regions.insert(start, Region::new(start, 1, 1));
        let at = PageId { region: start, page: 0 };
        let filled = engine.fill(at, |uffd, address| uffd.copy(address, &[7; PAGE], false));
        engine.filled(at, filled, false, true);

        let sweep = engine.clock.sweep(&mut engine.regions, 1);
        engine.protect(&sweep.protect);
        assert!(engine.write_out(&sweep.clean).is_empty());
        let completion = engine.completions.1.recv().expect("the end of the write-out");
        let mut written = Vec::new();
        engine.complete(completion, &mut written);
        assert_eq!(written, [at]);
        engine.lose_server(0, RequestError::Disconnected);
        engine.drop_written(written);
        assert!(engine.regions[&start].get(0).is_resident());
        // SAFETY: The page is resident, and the test is the only user.
        assert_eq!(unsafe { (start as *const u8).read_volatile() }, 7);
        // SAFETY: The test does not use the memory any more.
        unsafe { memory::unmap(start, PAGE) };
    }
}
