//! Gives pages their second copy again after the loss of a server.
//!
//! A chunk that lacks a copy gets a place at another server, and its stored pages are copied there.
//! One chunk is one step. Steps run while no fault waits, and between faults from time to time.
//!
//! # Concurrency
//! See [`engine`](super). The fault thread waits for the requests of a step, and no write-out is
//! under way meanwhile, so the chunk has one state.

use std::time::{Duration, Instant};

use rdmabox::{Buffer, Failed, RequestError, Transfer};
use rustix::time::Timespec;

use super::{Engine, MAX_BATCH};
use crate::{
    error::PagerEvent,
    lender::protocol::LentChunk,
    logic::{
        chunks::{CHUNK_PAGES, Replica},
        clock::PageId,
    },
    remote::{ATTEMPTS, Placement, may_repeat, page_address},
    stats::add,
};

/// Longest pause between two steps while faults wait.
const STEP_INTERVAL: Duration = Duration::from_millis(20);
/// Pause after a lack of memory.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(2);

/// The repair of all chunks since a loss.
#[derive(Debug)]
pub(super) struct Repair {
    /// The first page of the next chunk to look at.
    at: PageId,
    /// Chunks that have got a copy.
    chunks: u64,
    /// No step before this time.
    pause: Option<Instant>,
    /// The end of the last step.
    last: Instant,
}

/// Why a step did not end with a copy.
enum Failure {
    /// A request to the server failed.
    Server(usize, RequestError),
    /// Another server or this program has too little memory.
    NoRoom,
}

impl Engine {
    /// Begins to repair, from the first chunk on, if there are servers for all copies.
    pub(super) fn begin_repair(&mut self) {
        if self.servers.wanted() > 1 {
            let at = PageId::default();
            self.repair = Some(Repair { at, chunks: 0, pause: None, last: Instant::now() });
        } else {
            self.repair = None;
        }
    }

    /// Returns how long the fault thread may sleep; `None` without an end.
    pub(super) fn repair_timeout(&self) -> Option<Timespec> {
        let repair = self.repair.as_ref()?;
        let pause =
            repair.pause.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        // A repair has no pause of more seconds than a `Timespec` has.
        Timespec::try_from(pause).ok()
    }

    /// Makes a step if one is due. `is_idle` says that no fault waits.
    pub(super) fn continue_repair(&mut self, is_idle: bool) {
        let now = Instant::now();
        let is_due = |repair: &Repair| {
            repair.pause.is_none_or(|until| until <= now) && (is_idle || now - repair.last >= STEP_INTERVAL)
        };
        if !self.repair.as_ref().is_some_and(is_due) {
            return;
        }
        // A write-out that is under way reaches the old copies only. Its end may also show a loss,
        // which begins the repair anew.
        self.finish_writes();
        let Some(mut repair) = self.repair.take() else { return };
        let Some(at) = self.next_bare(repair.at) else {
            return self.events.report(PagerEvent::Repaired { chunks: repair.chunks });
        };
        repair.pause = None;
        match self.repair_chunk(at) {
            Ok(()) => {
                add(&self.counters.repaired_chunks, 1);
                repair.chunks += 1;
                repair.at = PageId { page: at.page + CHUNK_PAGES, ..at };
            }
            Err(Failure::NoRoom) => repair.pause = Some(now + NO_ROOM_PAUSE),
            // The loss begins the repair anew.
            Err(Failure::Server(server, error)) => return self.lose_server(server, error),
        }
        repair.last = Instant::now();
        self.repair = Some(repair);
    }

    /// Returns the first page of the next chunk that lacks a copy.
    fn next_bare(&self, from: PageId) -> Option<PageId> {
        let wanted = self.servers.wanted();
        self.regions.range(from.region..).find_map(|(start, region)| {
            let first = if *start == from.region { from.page } else { 0 };
            region.next_bare(first, wanted).map(|page| PageId { region: *start, page })
        })
    }

