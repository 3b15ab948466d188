//! One paged region: page states, groups and the detector of sequential faults.
//!
//! Invariant: the group of a page that [uses its slot](super::page::Page::uses_slot) has a place,
//! and counts the page.
//!
//! # Concurrency
//! Plain values. The fault thread owns them.

use std::ops::Range;

use super::{
    PAGE,
    groups::{GroupMap, Member, Members},
    layout::Layout,
    page::Page,
    read_ahead::ReadAhead,
    table::Table,
};

/// A region; `M` is the place of a chunk in a server's memory.
#[derive(Debug)]
pub(crate) struct Region<M> {
    start: usize,
    table: Table,
    layout: Layout,
    groups: GroupMap<M>,
    pub(crate) read_ahead: ReadAhead,
    /// Chunks that no page needs any more, for the caller to give back.
    unused: Vec<Member<M>>,
    /// Chunks of void parity pages, to give back when no write-out is under way.
    void: Vec<Member<M>>,
}

impl<M> AsMut<Table> for Region<M> {
    fn as_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

impl<M: Copy> Region<M> {
    /// Makes a region of untouched pages at address `start`.
    pub(crate) fn new(start: usize, pages: usize, read_ahead: usize, layout: Layout) -> Region<M> {
        Region {
            start,
            table: Table::new(pages),
            layout,
            groups: GroupMap::new(pages, layout),
            read_ahead: ReadAhead::new(read_ahead),
            unused: Vec::new(),
            void: Vec::new(),
        }
    }

    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of resident pages.
    pub(crate) fn resident(&self) -> usize {
        self.table.resident()
    }

