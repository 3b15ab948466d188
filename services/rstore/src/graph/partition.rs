//! Partitions of equal weight: ranges of vertices, weighed with their edges.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::ops::Range;

/// Weight of a vertex against that of an edge: the cost of its access.
const VERTEX_WEIGHT: u64 = 4;

/// Divides vertices, given by the number of their edges, into `count` ranges of about equal weight.
pub(super) fn partition(degrees: &[u64], count: usize) -> Vec<Range<u32>> {
    let total: u64 = degrees.iter().map(|degree| degree + VERTEX_WEIGHT).sum();
    let mut ranges = Vec::with_capacity(count);
    let (mut start, mut weight, mut vertex) = (0, 0, 0);
    for part in 1..=count as u64 {
        let limit = total * part / count as u64;
        while vertex < degrees.len() && (weight < limit || part == count as u64) {
            weight += degrees[vertex] + VERTEX_WEIGHT;
            vertex += 1;
        }
        ranges.push(start..vertex as u32);
        start = vertex as u32;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_have_all_vertices_and_about_equal_weights(
            degrees in proptest::collection::vec(0..50_u64, 0..200),
            count in 1..9_usize,
        ) {
            let ranges = partition(&degrees, count);
            prop_assert_eq!(ranges.len(), count);
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[count - 1].end as usize, degrees.len());
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let weight = |range: &Range<u32>| -> u64 {
                degrees[range.start as usize..range.end as usize].iter().map(|d| d + VERTEX_WEIGHT).sum()
            };
            let total: u64 = ranges.iter().map(weight).sum();
            for range in &ranges {
                prop_assert!(weight(range) <= total / count as u64 + 50 + VERTEX_WEIGHT + 1);
            }
        }
    }
}
