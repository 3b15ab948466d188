//! The systems of Fig. 12, as profiles of switches. No I/O, no locks, no clock.
//!
//! Fig. 12 of the RDMAbox paper compares a file system on RDMAbox with file systems on other
//! runtimes. Here all of them are rfs, and a profile sets the switches that the paper describes for
//! a system. [`Profile::stated`] names the section of the paper. Where the paper is silent,
//! [`Profile::assumed`] says which value was taken and why.
//!
//! A profile has no two-sided transfers, although the paper describes them for Accelio and
//! GlusterFS: rfs moves file data by one-sided requests only.

use std::ops::RangeInclusive;

/// The switches of one system, beside the paper's result for it.
#[derive(Debug)]
pub(super) struct Profile {
    /// Name in tables.
    pub(super) name: &'static str,
    /// The system of the paper.
    pub(super) system: &'static str,
    /// The switches.
    pub(super) switches: Settings,
    /// The paper's statements behind the switches, with their sections.
    pub(super) stated: &'static str,
    /// Switches that the paper does not state.
    pub(super) assumed: &'static str,
    /// The paper's gains of RDMAbox over this system; `None` for RDMAbox itself.
    pub(super) gains: Option<Gains>,
}

/// Values of the options of `rfs-fuse`.
#[derive(Debug)]
pub(super) struct Settings {
    /// `--batch`.
    pub(super) batch: &'static str,
    /// `--pre-mr-threshold`.
    pub(super) pre_mr_threshold: &'static str,
    /// `--polling`.
    pub(super) polling: &'static str,
    /// `--queue-pairs`.
    pub(super) queue_pairs: &'static str,
    /// `--window`.
    pub(super) window: &'static str,
}

/// The paper's gains in bandwidth over record sizes, as factors (Section VI-B).
#[derive(Debug)]
pub(super) struct Gains {
    /// Gain of writes.
    pub(super) write: RangeInclusive<f64>,
    /// Gain of reads.
    pub(super) read: RangeInclusive<f64>,
}

/// Threshold that registers every buffer (dynMR).
const DYN: &str = "0";
/// Threshold that copies every request (preMR). FUSE requests have at most 128 KiB.
const PRE: &str = "1m";
/// A window that no load here fills: no admission control.
const UNLIMITED: &str = "1g";

/// The name of RDMAbox's own profile.
pub(super) const RDMABOX: &str = "rdmabox";

