//! Where the pages of a region are in groups and stripes.
//!
//! A stripe is `data` adjacent pages and their parity pages. A group is the stripes whose members
//! fill one chunk each: `data` chunks of pages, then `parity` chunks of parity pages.
//!
//! # Concurrency
//! Plain values.

use std::ops::Range;

use super::{PAGE, redundancy::Redundancy};

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = 256;
/// Length of a chunk in bytes.
pub(crate) const CHUNK: usize = CHUNK_PAGES * PAGE;

/// The shape of stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    data: usize,
    parity: usize,
}

impl Layout {
    /// Returns the shape for a redundancy. A mirror is a stripe of one page with one copy.
    pub(crate) fn new(redundancy: Redundancy) -> Layout {
        let (data, parity) = match redundancy {
            Redundancy::None => (1, 0),
            Redundancy::Mirror => (1, 1),
            Redundancy::Coded { data, parity } => (data, parity),
        };
        Layout { data, parity }
    }

    /// Returns the number of pages of a stripe, without its parity pages.
    pub(crate) fn data(self) -> usize {
        self.data
    }

    /// Returns the number of parity pages of a stripe.
    pub(crate) fn parity(self) -> usize {
        self.parity
    }

    /// Returns the number of chunks of a group.
    pub(crate) fn members(self) -> usize {
        self.data + self.parity
    }

    /// Returns the number of pages of a group, without its parity pages.
    pub(crate) fn group_pages(self) -> usize {
        self.data * CHUNK_PAGES
    }

    /// Returns the number of a page's group.
    pub(crate) fn group(self, page: usize) -> usize {
        page / self.group_pages()
    }

    /// Returns the number of a page's stripe in the region.
    pub(crate) fn stripe(self, page: usize) -> usize {
        page / self.data
    }

    /// Returns the pages of a stripe.
    pub(crate) fn pages(self, stripe: usize) -> Range<usize> {
        stripe * self.data..(stripe + 1) * self.data
    }

    /// Returns the place of a page in its stripe. The chunk of the group at this place holds the
    /// page.
    pub(crate) fn position(self, page: usize) -> usize {
        page % self.data
    }

    /// Returns the place of a page, and of the parity pages of its stripe, in their chunks.
    pub(crate) fn slot(self, page: usize) -> usize {
        self.stripe(page) % CHUNK_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_and_a_single_copy_have_a_page_for_each_stripe() {
        for redundancy in [Redundancy::None, Redundancy::Mirror] {
            let layout = Layout::new(redundancy);
            assert_eq!((layout.group(255), layout.group(256)), (0, 1));
            assert_eq!((layout.stripe(700), layout.position(700), layout.slot(700)), (700, 0, 188));
            assert_eq!(layout.members(), redundancy.servers());
        }
    }

    #[test]
    fn each_page_has_a_place_of_its_own() {
        let layout = Layout::new(Redundancy::Coded { data: 3, parity: 2 });
        let places: std::collections::BTreeSet<_> =
            (0..2000).map(|page| (layout.group(page), layout.position(page), layout.slot(page))).collect();
        assert_eq!(places.len(), 2000);
        assert_eq!((layout.group(767), layout.group(768)), (0, 1));
        assert!(layout.pages(layout.stripe(700)).contains(&700));
    }
}
