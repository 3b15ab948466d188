//! R-MAT graphs: the recursive generator of Graph500, with its parameters.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// Percentages of the upper left, upper right and lower left quarter.
const QUARTERS: [u32; 3] = [57, 19, 19];

/// Returns `edges_per_vertex << scale` directed edges between `1 << scale` vertices. Equal seeds
/// give equal graphs. Edges may be equal, and a vertex may have an edge to itself.
pub fn rmat(scale: u32, edges_per_vertex: u64, seed: u64) -> Vec<(u32, u32)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut edge = || {
        let (mut from, mut to) = (0, 0);
        for _ in 0..scale {
            let at = random.u32(0..100);
            let right = (QUARTERS[0]..QUARTERS[0] + QUARTERS[1]).contains(&at);
            let lower = at >= QUARTERS[0] + QUARTERS[1];
            let corner = at >= QUARTERS.iter().sum();
            from = from << 1 | u32::from(lower);
            to = to << 1 | u32::from(right || corner);
        }
        (from, to)
    };
    (0..edges_per_vertex << scale).map(|_| edge()).collect()
}
