//! The points of each figure.
//!
//! A figure is a list of loads for each system. The x axis is the number of client threads (Fig. 4)
//! or percentiles (Fig. 5). In Fig. 6, 9 and 10 it is the share of gets, and in Fig. 7 and 8 the
//! length of values.
//!
//! # Concurrency
//! Plain values.

use clap::ValueEnum;
use serde::Serialize;

use crate::{
    load::{Lengths, Load, Popularity},
    peer::System,
};

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Figure {
    /// Requests per second over client threads: values of 32 bytes, 95 % gets
    Fig4,
    /// Percentiles of the latency, with the same load
    Fig5,
    /// Requests per second over the share of gets
    Fig6,
    /// Requests per second over the length of values; a fetch has room for 32 bytes
    Fig7,
    /// As fig7, and fetches have room for 128, 512 and 1024 bytes
    Fig8,
    /// As fig6, with popular keys (Zipf 0.99)
    Fig9,
    /// As fig6, with short texts of 1 to 899 bytes; a fetch has room for 512 bytes
    Fig10,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Point {
    pub(crate) figure: Figure,
    pub(crate) system: System,
    /// Place on the x axis.
    pub(crate) x: String,
    pub(crate) load: Load,
    pub(crate) threads: usize,
    /// Bytes of the first READ of a reply.
    pub(crate) fetch_size: usize,
    /// Longest value that fits this READ.
    pub(crate) fetched_value: usize,
}

/// Returns the fetch size that has room for a value of this length. The reply has one byte more, is
/// padded to 8 bytes, and has 24 bytes of framing.
pub(crate) fn fetch_size_for(value: usize) -> usize {
    24 + (value + 1).next_multiple_of(8)
}

const GET_SHARES: [u8; 3] = [5, 50, 95];
const LENGTHS: [usize; 6] = [32, 64, 128, 256, 512, 1024];

/// Returns the load of the paper: 95 % gets of values of 32 bytes, uniform.
fn base(keys: u64) -> Load {
    Load { get_percent: 95, lengths: Lengths::Fixed(32), popularity: Popularity::Uniform, keys }
}

impl Figure {
    /// Returns the title of the figure.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Figure::Fig4 => "Fig. 4: client threads, 95 % gets, values of 32 bytes",
            Figure::Fig5 => "Fig. 5: latency, 95 % gets, values of 32 bytes",
            Figure::Fig6 => "Fig. 6: share of gets, values of 32 bytes",
            Figure::Fig7 => "Fig. 7: length of values, 95 % gets, a fetch of 32 bytes",
            Figure::Fig8 => "Fig. 8: length of values, 95 % gets, longer fetches",
            Figure::Fig9 => "Fig. 9: share of gets, Zipf 0.99, values of 32 bytes",
            Figure::Fig10 => "Fig. 10: share of gets, short texts, a fetch of 512 bytes",
        }
    }

    /// Returns the points for these systems. `threads` are those of Fig. 4, and `at` those of the
    /// other figures.
    pub(crate) fn points(self, systems: &[System], threads: &[usize], at: usize, keys: u64) -> Vec<Point> {
        let mut points = Vec::new();
        let base = base(keys);
        let mut add = |system: System, x: String, load: Load, threads: usize, fetched_value: usize| {
            let fetch_size = fetch_size_for(fetched_value);
            points.push(Point { figure: self, system, x, load, threads, fetch_size, fetched_value });
        };
        match self {
            Figure::Fig4 => threads.iter().for_each(|count| {
                systems.iter().for_each(|system| add(*system, count.to_string(), base, *count, 32));
            }),
            Figure::Fig5 => systems.iter().for_each(|system| add(*system, String::new(), base, at, 32)),
            Figure::Fig6 | Figure::Fig9 | Figure::Fig10 => GET_SHARES.iter().for_each(|share| {
                let (lengths, fetched) = match self {
                    Figure::Fig10 => (Lengths::Texts, 512),
                    _ => (base.lengths, 32),
                };
                let popularity = if self == Figure::Fig9 { Popularity::Zipf } else { Popularity::Uniform };
                let load = Load { get_percent: *share, lengths, popularity, keys };
                systems.iter().for_each(|system| add(*system, format!("{share} %"), load, at, fetched));
            }),
            Figure::Fig7 => LENGTHS.iter().for_each(|len| {
                let load = Load { lengths: Lengths::Fixed(*len), ..base };
                systems.iter().for_each(|system| add(*system, len.to_string(), load, at, 32));
            }),
            Figure::Fig8 => LENGTHS.iter().for_each(|len| {
                let load = Load { lengths: Lengths::Fixed(*len), ..base };
                [32, 128, 512, 1024]
                    .iter()
                    .for_each(|fetched| add(System::Jakiro, len.to_string(), load, at, *fetched));
            }),
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_points_for_each_system() {
        let systems = [System::Jakiro, System::ServerReply];
        for figure in Figure::value_variants() {
            let points = figure.points(&systems, &[1, 2], 4, 100);
            let of = |system| points.iter().filter(|point| point.system == system).count();
            let wanted = if *figure == Figure::Fig8 { 0 } else { of(System::Jakiro) };
            assert_eq!(of(System::ServerReply), wanted, "{figure:?}");
            assert!(of(System::Jakiro) > 0);
        }
        assert_eq!(fetch_size_for(32), 64);
    }
}
