//! Reads pages for the pager's own use: to compute a parity page, or a page whose server is lost.
//!
//! # Concurrency
//! See [`engine`](super). The fault thread waits for the reads, all of which are under way at once.

use std::collections::{BTreeMap, BTreeSet};

use rdmabox::{Buffer, RemoteAddr, RequestError, Transfer};

use super::{Engine, stats::add};
use crate::{
    logic::{
        PAGE,
        budget::MAX_BATCH,
        clock::PageId,
        code::{PageBytes, ZEROS, decode},
    },
    remote::{ATTEMPTS, may_repeat, page_address},
};

/// A page or parity page of a stripe at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    /// A page of the stripe.
    at: PageId,
    /// The member of the group.
    member: usize,
}

/// A read under way.
struct Read {
    slot: Slot,
    server: usize,
    remote: RemoteAddr,
    transfer: Transfer<Buffer>,
}

impl Engine {
    /// Reads the stored bytes of pages. The result lacks pages whose bytes are lost, or for which
    /// there is no memory.
    ///
    /// No write-out is under way in the stripes of pages whose server is lost.
    pub(super) fn read_pages(&mut self, pages: &[PageId]) -> BTreeMap<PageId, PageBytes> {
        let mut slots = BTreeMap::new();
        loop {
            let live = self.servers.live();
            let plans: Vec<(PageId, Vec<Slot>)> =
                pages.iter().filter_map(|at| Some((*at, self.sources(*at)?))).collect();
            let wanted: BTreeSet<Slot> = plans.iter().flat_map(|(_, sources)| sources.clone()).collect();
            let wanted: Vec<Slot> = wanted.into_iter().filter(|slot| !slots.contains_key(slot)).collect();
            wanted.chunks(MAX_BATCH).for_each(|part| self.read_slots(part, &mut slots));
            // Without the server that was lost meanwhile, pages have other sources.
            if self.servers.live() == live {
                let page =
                    |(at, sources): (PageId, Vec<Slot>)| Some((at, self.assemble(at, &sources, &slots)?));
                return plans.into_iter().filter_map(page).collect();
            }
        }
    }

    /// Returns the slots that give the bytes of a page; `None` if there are too few.
    fn sources(&self, at: PageId) -> Option<Vec<Slot>> {
        let region = self.regions.get(&at.region)?;
        let (members, data) = (region.members(at.page), self.layout.data());
        let stripe = self.layout.stripe(at.page);
        // Pages of a stripe share their slots, so a slot is named by the first page.
        let first = PageId { page: self.layout.pages(stripe).start, ..at };
        let slot = |member| Slot { at: first, member };
        let is_present = |member: &usize| members.get(*member).is_some_and(Option::is_some);
        let position = self.layout.position(at.page);
        if is_present(&position) {
            return Some(vec![slot(position)]);
        }
        let covered = |position: &usize| region.is_covered(first.page + position);
        let others = (0..data).filter(|other| *other != position);
        let zeros = others.clone().filter(|other| !covered(other)).count();
        let codes = (data..self.layout.members()).filter(is_present);
        let known = others.filter(covered).filter(is_present).chain(codes).map(slot);
        let sources: Vec<Slot> = known.take(data - zeros).collect();
        (sources.len() + zeros == data).then_some(sources)
    }

    /// Computes the bytes of a page from its sources.
    fn assemble(&self, at: PageId, sources: &[Slot], slots: &BTreeMap<Slot, PageBytes>) -> Option<PageBytes> {
        let region = self.regions.get(&at.region)?;
        let mut known: Vec<(usize, &[u8])> = Vec::with_capacity(self.layout.data());
        for slot in sources {
            known.push((slot.member, slots.get(slot)?));
        }
        let position = self.layout.position(at.page);
        if !sources.iter().any(|slot| slot.member == position) {
            let first = at.page - position;
            let others = (0..self.layout.data()).filter(|other| *other != position);
            known.extend(
                others
                    .filter(|other| !region.is_covered(first + other))
                    .map(|other| (other, ZEROS.as_slice())),
            );
        }
        decode(self.layout, position, &known)
    }

    /// Reads slots, and adds their bytes to `slots`. A slot whose server is lost meanwhile is left
    /// out.
    fn read_slots(&mut self, wanted: &[Slot], slots: &mut BTreeMap<Slot, PageBytes>) {
        let mut alone: Vec<(Slot, usize, RemoteAddr, Option<RequestError>)> = Vec::new();
        let mut jobs: Vec<Vec<(Slot, RemoteAddr, Buffer)>> = Vec::new();
        jobs.resize_with(self.servers.len(), Vec::new);
        for slot in wanted {
            let Some(region) = self.regions.get(&slot.at.region) else { continue };
            let Some(Some(member)) = region.members(slot.at.page).get(slot.member).copied() else { continue };
            let remote = page_address(&member.memory, self.layout.slot(slot.at.page));
            match self.servers.take_buffer(member.server) {
                Ok(buffer) => jobs[member.server].push((*slot, remote, buffer)),
                Err(_) => alone.push((*slot, member.server, remote, None)),
            }
        }
        let mut reads = Vec::with_capacity(wanted.len());
        for (server, jobs) in jobs.into_iter().enumerate().filter(|(_, jobs)| !jobs.is_empty()) {
            let session = self.servers.session(server);
            session.together(|| {
                for (slot, remote, buffer) in jobs {
                    reads.push(Read { slot, server, remote, transfer: session.start_read(remote, buffer) });
                }
            });
        }
        for Read { slot, server, remote, transfer } in reads {
            match transfer.wait() {
                Ok(buffer) => {
                    slots.insert(slot, PageBytes::from(&buffer[..]));
                    self.servers.give_buffer(server, buffer);
                }
                Err(failed) => alone.push((slot, server, remote, Some(failed.error))),
            }
        }
        for (slot, server, remote, failed) in alone {
            if let Some(bytes) = self.read_slot(server, remote, failed) {
                slots.insert(slot, bytes);
            }
        }
    }

    /// Reads a slot by itself, after a read of it `failed`. Returns `None` if the server is lost.
    fn read_slot(
        &mut self,
        server: usize,
        remote: RemoteAddr,
        mut failed: Option<RequestError>,
    ) -> Option<PageBytes> {
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        for attempt in 1..=ATTEMPTS {
            if self.servers.is_lost(server) {
                return None;
            }
            if let Some(error) = failed.take() {
                if attempt == ATTEMPTS || !may_repeat(&error) {
                    self.lose_server(server, error);
                    return None;
                }
                add(&self.counters.retries, 1);
            }
            match self.servers.session(server).read(remote, &mut bytes) {
                Ok(()) => return Some(bytes),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            self.lose_server(server, error);
        }
        None
    }
}