    /// Returns the address of a page.
    pub(crate) fn address(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    /// Returns the page at an address in the region.
    pub(crate) fn page_at(&self, address: usize) -> usize {
        (address - self.start) / PAGE
    }

    pub(crate) fn get(&self, page: usize) -> Page {
        self.table.get(page)
    }

    /// Changes the state of a page, and counts its slot.
    pub(crate) fn update<R>(&mut self, page: usize, change: impl FnOnce(&mut Page) -> R) -> R {
        let before = self.table.get(page).uses_slot();
        let result = self.table.update(page, change);
        match (before, self.table.get(page).uses_slot()) {
            (false, true) => self.groups.take_slot(page),
            (true, false) => self.unused.extend(self.groups.leave_slot(page)),
            _ => {}
        }
        result
    }

    /// Returns the members of a page's group: none if it has no place.
    pub(crate) fn members(&self, page: usize) -> &[Option<Member<M>>] {
        self.groups.members(page)
    }

    /// Returns the pages of the group of a page.
    pub(crate) fn group_pages(&self, page: usize) -> Range<usize> {
        let first = self.layout.group(page) * self.layout.group_pages();
        first..self.pages().min(first + self.layout.group_pages())
    }

    /// Returns the pages of a stripe that are in the region.
    pub(crate) fn stripe_pages(&self, stripe: usize) -> Range<usize> {
        let pages = self.layout.pages(stripe);
        pages.start..self.pages().min(pages.end)
    }

    /// Returns true if a write-out of a page of the stripe is under way.
    pub(crate) fn is_busy(&self, stripe: usize) -> bool {
        self.stripe_pages(stripe).any(|page| self.get(page).is_writing())
    }

    /// Returns true if the parity pages of its stripe cover a page.
    pub(crate) fn is_covered(&self, page: usize) -> bool {
        self.groups.is_covered(page)
    }

    /// Notes which pages of a stripe its parity pages cover.
    pub(crate) fn cover(&mut self, stripe: usize, covered: impl Fn(usize) -> bool) {
        for page in self.layout.pages(stripe) {
            self.groups.cover(page, covered(page));
        }
    }

    /// Gives the group of a page its place.
    pub(crate) fn place(&mut self, page: usize, members: Members<M>) {
        self.groups.place(page, members);
        // Write-outs that are under way to servers that are lost still count.
        for page in self.group_pages(page) {
            if self.table.get(page).uses_slot() {
                self.groups.take_slot(page);
            }
        }
    }

    /// Gives the group of a page a member that is missing.
    pub(crate) fn set_member(&mut self, page: usize, index: usize, member: Member<M>) {
        self.groups.set_member(page, index, member);
    }

    /// Returns the first page of the first group at or after `page` that lacks members.
    pub(crate) fn next_bare(&self, page: usize, wanted: usize) -> Option<usize> {
        self.groups.next_bare(page, wanted)
    }

    /// Takes the chunks that no page needs any more.
    pub(crate) fn take_unused(&mut self) -> Vec<Member<M>> {
        std::mem::take(&mut self.unused)
    }

    /// Takes the chunks of void parity pages. No write-out is under way.
    pub(crate) fn take_void(&mut self) -> Vec<Member<M>> {
        std::mem::take(&mut self.void)
    }

    /// Removes a server that is lost. Returns the number of pages whose bytes are lost with it.
    pub(crate) fn remove_server(&mut self, server: usize) -> u64 {
        let mut lost = 0;
        for loss in self.groups.remove_server(server) {
            for page in self.group_pages(loss.first) {
                if !loss.positions.contains(&self.layout.position(page)) {
                    continue;
                }
                let is_lost = if loss.is_gone {
                    self.table.update(page, Page::lose_copies)
                } else {
                    self.update(page, Page::lose_copies)
                };
                lost += u64::from(is_lost);
            }
            self.void.extend(loss.void);
        }
        self.unused.retain(|member| member.server != server);
        self.void.retain(|member| member.server != server);
        lost
    }

    /// Returns the pages to read for a fault on `page`: the page, and following ones that are at a
    /// server only. `room` bounds their number.
    pub(crate) fn block(&mut self, page: usize, room: usize) -> Range<usize> {
        let wanted = self.read_ahead.fault(page).min(room.max(1)).min(self.pages() - page);
        let len = 1 + (page + 1..page + wanted).take_while(|next| self.get(*next).is_remote()).count();
        if len < wanted {
            self.read_ahead.limited(page, len);
        }
        page..page + len
    }

    /// Ends the region: returns all of its chunks.
    pub(crate) fn end(mut self) -> Vec<Member<M>> {
        let mut all = self.take_unused();
        all.extend(self.take_void());
        all.extend(self.groups.clear());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::{page::MissingFault, redundancy::Redundancy};

    fn region(read_ahead: usize) -> Region<u32> {
        Region::new(0, 300, read_ahead, Layout::new(Redundancy::None))
    }

    /// Brings `page` to the server, as the engine does.
    fn page_out(region: &mut Region<u32>, page: usize) {
        if region.members(page).is_empty() {
            region.place(page, vec![Some(Member { server: 0, memory: page as u32 })]);
        }
        region.update(page, |page| page.fill(false, true));
        for _ in 0..2 {
            region.update(page, |page| page.visit());
        }
        region.update(page, Page::begin_write);
        region.update(page, |page| page.end_write(true));
        region.update(page, Page::drop_clean);
    }

    #[test]
    fn a_chunk_lives_as_long_as_a_page_is_stored_there() {
        let mut region = region(1);
        page_out(&mut region, 1);
        page_out(&mut region, 2);
        region.update(1, Page::discard);
        assert!(region.take_unused().is_empty());
        region.update(2, Page::discard);
        assert_eq!(region.take_unused(), [Member { server: 0, memory: 1 }]);
        page_out(&mut region, 299);
        assert_eq!(region.end().len(), 1);
    }

    #[test]
    fn a_lost_server_loses_what_only_it_had() {
        let mut region = region(1);
        page_out(&mut region, 1);
        page_out(&mut region, 2);
        region.update(2, |page| page.fill(true, true));
        assert_eq!(region.remove_server(0), 1);
        assert_eq!(region.get(1).missing_fault(), MissingFault::Lost);
        assert_eq!(region.get(2).missing_fault(), MissingFault::Present);
        assert!(region.members(2).is_empty());
    }

    #[test]
    fn a_block_ends_at_the_first_page_that_is_not_remote() {
        let mut region = region(8);
        (10..30).filter(|page| *page != 16).for_each(|page| page_out(&mut region, page));
        assert_eq!(region.block(10, 100), 10..11);
        assert_eq!(region.block(11, 100), 11..13);
        assert_eq!(region.block(13, 100), 13..16);
        assert_eq!(region.block(16, 100), 16..24);
        assert_eq!(region.block(24, 3), 24..27, "room for three");
        assert_eq!(region.block(29, 100), 29..30);
    }
}