    /// Copies the stored pages of a chunk to one more server.
    fn repair_chunk(&mut self, at: PageId) -> Result<(), Failure> {
        let Some(region) = self.regions.get(&at.region) else { return Ok(()) };
        let Some(source) = region.replicas(at.page).first().copied() else { return Ok(()) };
        let pages: Vec<usize> = (at.page..region.pages().min(at.page + CHUNK_PAGES))
            .filter(|page| region.get(*page).is_stored())
            .collect();
        let holders: Vec<usize> = region.replicas(at.page).iter().map(|replica| replica.server).collect();
        let target = match self.servers.place(1, &holders) {
            Placement::Placed(replicas) => replicas[0],
            Placement::NoRoom => return Err(Failure::NoRoom),
            Placement::Failed(server, error) => return Err(Failure::Server(server, error)),
        };
        match pages.chunks(MAX_BATCH).try_for_each(|part| self.copy(part, &source, &target)) {
            Ok(()) => {
                if let Some(region) = self.regions.get_mut(&at.region) {
                    region.add_replica(at.page, target);
                }
                Ok(())
            }
            Err(failure) => {
                // A chunk of a target that failed may still get bytes, so the target keeps it. The
                // end of the session frees it.
                if !matches!(&failure, Failure::Server(server, _) if *server == target.server) {
                    self.servers.free(vec![target]);
                }
                Err(failure)
            }
        }
    }

    /// Copies pages from a chunk to another one.
    fn copy(
        &mut self,
        pages: &[usize],
        source: &Replica<LentChunk>,
        target: &Replica<LentChunk>,
    ) -> Result<(), Failure> {
        let buffers: Vec<Buffer> =
            pages.iter().map(|_| self.buffer(source.server)).collect::<Result<_, _>>()?;
        let remote =
            |replica: &Replica<LentChunk>, page: usize| page_address(&replica.memory, page % CHUNK_PAGES);
        let session = self.servers.session(source.server);
        let reads: Vec<_> = session.together(|| {
            let starts = pages.iter().zip(buffers);
            starts.map(|(page, buffer)| session.start_read(remote(source, *page), buffer)).collect()
        });
        let mut buffers = Vec::with_capacity(pages.len());
        for (page, read) in pages.iter().zip(reads) {
            let again = |buffer: &mut Buffer| session.read(remote(source, *page), buffer);
            buffers.push(self.finish(read, source.server, again)?);
        }
        // A session registers its own buffers once, and those of another one for each request.
        let mut copies = Vec::with_capacity(pages.len());
        for buffer in buffers {
            let mut copy = self.buffer(target.server)?;
            copy.copy_from_slice(&buffer);
            self.servers.give_buffer(source.server, buffer);
            copies.push(copy);
        }
        let session = self.servers.session(target.server);
        let writes: Vec<_> = session.together(|| {
            let starts = pages.iter().zip(copies);
            starts.map(|(page, buffer)| session.start_write(remote(target, *page), buffer)).collect()
        });
        let mut buffers = Vec::with_capacity(pages.len());
        for (page, write) in pages.iter().zip(writes) {
            let again = |buffer: &mut Buffer| session.write(remote(target, *page), buffer);
            buffers.push(self.finish(write, target.server, again)?);
        }
        buffers.into_iter().for_each(|buffer| self.servers.give_buffer(target.server, buffer));
        Ok(())
    }

    fn buffer(&mut self, server: usize) -> Result<Buffer, Failure> {
        self.servers.take_buffer(server).map_err(|error| {
            self.events.log(format!("no buffer for a copy: {error}"));
            Failure::NoRoom
        })
    }

    /// Waits for a request, and repeats it with `again` if it fails.
    fn finish(
        &self,
        transfer: Transfer<Buffer>,
        server: usize,
        again: impl Fn(&mut Buffer) -> Result<(), RequestError>,
    ) -> Result<Buffer, Failure> {
        let Failed { mut error, buffer, .. } = match transfer.wait() {
            Ok(buffer) => return Ok(buffer),
            Err(failed) => failed,
        };
        let Some(mut buffer) = buffer else { return Err(Failure::Server(server, error)) };
        for _ in 1..ATTEMPTS {
            if !may_repeat(&error) {
                break;
            }
            add(&self.counters.retries, 1);
            match again(&mut buffer) {
                Ok(()) => return Ok(buffer),
                Err(failed) => error = failed,
            }
        }
        Err(Failure::Server(server, error))
    }
}
