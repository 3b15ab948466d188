//! Gives pages their redundancy again after the loss of a server.
//!
//! A group that lacks a member gets a chunk at another server, and the bytes of the member are
//! computed from the other members. One chunk is one step. Steps run while no fault waits, and
//! between faults from time to time.
//!
//! # Concurrency
//! See [`engine`](super). The fault thread waits for the requests of a step, and no write-out is
//! under way meanwhile, so each stripe has one state.

use std::time::{Duration, Instant};

use rdmabox::{Buffer, Failed, RequestError, Transfer};

use super::{Engine, stats::add};
use crate::{
    error::PagerEvent,
    lender::protocol::LentChunk,
    logic::{
        budget::MAX_BATCH,
        clock::PageId,
        code::{PageBytes, ZEROS, encode},
        groups::Member,
    },
    remote::{ATTEMPTS, Placement, may_repeat, page_address},
};

/// Longest pause between two steps while faults wait.
const STEP_INTERVAL: Duration = Duration::from_millis(20);
/// Pause after a pass over the groups in which memory was lacking.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(2);

/// The repair of all groups since a loss.
#[derive(Debug)]
pub(super) struct Repair {
    /// The first page of the next group to look at.
    at: PageId,
    /// A group of this pass over the groups found no room.
    has_skipped: bool,
    /// Chunks that other servers have got.
    chunks: u64,
    /// No step before this time.
    pause: Option<Instant>,
    /// The end of the last step.
    last: Instant,
}

/// Why a step did not end with a chunk.
enum Failure {
    /// A request to the server failed.
    Server(usize, RequestError),
    /// Another server or this program has too little memory.
    NoRoom,
    /// A server was lost, which begins the repair anew.
    Restarted,
}

impl Engine {
    /// Begins to repair, from the first group on, if the servers that are left allow redundancy.
    pub(super) fn begin_repair(&mut self) {
        if self.servers.wanted() > self.layout.data() {
            let at = PageId::default();
            let (has_skipped, pause, last) = (false, None, Instant::now());
            self.repair = Some(Repair { at, has_skipped, chunks: 0, pause, last });
        } else {
            self.repair = None;
        }
    }

