//! Groups of consecutive pages.
//!
//! # Concurrency
//! Pure functions.

use std::ops::Range;

use super::clock::PageId;

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

#[cfg(test)]
mod tests {
    use super::*;

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
