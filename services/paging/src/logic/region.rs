//! One paged region: page states, chunks and the detector of sequential faults.
//!
//! Invariant: the chunk of a page that [uses its slot](super::page::Page::uses_slot) has a place,
//! and counts the page.
//!
//! # Concurrency
//! Plain values. The fault thread owns them.

use std::ops::Range;

use super::{
    PAGE,
    chunks::{CHUNK_PAGES, ChunkMap, Replica, Replicas},
    page::Page,
    read_ahead::ReadAhead,
    table::Table,
};

/// A region; `M` is the place of a chunk in a server's memory.
#[derive(Debug)]
pub(crate) struct Region<M> {
    start: usize,
    table: Table,
    chunks: ChunkMap<M>,
    pub(crate) read_ahead: ReadAhead,
    /// Copies of chunks that no page needs any more, for the caller to give back.
    unused: Vec<Replica<M>>,
}

impl<M> AsMut<Table> for Region<M> {
    fn as_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

impl<M: Copy> Region<M> {
    /// Makes a region of untouched pages at address `start`.
    pub(crate) fn new(start: usize, pages: usize, read_ahead: usize) -> Region<M> {
        Region {
            start,
            table: Table::new(pages),
            chunks: ChunkMap::new(pages),
            read_ahead: ReadAhead::new(read_ahead),
            unused: Vec::new(),
        }
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.table.len()
    }

    /// Number of resident pages.
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
            (false, true) => self.chunks.take_slot(page),
            (true, false) => self.unused.extend(self.chunks.leave_slot(page)),
            _ => {}
        }
        result
    }

    /// Returns the copies of a page's chunk.
    pub(crate) fn replicas(&self, page: usize) -> &[Replica<M>] {
        self.chunks.replicas(page)
    }

    /// Gives the chunk of a page its place.
    pub(crate) fn place(&mut self, page: usize, replicas: Replicas<M>) {
        self.chunks.place(page, replicas);
        // Write-outs that are under way to servers that are lost still count.
        let first = page / CHUNK_PAGES * CHUNK_PAGES;
        for page in first..self.pages().min(first + CHUNK_PAGES) {
            if self.table.get(page).uses_slot() {
                self.chunks.take_slot(page);
            }
        }
    }

    /// Adds a copy to the chunk of a page.
    pub(crate) fn add_replica(&mut self, page: usize, replica: Replica<M>) {
        self.chunks.add_replica(page, replica);
    }

    /// Returns the first page of the first chunk at or after `page` that lacks copies.
    pub(crate) fn next_bare(&self, page: usize, wanted: usize) -> Option<usize> {
        self.chunks.next_bare(page, wanted)
    }

    /// Takes the copies of chunks that no page needs any more.
    pub(crate) fn take_unused(&mut self) -> Vec<Replica<M>> {
        std::mem::take(&mut self.unused)
    }

    /// Removes a server that is lost. Returns the number of pages whose bytes are lost with it.
    pub(crate) fn remove_server(&mut self, server: usize) -> u64 {
        let mut lost = 0;
        for first in self.chunks.remove_server(server) {
            for page in first..self.pages().min(first + CHUNK_PAGES) {
                lost += u64::from(self.table.update(page, Page::lose_copies));
            }
        }
        self.unused.retain(|replica| replica.server != server);
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

    /// Ends the region: returns all copies of its chunks.
    pub(crate) fn end(mut self) -> Vec<Replica<M>> {
        let mut all = self.take_unused();
        all.extend(self.chunks.clear());
        all
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::logic::page::MissingFault;

    /// Brings `page` to the server, as the engine does.
    fn page_out(region: &mut Region<u32>, page: usize) {
        if region.replicas(page).is_empty() {
            region.place(page, smallvec![Replica { server: 0, memory: page as u32 }]);
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
        let mut region = Region::new(0, 300, 1);
        page_out(&mut region, 1);
        page_out(&mut region, 2);
        region.update(1, Page::discard);
        assert!(region.take_unused().is_empty());
        region.update(2, Page::discard);
        assert_eq!(region.take_unused(), [Replica { server: 0, memory: 1 }]);
        page_out(&mut region, 299);
        assert_eq!(region.end().len(), 1);
    }

    #[test]
    fn a_lost_server_loses_what_only_it_had() {
        let mut region = Region::new(0, 300, 1);
        page_out(&mut region, 1);
        page_out(&mut region, 2);
        region.update(2, |page| page.fill(true, true));
        assert_eq!(region.remove_server(0), 1);
        assert_eq!(region.get(1).missing_fault(), MissingFault::Lost);
        assert_eq!(region.get(2).missing_fault(), MissingFault::Present);
        assert!(region.replicas(2).is_empty());
    }

    #[test]
    fn a_block_ends_at_the_first_page_that_is_not_remote() {
        let mut region = Region::new(0, 300, 8);
        (10..30).filter(|page| *page != 16).for_each(|page| page_out(&mut region, page));
        assert_eq!(region.block(10, 100), 10..11);
        assert_eq!(region.block(11, 100), 11..13);
        assert_eq!(region.block(13, 100), 13..16);
        assert_eq!(region.block(16, 100), 16..24);
        assert_eq!(region.block(24, 3), 24..27, "room for three");
        assert_eq!(region.block(29, 100), 29..30);
    }
}
