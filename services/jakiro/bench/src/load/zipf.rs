//! Ranks by Zipf's law with the exponent 0.99, in constant time (Gray et al., SIGMOD 1994).
//!
//! # Concurrency
//! Plain values.

const EXPONENT: f64 = 0.99;

/// The constants of a number of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zipf {
    ranks: u64,
    /// Sum of all weights.
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Prepares `ranks` ranks, at least 2. Takes time in proportion to them.
    pub(super) fn new(ranks: u64) -> Zipf {
        let zeta = |ranks: u64| (1..=ranks).map(|rank| (rank as f64).powf(-EXPONENT)).sum::<f64>();
        let (all, two) = (zeta(ranks), zeta(2));
        let eta = (1.0 - (2.0 / ranks as f64).powf(1.0 - EXPONENT)) / (1.0 - two / all);
        Zipf { ranks, zeta: all, alpha: 1.0 / (1.0 - EXPONENT), eta }
    }

    /// Returns the rank of a uniform number from 0 to 1. Rank 0 is the most frequent.
    pub(super) fn rank(&self, uniform: f64) -> u64 {
        let weight = uniform * self.zeta;
        if weight < 1.0 {
            return 0;
        }
        if weight < 1.0 + 0.5_f64.powf(EXPONENT) {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.ranks - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        let (zipf, mut rng) = (Zipf::new(1000), fastrand::Rng::with_seed(3));
        let mut counts = vec![0_u32; 1000];
        (0..1_000_000).for_each(|_| counts[zipf.rank(rng.f64()) as usize] += 1);
        for rank in [1_usize, 2, 10, 100] {
            let wanted = f64::from(counts[0]) / (rank as f64 + 1.0).powf(EXPONENT);
            let found = f64::from(counts[rank]);
            assert!((0.7..1.4).contains(&(found / wanted)), "rank {rank}: {found}, not {wanted}");
        }
        assert_eq!(counts.iter().sum::<u32>(), 1_000_000);
    }
}
