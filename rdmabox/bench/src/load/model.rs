//! The modelled card of a run: its constants and the dilation of time.

use std::{sync::Arc, time::Duration};

use rdmabox::provider::model::{CardParameters, ModelledCard, Timing};

use crate::{Error, Result};

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
        ModelledCard::new(self.parameters.clone(), Timing::Dilated(self.dilation))
    }

    /// Returns the constants.
    pub fn parameters(&self) -> &CardParameters {
        &self.parameters
    }

    /// Returns the nanoseconds of the host per nanosecond of the model.
    pub fn dilation(&self) -> u32 {
        self.dilation
    }

    /// Returns the host's time for a time of the model.
    pub fn dilated(&self, time: Duration) -> Duration {
        time.saturating_mul(self.dilation)
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
        let err = Model::of_device("model:cx9", 200).unwrap_err();
        assert_eq!(err.exit_code(), 2);
        assert!(err.to_string().starts_with("--device model:cx9: cannot read cx9: "), "{err}");
    }
}
