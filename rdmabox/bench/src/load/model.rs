//! The modelled card of a run: its constants and the dilation of time.

use std::{sync::Arc, time::Duration};

use rdmabox::provider::model::{CardParameters, ModelledCard, Timing};

use super::Load;
use crate::{Error, Result};

/// Longest pause of a load in this machine's time: a thread does not end before its pause.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// A card on whose model the requests run.
#[derive(Clone, Debug)]
pub struct Model {
    parameters: CardParameters,
    dilation: u32,
}

impl Model {
    /// Reads the card of `--device model:CARD`. Returns `None` for the name of a device.
    pub fn of_device(device: &str, dilation: u32) -> Result<Option<Model>> {
        let Some(card) = device.strip_prefix("model:") else { return Ok(None) };
        let parameters =
            CardParameters::open(card).map_err(|e| Error::usage(format!("--device {device}: {e}")))?;
        Ok(Some(Model { parameters, dilation }))
    }

    /// Returns an idle card.
    pub fn card(&self) -> Arc<ModelledCard> {
        let timing = if self.is_timed() { Timing::Dilated(self.dilation) } else { Timing::Counts };
        ModelledCard::new(self.parameters.clone(), timing)
    }

    /// Returns the constants.
    pub fn parameters(&self) -> &CardParameters {
        &self.parameters
    }

    /// Returns false if the card only counts (dilation 0).
    pub fn is_timed(&self) -> bool {
        self.dilation > 0
    }

    /// Returns the nanoseconds of the host per nanosecond of the model; 1 if the card only counts.
    pub fn dilation(&self) -> u32 {
        self.dilation.max(1)
    }

    /// Returns the card and how it treats time, in words.
    pub fn summary(&self) -> String {
        match self.dilation {
            0 => format!("{}, counts only: times and rates are this machine's", self.parameters.name()),
            dilation => format!("{}, dilation {dilation}", self.parameters.name()),
        }
    }

    /// Refuses a load with pauses that are too long on this machine.
    pub fn check(&self, load: &Load) -> Result<()> {
        let gap = load.burst.map(|burst| Duration::from_micros(burst.gap_us));
        for (option, pause) in [("--think", load.think), ("--gap", gap)] {
            let Some(pause) = pause else { continue };
            let here = self.dilated(pause);
            if here > MAX_PAUSE {
                let dilation = self.dilation();
                return Err(Error::usage(format!(
                    "{option} {pause:?} takes {here:?} of this machine with --dilation {dilation}: at most {MAX_PAUSE:?}"
                )));
            }
        }
        Ok(())
    }

    /// Returns the host's time for a time of the model.
    pub fn dilated(&self, time: Duration) -> Duration {
        time.saturating_mul(self.dilation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_the_prefix_is_no_model() {
        assert!(Model::of_device("mlx4_0", 200).unwrap().is_none());
        let model = Model::of_device("model:cx3", 200).unwrap().unwrap();
        assert_eq!(model.parameters().name(), "cx3");
        assert_eq!(model.dilated(Duration::from_micros(10)), Duration::from_millis(2));
        let counting = Model::of_device("model:cx3", 0).unwrap().unwrap();
        assert_eq!((counting.card().timing(), counting.dilation()), (Timing::Counts, 1));
        assert!(counting.summary().contains("counts only"));
        let err = Model::of_device("model:cx9", 200).unwrap_err();
        assert_eq!(err.exit_code(), 2);
        assert!(err.to_string().starts_with("--device model:cx9: cannot read cx9: "), "{err}");
    }
}
