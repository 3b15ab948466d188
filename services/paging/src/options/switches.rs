//! Switches of the runtime, as text such as `batch=single,queue-pairs=1`.
//!
//! The launcher hands them to the preload library in this form. A switch that is not named keeps
//! the value of the session options.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, str::FromStr};

#[cfg(feature = "model")]
use rdmabox::provider::model::{CardParameters, ModelledCard, Timing};
use rdmabox::{BatchMode, PollingMode, PreMrThreshold, ProviderKind, SessionOptions, admission::WindowScope};

/// Names of the switches, for messages.
const NAMES: &str = "provider, batch, queue-pairs, window, window-scope, pre-mr-threshold, polling and card";

/// A modelled card, as `cx3@20`: the name or file of its constants, and the dilation of its time.
#[cfg(feature = "model")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSwitch {
    text: String,
    parameters: CardParameters,
    dilation: u32,
}

#[cfg(feature = "model")]
impl FromStr for CardSwitch {
    type Err = String;

    fn from_str(text: &str) -> Result<CardSwitch, String> {
        let (card, dilation) = text.rsplit_once('@').unwrap_or((text, "200"));
        let dilation = dilation.parse().ok().filter(|dilation| *dilation > 0).ok_or_else(|| {
            format!("{dilation:?} is no dilation: after the @ stands a number from 1 on, as in cx3@20")
        })?;
        let parameters = CardParameters::open(card).map_err(|error| error.to_string())?;
        Ok(CardSwitch { text: text.into(), parameters, dilation })
    }
}

#[cfg(feature = "model")]
impl fmt::Display for CardSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Switches of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Switches {
    /// The required provider.
    pub provider: Option<ProviderKind>,
    /// How requests are combined.
    pub batch: Option<BatchMode>,
    /// Number of data queue pairs.
    pub queue_pairs: Option<usize>,
    /// Maximum bytes in flight.
    pub window: Option<u64>,
    /// Whose bytes in flight count for the window.
    pub window_scope: Option<WindowScope>,
    /// Maximum bytes that are copied through registered memory.
    pub pre_mr_threshold: Option<PreMrThreshold>,
    /// How threads wait for completions.
    pub polling: Option<PollingMode>,
    /// A modelled card that completes the requests.
    #[cfg(feature = "model")]
    pub card: Option<CardSwitch>,
}

