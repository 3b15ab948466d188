//! The parity pages of a stripe, and the recovery of its pages.
//!
//! A stripe of one page has copies for parity pages. Larger stripes have a Reed-Solomon code.
//!
//! # Concurrency
//! Pure functions.

use super::{PAGE, layout::Layout};

/// Bytes of a page, outside of paged memory.
pub(crate) type PageBytes = Box<[u8]>;

/// A page of zeros.
pub(crate) static ZEROS: [u8; PAGE] = [0; PAGE];

/// Computes the parity pages of a stripe. `data` has all of its pages.
pub(crate) fn encode(layout: Layout, data: &[&[u8]]) -> Vec<PageBytes> {
    debug_assert_eq!(data.len(), layout.data());
    if layout.parity() == 0 {
        return Vec::new();
    }
    if let [page] = data {
        return vec![PageBytes::from(*page); layout.parity()];
    }
    let parity = reed_solomon_simd::encode(layout.data(), layout.parity(), data);
    let parity = parity.expect("a layout has a code, and pages have equal lengths");
    parity.into_iter().map(Vec::into_boxed_slice).collect()
}

/// Computes the page at `position` of a stripe from other members of the stripe, which `known`
/// lists by their numbers. `None` if they are too few.
pub(crate) fn decode(layout: Layout, position: usize, known: &[(usize, &[u8])]) -> Option<PageBytes> {
    let (data, parity) = (layout.data(), layout.parity());
    if let Some((_, page)) = known.iter().find(|(member, _)| *member == position || data == 1) {
        return Some(PageBytes::from(*page));
    }
    let originals = known.iter().filter(|(member, _)| *member < data).copied();
    let codes = known.iter().filter(|(member, _)| *member >= data);
    let codes = codes.map(|(member, page)| (member - data, *page));
    let mut restored = reed_solomon_simd::decode(data, parity, originals, codes).ok()?;
    restored.remove(&position).map(Vec::into_boxed_slice)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::redundancy::Redundancy;

    fn page(rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        rng.fill(&mut page);
        page
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn any_members_that_are_enough_give_each_page(
            data in 1..=16_usize,
            parity in 1..=4_usize,
            seed in any::<u64>(),
        ) {
            let redundancy = match data {
                1 => Redundancy::Mirror,
                _ => Redundancy::Coded { data, parity },
            };
            let layout = Layout::new(redundancy);
            let mut rng = fastrand::Rng::with_seed(seed);
            let pages: Vec<Vec<u8>> = (0..data).map(|_| page(&mut rng)).collect();
            let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
            let codes = encode(layout, &pages);
            prop_assert_eq!(codes.len(), layout.parity());
            let mut members: Vec<(usize, &[u8])> =
                pages.iter().copied().chain(codes.iter().map(|code| &**code)).enumerate().collect();
            rng.shuffle(&mut members);
            members.truncate(data);
            for (position, page) in pages.iter().enumerate() {
                let decoded = decode(layout, position, &members);
                prop_assert_eq!(decoded.as_deref(), Some(*page), "{} of {:?}", position, members.len());
            }
            if data > 1 {
                members.pop();
                let is_known = |position: &usize| members.iter().any(|(member, _)| member == position);
                if let Some(position) = (0..data).find(|position| !is_known(position)) {
                    prop_assert_eq!(decode(layout, position, &members), None);
                }
            }
        }
    }
}
