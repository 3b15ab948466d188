//! Writes the bytes of victims to their servers.
//!
//! Victims of one stripe are one write-out. If the stripe has parity pages, the write-out changes
//! them as well. Pages that stay at their servers are read for that, unless they are resident.
//!
//! Invariant: a stripe has at most one write-out, and its victims are resident until every server
//! has its part, or is lost. So the pager finishes each change of a stripe that it begins. Only
//! then it computes pages of the stripe from parity pages.
//!
//! # Concurrency
//! See [`engine`](super). Write-outs go on while faults are resolved. Their callbacks run on any
//! thread, and only send a [`Completion`].

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use rdmabox::{Buffer, Failed, RemoteAddr, RequestError};
use smallvec::SmallVec;

use super::Engine;
use super::stats::add;
use crate::{
    lender::protocol::LentChunk,
    logic::{
        PAGE,
        clock::PageId,
        code::{PageBytes, ZEROS, encode},
        groups::Member,
        page::{Page, Written},
    },
    remote::{ATTEMPTS, Placement, may_repeat, page_address},
};

/// Victims of one stripe, on their way to their servers.
#[derive(Debug)]
pub(super) struct WriteOut {
    region: usize,
    pages: Vec<usize>,
    /// Requests that have not ended.
    waiting: usize,
    /// Members that have their part, with their places in the group.
    stored: SmallVec<[(usize, Member<LentChunk>); 4]>,
}

/// Victims of one stripe.
#[derive(Debug)]
struct Job {
    region: usize,
    stripe: usize,
    pages: Vec<usize>,
}

/// A member that a write-out changes.
#[derive(Debug)]
struct Part {
    /// The member's place in the group.
    index: usize,
    member: Member<LentChunk>,
    /// The new bytes of its slot.
    bytes: Cow<'static, [u8]>,
}

