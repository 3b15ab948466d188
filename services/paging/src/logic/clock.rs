//! Chooses the pages that leave: a clock over the resident pages of all regions.
//!
//! The hand moves in the order of addresses, so that victims that are adjacent come one after the
//! other. A page with a reference gets a second chance. The kernel reports faults only. So a load
//! from a resident page is no reference, and a store to it is a reference only while the page is
//! protected.
//!
//! # Concurrency
//! Plain values.

use std::{collections::BTreeMap, ops::Range};

use super::{page::Visit, table::Table};

/// A page of a region, which its address names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId {
    /// First address of the region.
    pub(crate) region: usize,
    /// Index of the page in the region.
    pub(crate) page: usize,
}

/// The pages that a turn of the hand found. All lists are in the order of the hand.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Pages to protect from now on.
    pub(crate) protect: Vec<PageId>,
    /// Pages whose stored copy is current.
    pub(crate) drop: Vec<PageId>,
    /// Pages to write out, all of them protected or in `protect`.
    pub(crate) clean: Vec<PageId>,
}

/// The hand.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    hand: PageId,
}

impl Clock {
    /// Moves the hand until it has found `wanted` victims, or has been around twice.
    pub(crate) fn sweep<R: AsMut<Table>>(
        &mut self,
        regions: &mut BTreeMap<usize, R>,
        wanted: usize,
    ) -> Sweep {
        let mut sweep = Sweep::default();
        let resident: usize = regions.values_mut().map(|region| region.as_mut().resident()).sum();
        for _ in 0..2 * resident {
            if sweep.drop.len() + sweep.clean.len() >= wanted {
                break;
            }
            let Some(at) = self.advance(regions) else { break };
            let Some(region) = regions.get_mut(&at.region) else { break };
            match region.as_mut().update(at.page, |page| page.visit()) {
                Visit::Pass => {}
                Visit::Age { protect } => sweep.protect.extend(protect.then_some(at)),
                // A victim of this sweep is met again if the hand comes around.
                Visit::Drop if sweep.drop.contains(&at) => {}
                Visit::Clean { .. } if sweep.clean.contains(&at) => {}
                Visit::Drop => sweep.drop.push(at),
                Visit::Clean { protect } => {
                    sweep.protect.extend(protect.then_some(at));
                    sweep.clean.push(at);
                }
            }
        }
        sweep
    }

    /// Returns the resident page at the hand or after it, and moves the hand behind that page.
    fn advance<R: AsMut<Table>>(&mut self, regions: &mut BTreeMap<usize, R>) -> Option<PageId> {
        let PageId { region: hand, page } = self.hand;
        let here_and_after = regions.range_mut(hand..).map(|(start, region)| {
            let from = if *start == hand { page } else { 0 };
            (*start, region.as_mut().next_resident(from))
        });
        let mut found = here_and_after.filter_map(found_page).next();
        if found.is_none() {
            let from_the_start =
                regions.iter_mut().map(|(start, region)| (*start, region.as_mut().next_resident(0)));
            found = from_the_start.filter_map(found_page).next();
        }
        let at = found?;
        self.hand = PageId { region: at.region, page: at.page + 1 };
        Some(at)
    }
}

/// Returns the region and the pages of each group of consecutive pages in a list.
pub(crate) fn runs(list: &[PageId]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let follows =
            |(place, at): (usize, &PageId)| at.region == first.region && at.page == first.page + place;
        let len = rest.iter().enumerate().take_while(|(place, at)| follows((*place, at))).count();
        rest = &rest[len..];
        Some((first.region, first.page..first.page + len))
    })
}

fn found_page((region, page): (usize, Option<usize>)) -> Option<PageId> {
    page.map(|page| PageId { region, page })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Region(Table);

    impl AsMut<Table> for Region {
        fn as_mut(&mut self) -> &mut Table {
            &mut self.0
        }
    }

    fn regions(resident: &[(usize, &[usize])]) -> BTreeMap<usize, Region> {
        let region = |pages: &[usize]| {
            let mut table = Table::new(100);
            pages.iter().for_each(|page| table.update(*page, |page| page.fill(false, true)));
            Region(table)
        };
        resident.iter().map(|(start, pages)| (*start, region(pages))).collect()
    }

    fn pages(list: &[PageId]) -> Vec<(usize, usize)> {
        list.iter().map(|at| (at.region, at.page)).collect()
    }

    #[test]
    fn victims_come_in_order_after_a_second_chance() {
        let mut regions = regions(&[(0x1000, &[5, 6, 7]), (0x9000, &[0, 99])]);
        let mut clock = Clock::default();
        let sweep = clock.sweep(&mut regions, 3);
        assert_eq!(pages(&sweep.protect), [(0x1000, 5), (0x1000, 6), (0x1000, 7), (0x9000, 0), (0x9000, 99)]);
        assert_eq!(pages(&sweep.clean), [(0x1000, 5), (0x1000, 6), (0x1000, 7)]);
        assert_eq!(sweep.drop, []);
        // The hand goes on behind the last victim.
        assert_eq!(pages(&clock.sweep(&mut regions, 1).clean), [(0x9000, 0)]);
    }

    #[test]
    fn a_store_after_the_first_visit_saves_a_page() {
        let mut regions = regions(&[(0, &[1, 2])]);
        let mut clock = Clock::default();
        assert_eq!(pages(&clock.sweep(&mut regions, 1).clean), [(0, 1)]);
        regions.get_mut(&0).unwrap().0.update(2, |page| page.store_fault());
        let sweep = clock.sweep(&mut regions, 1);
        assert_eq!((pages(&sweep.clean), pages(&sweep.protect)), (vec![(0, 1)], vec![(0, 2)]));
    }

    #[test]
    fn a_sweep_ends_where_there_are_too_few_victims() {
        assert_eq!(Clock::default().sweep(&mut regions(&[]), 5), Sweep::default());
        let mut regions = regions(&[(0, &[1, 2, 3])]);
        assert_eq!(Clock::default().sweep(&mut regions, 50).clean.len(), 3);
    }

    #[test]
    fn consecutive_pages_of_a_region_are_one_run() {
        let list = |pages: &[(usize, usize)]| -> Vec<PageId> {
            pages.iter().map(|(region, page)| PageId { region: *region, page: *page }).collect()
        };
        assert_eq!(runs(&[]).count(), 0);
        let pages = list(&[(0, 3), (0, 4), (0, 6), (9, 7), (9, 8), (9, 2)]);
        assert_eq!(runs(&pages).collect::<Vec<_>>(), [(0, 3..5), (0, 6..7), (9, 7..9), (9, 2..3)]);
    }
}
