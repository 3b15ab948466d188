//! PageRank in whole numbers, so that the order of additions does not change the result.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::csr::Csr;

/// The sum of all ranks at the start, about.
pub const SCALE: u64 = 1 << 56;
/// Damping in percent.
const DAMPING: u64 = 85;

/// Returns the rank of each vertex at the start.
pub(super) fn first(vertices: u32) -> u64 {
    SCALE / u64::from(vertices.max(1))
}

/// Returns the message of a vertex along each of its edges.
pub(super) fn message(rank: u64, degree: u64) -> u64 {
    rank / degree.max(1)
}

/// Returns the next rank of a vertex with this sum of messages.
pub(super) fn next(vertices: u32, sum: u64) -> u64 {
    let share = u128::from(sum) * u128::from(DAMPING) / 100;
    first(vertices) * (100 - DAMPING) / 100 + share as u64
}

/// Computes PageRank in local memory, with one thread.
pub fn page_rank_locally(graph: &Csr, supersteps: u32) -> Vec<u64> {
    let vertices = graph.vertices();
    let mut ranks = vec![first(vertices); vertices as usize];
    for _ in 0..supersteps {
        let mut sums = vec![0_u64; vertices as usize];
        for vertex in 0..vertices {
            let neighbours = graph.neighbours(vertex);
            let message = message(ranks[vertex as usize], neighbours.len() as u64);
            neighbours.iter().for_each(|target| sums[*target as usize] += message);
        }
        ranks.iter_mut().zip(sums).for_each(|(rank, sum)| *rank = next(vertices, sum));
    }
    ranks
}