impl Switches {
    /// Sets the named switches.
    pub fn apply(&self, options: &mut SessionOptions) {
        options.provider = self.provider.or(options.provider);
        options.batch = self.batch.unwrap_or(options.batch);
        options.queue_pairs = self.queue_pairs.unwrap_or(options.queue_pairs);
        options.window_bytes = self.window.unwrap_or(options.window_bytes);
        options.window_scope = self.window_scope.unwrap_or(options.window_scope);
        options.pre_mr_threshold = self.pre_mr_threshold.unwrap_or(options.pre_mr_threshold);
        options.polling = self.polling.unwrap_or(options.polling);
        #[cfg(feature = "model")]
        if let Some(card) = &self.card {
            let timing = Timing::Dilated(card.dilation);
            options.card = Some(ModelledCard::new(card.parameters.clone(), timing));
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParseSwitchesError> {
        let wrong = |error: &dyn fmt::Display| ParseSwitchesError(format!("{name}: {error}"));
        match name {
            "provider" => self.provider = Some(value.parse().map_err(|e| wrong(&e))?),
            "batch" => self.batch = Some(value.parse().map_err(|e| wrong(&e))?),
            "queue-pairs" => self.queue_pairs = Some(value.parse().map_err(|e| wrong(&e))?),
            "window" => self.window = Some(byte_size::parse_nonzero(value).map_err(|e| wrong(&e))?),
            "window-scope" => self.window_scope = Some(value.parse().map_err(|e| wrong(&e))?),
            "pre-mr-threshold" => self.pre_mr_threshold = Some(value.parse().map_err(|e| wrong(&e))?),
            "polling" => self.polling = Some(value.parse().map_err(|e| wrong(&e))?),
            #[cfg(feature = "model")]
            "card" => self.card = Some(value.parse().map_err(|e: String| wrong(&e))?),
            #[cfg(not(feature = "model"))]
            "card" => return Err(wrong(&"this build has no modelled card: build with --features model")),
            _ => return Err(ParseSwitchesError(format!("{name:?} is no switch: expected {NAMES}"))),
        }
        Ok(())
    }
}

/// A text is no list of [`Switches`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseSwitchesError(String);

impl FromStr for Switches {
    type Err = ParseSwitchesError;

    /// Parses for example `batch=single,queue-pairs=1`. An empty text names no switch.
    fn from_str(text: &str) -> Result<Switches, ParseSwitchesError> {
        let mut switches = Switches::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let pair = part.split_once('=');
            let (name, value) =
                pair.ok_or_else(|| ParseSwitchesError(format!("{part:?} is not of the form NAME=VALUE")))?;
            switches.set(name, value)?;
        }
        Ok(switches)
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: &str, value: Option<String>| value.map(|value| format!("{name}={value}"));
        let all = [
            named("provider", self.provider.map(|value| value.to_string())),
            named("batch", self.batch.map(|value| value.to_string())),
            named("queue-pairs", self.queue_pairs.map(|value| value.to_string())),
            named("window", self.window.map(|value| value.to_string())),
            named("window-scope", self.window_scope.map(|value| value.to_string())),
            named("pre-mr-threshold", self.pre_mr_threshold.map(|value| value.to_string())),
            named("polling", self.polling.map(|value| value.to_string())),
            #[cfg(feature = "model")]
            named("card", self.card.as_ref().map(|value| value.to_string())),
        ];
        f.write_str(&all.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "provider=tcp,batch=single,queue-pairs=1,window=7340032,window-scope=device,\
        pre-mr-threshold=4k,polling=busy";

    /// Catches a switch that the launcher does not hand on, or hands on under another name.
    #[test]
    fn texts_round_trip() {
        for text in ["", "batch=doorbell", ALL] {
            let switches: Switches = text.parse().expect("valid");
            assert_eq!(switches.to_string(), text);
        }
        let window = "window=7m".parse::<Switches>().expect("valid").window;
        assert_eq!(window, Some(7 << 20));
    }

    /// Catches a switch that changes another option, or options that were not named.
    #[test]
    fn only_named_switches_change_the_options() {
        let mut options = SessionOptions::default();
        "queue-pairs=2".parse::<Switches>().expect("valid").apply(&mut options);
        let default = SessionOptions::default();
        assert_eq!(options.queue_pairs, 2);
        assert_eq!((options.batch, options.window_bytes), (default.batch, default.window_bytes));
        ALL.parse::<Switches>().expect("valid").apply(&mut options);
        assert_eq!((options.provider, options.batch), (Some(ProviderKind::Tcp), BatchMode::Single));
        assert_eq!((options.queue_pairs, options.polling), (1, PollingMode::Busy));
        assert_eq!(options.window_scope, WindowScope::Device);
        assert_eq!(options.pre_mr_threshold, PreMrThreshold::Bytes(4096));
    }

    #[test]
    fn wrong_switches_are_refused() {
        for wrong in
            ["batch", "batch=", "speed=9", "queue-pairs=-1", "window=0", "polling=never", "=1", "card=cx9"]
        {
            assert!(wrong.parse::<Switches>().is_err(), "{wrong}");
        }
    }

    #[cfg(feature = "model")]
    #[test]
    fn a_card_has_a_dilation() {
        let mut options = SessionOptions::default();
        let switches: Switches = "card=cx3@20".parse().expect("valid");
        assert_eq!(switches.to_string(), "card=cx3@20");
        switches.apply(&mut options);
        assert_eq!(options.card.map(|card| card.timing()), Some(Timing::Dilated(20)));
        for wrong in ["card=cx3@0", "card=cx3@", "card=cx3@x"] {
            let error = wrong.parse::<Switches>().expect_err(wrong).to_string();
            assert!(error.contains("is no dilation"), "{error}");
        }
    }
}
