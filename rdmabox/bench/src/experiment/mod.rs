//! The experiments of the RDMAbox paper, as matrices with a comment. The comment summarizes the
//! result of the paper and the result of this run. The paper used a ConnectX-3; these runs use a
//! software provider, an RDMA device, or a modelled card (`card`, with its results in `rows`).
//!
//! Most experiments use TCP by default. A post over TCP is an expensive system call, as a doorbell
//! is expensive on a card, and completions arrive later. With mapped memory the poster executes the
//! request, so there is little to batch or to wait for.

mod card;
mod definition;
mod exceptions;
mod findings;
pub mod options;
mod paper;
mod rows;

use crate::{Error, Result};
pub use definition::{Experiment, Loads};
pub use exceptions::Exceptions;
pub use paper::ALL;

/// Returns the experiment with the given name.
pub fn find(name: &str) -> Result<Experiment> {
    ALL.into_iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|experiment| experiment.name).collect();
        Error::usage(format!("there is no experiment {name:?}; there are {}, and list", names.join(", ")))
    })
}

/// Returns a list of all experiments, one per line.
pub fn list() -> String {
    ALL.iter().map(|experiment| format!("{:8} {}\n", experiment.name, experiment.what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmabox::ProviderKind;

    use crate::{
        report::tests::example,
        sweep::{matrix::Case, settings::Settings},
    };

    #[test]
    fn every_experiment_can_be_run() {
        for experiment in ALL {
            for quick in [false, true] {
                for loads in [Loads::OfProvider, Loads::OfCard, Loads::OfCardOver(ProviderKind::Tcp)] {
                    let matrix = experiment.matrix(&Settings::default(), quick, &[], loads).unwrap();
                    assert!(matrix.cases.len() > 1, "{}", experiment.name);
                    let is_over_tcp =
                        |case: &Case| case.load.provider == ProviderKind::Tcp && case.load.think.is_none();
                    let over = matches!(loads, Loads::OfCardOver(_));
                    assert!(!over || matrix.cases.iter().all(is_over_tcp), "{}", experiment.name);
                    assert!(matrix.peak_memory(true) < 2 << 30, "{}", experiment.name);
                }
            }
            assert!(list().contains(experiment.name));
        }
    }

    #[test]
    fn the_command_line_overrides_an_experiment_except_its_dimensions() {
        let fig6 = find("fig6").unwrap();
        let given = |name, value| Settings::from_pairs([(name, value)]);
        let matrix = fig6.matrix(&given("size", "16k"), true, &[], Loads::OfProvider).unwrap();
        assert!(matrix.cases.iter().all(|case| case.load.size == 16384 && case.load.threads == 8));
        let err = fig6.matrix(&given("mode", "merge"), true, &[], Loads::OfProvider).unwrap_err();
        assert_eq!(err.to_string(), "fig6 varies mode itself: leave --mode out");
        let fig2 = find("fig2").unwrap();
        assert!(fig2.matrix(&given("gap", "1s"), true, &[], Loads::OfProvider).is_err());
        let err = find("table1")
            .unwrap()
            .matrix(&given("duration", "1s"), true, &[], Loads::OfProvider)
            .unwrap_err();
        assert!(err.to_string().contains("--ops"), "{err}");
        assert!(find("fig3").unwrap_err().to_string().contains("fig1, fig2, fig5"));
    }

    /// Catches a length that the command line cannot change, and lengths of the card over TCP.
    #[test]
    fn the_command_line_sets_the_length_of_every_load() {
        let lengths = |given: &Settings, quick, loads| {
            let matrix = find("fig6").unwrap().matrix(given, quick, &[], loads).unwrap();
            let of = |case: &Case| (format!("{:?}", case.load.warmup), format!("{:?}", case.load.extent));
            matrix.cases.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
        };
        let given = Settings::from_pairs([("duration", "1s"), ("warmup", "1s")]);
        assert!(lengths(&Settings::default(), false, Loads::OfCard) > 1);
        assert_eq!(lengths(&given, false, Loads::OfCard), 1);
        assert_eq!(lengths(&Settings::default(), true, Loads::OfCard), 1);
        assert_eq!(lengths(&Settings::default(), false, Loads::OfCardOver(ProviderKind::Tcp)), 1);
    }

    #[test]
    fn values_of_a_provider_stand_beside_those_of_the_card() {
        let fig1 = find("fig1").unwrap();
        let mut report = example();
        report.model = Some("a card".into());
        report.results.retain(|entry| entry.coordinates[1] == "single");
        report.results.iter_mut().for_each(|entry| entry.coordinates.truncate(1));
        fig1.comment(&mut report);
        let mut other = report.clone();
        other.results.truncate(1);
        fig1.add_beside(&mut report, &other, ProviderKind::Tcp);
        let about = report.experiment.unwrap();
        assert_eq!(about.beside.as_ref().unwrap().name, "tcp");
        let values: Vec<_> =
            about.rows.iter().map(|row| (row.model.as_str(), row.beside.as_ref().unwrap())).collect();
        assert_eq!((values[0].0, values[0].1.value.as_str()), ("2", "1"));
    }
}
