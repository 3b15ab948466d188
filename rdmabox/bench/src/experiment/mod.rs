//! The experiments of the RDMAbox paper, as matrices with a comment. The comment summarizes the
//! result of the paper and the result of this run. The paper used a ConnectX-3; these runs use a
//! software provider, an RDMA device, or a modelled card (`card`, with its results in `rows`).
//!
//! Most experiments use TCP by default: a post is an expensive system call there, as a doorbell is
//! expensive on a card, and completions arrive later. With mapped memory the poster executes the
//! request, so there is little to batch or to wait for.

mod card;
mod definition;
mod findings;
pub mod options;
mod paper;
mod rows;

use crate::{Error, Result};
pub use definition::Experiment;
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
    use crate::{load::model::Model, sweep::settings::Settings};

    #[test]
    fn every_experiment_can_be_run() {
        let model = Model::of_device("model:cx3", 1).unwrap().unwrap();
        for experiment in ALL {
            for quick in [false, true] {
                for model in [None, Some(&model)] {
                    let matrix = experiment.matrix(&Settings::default(), quick, &[], model).unwrap();
                    assert!(matrix.cases.len() > 1, "{}", experiment.name);
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
        let matrix = fig6.matrix(&given("size", "16k"), true, &[], None).unwrap();
        assert!(matrix.cases.iter().all(|case| case.load.size == 16384 && case.load.threads == 8));
        let err = fig6.matrix(&given("mode", "merge"), true, &[], None).unwrap_err();
        assert_eq!(err.to_string(), "fig6 varies mode itself: leave --mode out");
        let fig2 = find("fig2").unwrap();
        assert!(fig2.matrix(&given("gap", "1s"), true, &[], None).is_err());
        let err = find("table1").unwrap().matrix(&given("duration", "1s"), true, &[], None).unwrap_err();
        assert!(err.to_string().contains("--ops"), "{err}");
        assert!(find("fig3").unwrap_err().to_string().contains("fig1, fig2, fig5"));
    }
}