    /// Returns the time until the next step; `None` without a repair.
    pub(super) fn repair_timeout(&self) -> Option<Duration> {
        let until = self.repair.as_ref()?.pause;
        Some(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())))
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
        // A write-out that is under way does not reach a new member. Its end may also show a loss,
        // which begins the repair anew.
        self.finish_writes();
        let Some(mut repair) = self.repair.take() else { return };
        repair.pause = None;
        let Some(at) = self.next_bare(repair.at) else {
            if !repair.has_skipped {
                return self.events.report(PagerEvent::Repaired { chunks: repair.chunks });
            }
            (repair.at, repair.has_skipped) = (PageId::default(), false);
            repair.pause = Some(now + NO_ROOM_PAUSE);
            self.repair = Some(repair);
            return;
        };
        repair.at = at;
        match self.repair_group(at) {
            Ok(()) => {
                add(&self.counters.repaired_chunks, 1);
                repair.chunks += 1;
            }
            // The next group may have its members at other servers.
            Err(Failure::NoRoom) => {
                repair.at.page += self.layout.group_pages();
                repair.has_skipped = true;
            }
            // The loss begins the repair anew.
            Err(Failure::Server(server, error)) => return self.lose_server(server, error),
            Err(Failure::Restarted) => return,
        }
        repair.last = Instant::now();
        self.repair = Some(repair);
    }

    /// Returns the first page of the next group that lacks a member.
    fn next_bare(&self, from: PageId) -> Option<PageId> {
        let wanted = self.servers.wanted();
        self.regions.range(from.region..).find_map(|(start, region)| {
            let first = if *start == from.region { from.page } else { 0 };
            region.next_bare(first, wanted).map(|page| PageId { region: *start, page })
        })
    }

    /// Gives a group a member that it lacks.
    fn repair_group(&mut self, at: PageId) -> Result<(), Failure> {
        let Some(region) = self.regions.get(&at.region) else { return Ok(()) };
        let members = region.members(at.page);
        let Some(index) = members.iter().position(Option::is_none) else { return Ok(()) };
        let holders: Vec<usize> = members.iter().flatten().map(|member| member.server).collect();
        let target = match self.servers.place_member(&holders, false) {
            Placement::Placed(member) => member,
            Placement::NoRoom => return Err(Failure::NoRoom),
            Placement::Failed(server, error) => return Err(Failure::Server(server, error)),
        };
        match self.copy_member(at, index, &target) {
            Ok(()) => {
                if let Some(region) = self.regions.get_mut(&at.region) {
                    region.set_member(at.page, index, target);
                }
                Ok(())
            }
            Err(failure) => {
                // A chunk of a target that failed may still get bytes, so the target keeps it. The
                // end of the session frees it.
                if !matches!(&failure, Failure::Server(..)) {
                    self.servers.free(vec![target]);
                }
                Err(failure)
            }
        }
    }

    /// Writes the bytes of a member to its new chunk.
    fn copy_member(&mut self, at: PageId, index: usize, target: &Member<LentChunk>) -> Result<(), Failure> {
        let Some(region) = self.regions.get(&at.region) else { return Ok(()) };
        let (layout, pages) = (self.layout, region.group_pages(at.page));
        let stripes = layout.stripe(pages.start)..layout.stripe(pages.end - 1) + 1;
        // Without a stored page the bytes of a stripe do not matter.
        let is_used = |stripe: &usize| region.stripe_pages(*stripe).any(|page| region.get(page).is_stored());
        let stripes: Vec<usize> = stripes.filter(is_used).collect();
        for part in stripes.chunks((MAX_BATCH / layout.data()).max(1)) {
            let bytes = self.member_bytes(at.region, index, part)?;
            self.write_member(target, &bytes)?;
        }
        Ok(())
    }

    /// Returns the bytes of a member in stripes, with the first page of each stripe.
    fn member_bytes(
        &mut self,
        start: usize,
        index: usize,
        stripes: &[usize],
    ) -> Result<Vec<(usize, PageBytes)>, Failure> {
        let Some(region) = self.regions.get(&start) else { return Ok(Vec::new()) };
        let layout = self.layout;
        let is_wanted = |page: &usize| {
            region.is_covered(*page) && (index >= layout.data() || layout.position(*page) == index)
        };
        let pages = stripes.iter().flat_map(|stripe| layout.pages(*stripe)).filter(is_wanted);
        let pages: Vec<PageId> = pages.map(|page| PageId { region: start, page }).collect();
        let live = self.servers.live();
        let mut read = self.read_pages(&pages);
        if self.servers.live() < live {
            return Err(Failure::Restarted);
        }
        if read.len() < pages.len() {
            return Err(Failure::NoRoom);
        }
        if index < layout.data() {
            return Ok(read.into_iter().map(|(at, bytes)| (at.page, bytes)).collect());
        }
        let mut codes = Vec::with_capacity(stripes.len());
        for stripe in stripes {
            let pages: Vec<Option<PageBytes>> =
                layout.pages(*stripe).map(|page| read.remove(&PageId { region: start, page })).collect();
            let data: Vec<&[u8]> = pages.iter().map(|page| page.as_deref().unwrap_or(&ZEROS)).collect();
            let code = encode(layout, &data).swap_remove(index - layout.data());
            codes.push((layout.pages(*stripe).start, code));
        }
        Ok(codes)
    }

    /// Writes slots of a chunk: the bytes for the stripe of each page.
    fn write_member(
        &mut self,
        target: &Member<LentChunk>,
        slots: &[(usize, PageBytes)],
    ) -> Result<(), Failure> {
        let mut buffers = Vec::with_capacity(slots.len());
        for (_, bytes) in slots {
            let mut buffer = self.buffer(target.server)?;
            buffer.copy_from_slice(bytes);
            buffers.push(buffer);
        }
        let remote = |page: usize| page_address(&target.memory, self.layout.slot(page));
        let session = self.servers.session(target.server);
        let writes: Vec<_> = session.together(|| {
            let starts = slots.iter().zip(buffers);
            starts.map(|((page, _), buffer)| session.start_write(remote(*page), buffer)).collect()
        });
        let mut buffers = Vec::with_capacity(slots.len());
        for ((page, _), write) in slots.iter().zip(writes) {
            let again = |buffer: &mut Buffer| session.write(remote(*page), buffer);
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