/// One request of a write-out.
#[derive(Debug)]
struct Request {
    /// Key of the [`WriteOut`].
    key: usize,
    /// The member's place in the group.
    index: usize,
    member: Member<LentChunk>,
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
    /// Starts the write-outs of protected pages. Returns the pages of zeros, which need none.
    ///
    /// Leaves out pages that no server has room for, and pages of a stripe that is being written.
    pub(super) fn write_out(&mut self, pages: &[PageId]) -> Vec<PageId> {
        let (zeros, bytes) = self.split_zeros(pages);
        let (mut jobs, mut kept);
        loop {
            let live = self.servers.live();
            jobs = self.jobs(&bytes);
            kept = self.read_kept(&jobs);
            // A loss changes the places of pages, and the pages that stay.
            if self.servers.live() == live {
                break;
            }
        }
        let mut requests: Vec<Vec<(Request, Buffer)>> = Vec::new();
        requests.resize_with(self.servers.len(), Vec::new);
        for job in jobs {
            self.prepare(job, &kept, &mut requests);
        }
        for (server, requests) in requests.into_iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            let session = Arc::clone(self.servers.session(server));
            session
                .together(|| requests.into_iter().for_each(|(request, buffer)| self.post(request, buffer)));
        }
        zeros
    }

    /// Returns the protected pages of a list that are zeros, and those that are not.
    fn split_zeros(&self, pages: &[PageId]) -> (Vec<PageId>, Vec<PageId>) {
        // The protection may have failed.
        let is_protected = |at: &&PageId| {
            self.regions.get(&at.region).is_some_and(|region| region.get(at.page).is_protected())
        };
        pages.iter().filter(is_protected).partition(|at| self.local_bytes(**at).is_some_and(is_zero))
    }

    /// Returns the bytes of a page that is resident and protected. They are valid until this thread
    /// lifts the protection or drops the page.
    fn local_bytes(&self, at: PageId) -> Option<&'static [u8]> {
        let region = self.regions.get(&at.region)?;
        let page = region.get(at.page);
        if !page.is_resident() || !page.is_protected() {
            return None;
        }
        // SAFETY: The page is resident, so the access does not fault. It is protected, and only
        // this thread lifts the protection. So no thread stores to it while the callers use it.
        Some(unsafe { std::slice::from_raw_parts(region.address(at.page) as *const u8, PAGE) })
    }

    /// Groups pages by their stripes, and gives their groups places.
    fn jobs(&mut self, pages: &[PageId]) -> Vec<Job> {
        let mut stripes: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        let mut is_full = false;
        for at in pages {
            let stripe = self.layout.stripe(at.page);
            let is_busy = self.regions.get(&at.region).is_none_or(|region| region.is_busy(stripe));
            if !is_busy && self.has_place(*at, &mut is_full) {
                stripes.entry((at.region, stripe)).or_default().push(at.page);
            }
        }
        stripes.into_iter().map(|((region, stripe), pages)| Job { region, stripe, pages }).collect()
    }

    /// Gives the group of a page a place, if it has none. Returns false if no server has room, and
    /// sets `is_full`. Asks no server if it is set.
    fn has_place(&mut self, at: PageId, is_full: &mut bool) -> bool {
        let position = self.layout.position(at.page);
        loop {
            let Some(region) = self.regions.get_mut(&at.region) else { return false };
            let members = region.members(at.page);
            let holders: Vec<usize> = members.iter().flatten().map(|member| member.server).collect();
            let has_group = !members.is_empty();
            // The parity pages hold a page whose own member is missing.
            if has_group && (members[position].is_some() || holders.len() >= self.layout.data()) {
                return true;
            }
            if *is_full {
                return false;
            }
            let failed = if has_group {
                match self.servers.place_member(&holders, true) {
                    Placement::Placed(member) => {
                        region.set_member(at.page, position, member);
                        None
                    }
                    Placement::NoRoom => return not_placed(is_full),
                    Placement::Failed(server, error) => Some((server, error)),
                }
            } else {
                match self.servers.place_group() {
                    Placement::Placed(members) => {
                        region.place(at.page, members);
                        None
                    }
                    Placement::NoRoom => return not_placed(is_full),
                    Placement::Failed(server, error) => Some((server, error)),
                }
            };
            match failed {
                Some((server, error)) => self.lose_server(server, error),
                None => self.no_room = false,
            }
        }
    }

    /// Reads the pages that stay at their servers, and that new parity pages depend on.
    fn read_kept(&mut self, jobs: &[Job]) -> BTreeMap<PageId, PageBytes> {
        let mut absent = Vec::new();
        for job in jobs {
            let Some(region) = self.regions.get(&job.region) else { continue };
            let members = region.members(job.pages[0]);
            if self.layout.data() > 1 && members.iter().skip(self.layout.data()).any(Option::is_some) {
                let kept = region.stripe_pages(job.stripe).filter(|page| !job.pages.contains(page));
                let is_absent = |page: &usize| region.get(*page).is_remote();
                absent.extend(kept.filter(is_absent).map(|page| PageId { region: job.region, page }));
            }
        }
        if absent.is_empty() {
            return BTreeMap::new();
        }
        add(&self.counters.parity_reads, absent.len() as u64);
        self.read_pages(&absent)
    }

    /// Copies the bytes of a write-out to buffers. Without memory for the copies, or without a page
    /// that the parity pages depend on, the pages stay.
    fn prepare(
        &mut self,
        job: Job,
        kept: &BTreeMap<PageId, PageBytes>,
        requests: &mut [Vec<(Request, Buffer)>],
    ) {
        let Some(parts) = self.parts(&job, kept) else { return };
        let mut buffers = Vec::with_capacity(parts.len());
        for Part { index, member, bytes } in parts {
            match self.servers.take_buffer(member.server) {
                Ok(mut buffer) => {
                    buffer.copy_from_slice(&bytes);
                    buffers.push((index, member, buffer));
                }
                Err(error) => {
                    self.events.log(format!("no buffer for a page that should leave: {error}"));
                    for (_, member, buffer) in buffers {
                        self.servers.give_buffer(member.server, buffer);
                    }
                    return;
                }
            }
        }
        let Some(region) = self.regions.get_mut(&job.region) else { return };
        let needed: SmallVec<[usize; 16]> =
            region.stripe_pages(job.stripe).filter(|page| region.get(*page).needs_copy()).collect();
        region.cover(job.stripe, |page| job.pages.contains(&page) || needed.contains(&page));
        job.pages.iter().for_each(|page| region.update(*page, Page::begin_write));
        let remote =
            |member: &Member<LentChunk>| page_address(&member.memory, self.layout.slot(job.pages[0]));
        add(&self.counters.pages_written, job.pages.len() as u64);
        self.writing += job.pages.len();
        let write = WriteOut {
            region: job.region,
            pages: job.pages.clone(),
            waiting: buffers.len(),
            stored: SmallVec::new(),
        };
        let key = self.writes.insert(write);
        for (index, member, buffer) in buffers {
            let request = Request { key, index, member, remote: remote(&member), attempt: 1 };
            requests[member.server].push((request, buffer));
        }
    }

    /// Returns the members that a write-out changes. `None` if there is no such member, or if a
    /// page is not known.
    fn parts(&self, job: &Job, kept: &BTreeMap<PageId, PageBytes>) -> Option<Vec<Part>> {
        let region = self.regions.get(&job.region)?;
        let members = region.members(job.pages[0]);
        let data = self.layout.data();
        let mut parts = Vec::with_capacity(self.layout.members());
        for page in &job.pages {
            let bytes = self.local_bytes(PageId { region: job.region, page: *page })?;
            let position = self.layout.position(*page);
            // The one page of a stripe has copies for parity pages.
            let copies = if data == 1 { 0..members.len() } else { position..position + 1 };
            for index in copies {
                if let Some(Some(member)) = members.get(index) {
                    parts.push(Part { index, member: *member, bytes: Cow::Borrowed(bytes) });
                }
            }
        }
        if data > 1 && members.iter().skip(data).any(Option::is_some) {
            let codes = encode(self.layout, &self.stripe(job, kept)?);
            for (index, bytes) in (data..).zip(codes) {
                if let Some(member) = members[index] {
                    parts.push(Part { index, member, bytes: Cow::Owned(bytes.into_vec()) });
                }
            }
        }
        (!parts.is_empty()).then_some(parts)
    }

    /// Returns the pages that the new parity pages of a stripe cover, and zeros for the others.
    fn stripe<'a>(&self, job: &Job, kept: &'a BTreeMap<PageId, PageBytes>) -> Option<Vec<&'a [u8]>> {
        let region = self.regions.get(&job.region)?;
        let page = |page: usize| {
            let at = PageId { region: job.region, page };
            let is_covered =
                page < region.pages() && (job.pages.contains(&page) || region.get(page).needs_copy());
            match kept.get(&at) {
                _ if !is_covered => Some(ZEROS.as_slice()),
                Some(bytes) => Some(&bytes[..]),
                None => self.local_bytes(at),
            }
        };
        self.layout.pages(job.stripe).map(page).collect()
    }

    /// Starts a request. Its end is a [`Completion`].
    fn post(&self, request: Request, buffer: Buffer) {
        let (send, wake) = (self.completions.0.clone(), Arc::clone(&self.wake));
        let session = self.servers.session(request.member.server);
        add(&self.counters.bytes_written, PAGE as u64);
        session.write_then(request.remote, buffer, move |outcome| {
            let _ = send.send(Completion { request, outcome });
            wake.wake();
        });
    }

    /// Handles the end of a request. Appends pages to `written` that can be dropped.
    pub(super) fn complete(&mut self, completion: Completion, written: &mut Vec<PageId>) {
        let Completion { mut request, outcome } = completion;
        let (key, server) = (request.key, request.member.server);
        match outcome {
            Ok(buffer) => {
                self.servers.give_buffer(server, buffer);
                self.writes[key].stored.push((request.index, request.member));
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
        request.attempt < ATTEMPTS && may_repeat(error) && !self.servers.is_lost(request.member.server)
    }

    /// Ends a write-out whose requests have all ended.
    fn end_write(&mut self, write: &WriteOut, written: &mut Vec<PageId>) {
        self.writing -= write.pages.len();
        let Some(region) = self.regions.get_mut(&write.region) else { return };
        let (data, layout) = (self.layout.data(), self.layout);
        // Members that are lost meanwhile do not count; all others need their part.
        let members = region.members(write.pages[0]).to_vec();
        let has_part =
            |index: usize| members[index].is_none_or(|member| write.stored.contains(&(index, member)));
        let positions = write.pages.iter().map(|page| layout.position(*page));
        let is_complete = !members.is_empty() && positions.chain(data..members.len()).all(has_part);
        let is_decodable = members.iter().flatten().count() >= data;
        for page in &write.pages {
            let has_copy = || members[layout.position(*page)].is_some() || is_decodable;
            let stored = is_complete && has_copy();
            match region.update(*page, |page| page.end_write(stored)) {
                Written::Drop => written.push(PageId { region: write.region, page: *page }),
                Written::Keep => add(&self.counters.redirtied, stored.into()),
            }
        }
    }
}

/// Notes that no server has room.
fn not_placed(is_full: &mut bool) -> bool {
    *is_full = true;
    false
}

/// Returns true if a page has only zeros.
fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: Each bit pattern is a valid `u64`.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
    let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    zero(head) && zero(tail) && words.iter().all(|word| *word == 0)
}