/// All profiles, RDMAbox first.
pub(super) const PROFILES: [Profile; 7] = [
    Profile {
        name: RDMABOX,
        system: "RDMAbox",
        switches: Settings {
            batch: "hybrid",
            pre_mr_threshold: "auto",
            polling: "adaptive",
            queue_pairs: "4",
            window: "7m",
        },
        stated: "VI-B: merge-and-chain, preMR or dynMR by a threshold, adaptive polling, admission control, best \
                 with 4 queue pairs. V-A: a window of about 7 MB",
        assumed: "nothing",
        gains: None,
    },
    Profile {
        name: "verb",
        system: "plain verbs",
        switches: Settings {
            batch: "single",
            pre_mr_threshold: PRE,
            polling: "busy",
            queue_pairs: "1",
            window: UNLIMITED,
        },
        stated: "VI-B: single I/O (all but Accelio), no admission control. III-A: one queue pair (Fig. 1)",
        assumed: "preMR and busy polling, the fastest choice of a simple program for small requests",
        gains: Some(Gains { write: 1.5..=2.8, read: 2.4..=4.8 }),
    },
    Profile {
        name: "accelio",
        system: "Accelio",
        switches: Settings {
            batch: "doorbell",
            pre_mr_threshold: DYN,
            polling: "event-batch",
            queue_pairs: "4",
            window: UNLIMITED,
        },
        stated: "VI-B and VII: doorbell batching with dynMR, event-batch polling, several queue pairs. VI-B: no \
                 admission control",
        assumed: "4 queue pairs, as RDMAbox",
        gains: Some(Gains { write: 1.1..=1.6, read: 1.2..=2.6 }),
    },
    Profile {
        name: "ucx",
        system: "UCX",
        switches: Settings {
            batch: "single",
            pre_mr_threshold: "8k",
            polling: "busy",
            queue_pairs: "1",
            window: UNLIMITED,
        },
        stated: "VI-B: single I/O, no admission control. VII: made for portability rather than optimization",
        assumed: "one queue pair; copies up to 8 KiB, registration above it, and progress by polling, as UCX does by \
                  default",
        gains: Some(Gains { write: 2.1..=3.1, read: 2.7..=5.6 }),
    },
    Profile {
        name: "libfabric",
        system: "libfabric",
        switches: Settings {
            batch: "single",
            pre_mr_threshold: "16k",
            polling: "event",
            queue_pairs: "1",
            window: UNLIMITED,
        },
        stated: "VI-B: single I/O, no admission control. VII: made for portability rather than optimization",
        assumed: "one queue pair; copies up to 16 KiB, as its provider for messages does by default; waits by events",
        gains: Some(Gains { write: 2.2..=3.7, read: 2.8..=5.9 }),
    },
    Profile {
        name: "octopus",
        system: "Octopus",
        switches: Settings {
            batch: "single",
            pre_mr_threshold: PRE,
            polling: "busy",
            queue_pairs: "4",
            window: UNLIMITED,
        },
        stated: "VII: single I/O with a pool of preMR, busy polling, several queue pairs, one-sided. VI-B: no \
                 admission control",
        assumed: "4 queue pairs, as RDMAbox",
        gains: Some(Gains { write: 1.4..=1.7, read: 1.5..=2.0 }),
    },
    Profile {
        name: "gluster",
        system: "GlusterFS",
        switches: Settings {
            batch: "single",
            pre_mr_threshold: DYN,
            polling: "event-batch",
            queue_pairs: "1",
            window: UNLIMITED,
        },
        stated: "VII: single I/O with dynMR, batch polling. VI-B: no admission control",
        assumed: "one queue pair",
        gains: Some(Gains { write: 1.4..=2.2, read: 1.6..=2.6 }),
    },
];

impl Settings {
    /// Returns the options of `rfs-fuse` with their values.
    pub(super) fn options(&self) -> [(&'static str, &'static str); 5] {
        [
            ("--batch", self.batch),
            ("--pre-mr-threshold", self.pre_mr_threshold),
            ("--polling", self.polling),
            ("--queue-pairs", self.queue_pairs),
            ("--window", self.window),
        ]
    }

    /// Returns a short description.
    pub(super) fn describe(&self) -> String {
        let memory = match self.pre_mr_threshold {
            DYN => "dynMR".to_owned(),
            PRE => "preMR".to_owned(),
            "auto" => "preMR or dynMR by auto".to_owned(),
            size => format!("preMR to {size}, then dynMR"),
        };
        let pairs = if self.queue_pairs == "1" { "QP" } else { "QPs" };
        let window = match self.window {
            UNLIMITED => "no window".to_owned(),
            window => format!("window {window}"),
        };
        let (batch, polling, number) = (self.batch, self.polling, self.queue_pairs);
        format!("{batch}, {memory}, {polling}, {number} {pairs}, {window}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a profile that is a copy of another, and one that leaves a switch at its default.
    #[test]
    fn each_profile_sets_every_switch_in_its_own_way() {
        for (n, profile) in PROFILES.iter().enumerate() {
            assert!(profile.switches.options().iter().all(|(_, value)| !value.is_empty()), "{profile:?}");
            let same = |other: &&Profile| other.switches.options() == profile.switches.options();
            assert_eq!(PROFILES.iter().position(|other| same(&other)), Some(n), "{profile:?}");
        }
    }

    /// Catches gains that are swapped: the paper's summary has 3.7 for writes and 5.9 for reads.
    #[test]
    fn the_largest_gains_are_those_of_the_papers_summary() {
        let gains = || PROFILES.iter().filter_map(|profile| profile.gains.as_ref());
        assert_eq!(gains().map(|gains| *gains.write.end()).fold(0.0, f64::max), 3.7);
        assert_eq!(gains().map(|gains| *gains.read.end()).fold(0.0, f64::max), 5.9);
        assert_eq!(gains().count(), PROFILES.len() - 1);
    }
}
