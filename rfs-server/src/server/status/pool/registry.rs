//! The status of the registry of a pool. No I/O, no locks, no clock.

use rfs_status::text::{duration, printable};
use serde::{Deserialize, Serialize};

/// The registry of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegistryStatus {
    /// The registry in words, with the name of the pool.
    pub place: String,
    /// Whether the pool can change.
    pub state: RegistryState,
    /// Time for which it has not answered.
    pub away_seconds: Option<f64>,
    /// Why not, or which server has taken the pool.
    pub reason: Option<String>,
}

/// Whether the registry of a pool can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegistryState {
    /// It answers.
    #[default]
    Up,
    /// It does not answer. Reads and writes go on, and the pool does not change.
    Away,
    /// Another server has taken the pool.
    Taken,
}

impl RegistryStatus {
    /// Returns the status in a line.
    pub(super) fn line(&self) -> String {
        let (place, reason) = (&self.place, self.reason.as_deref().unwrap_or("no reason is known"));
        match self.state {
            RegistryState::Up => format!("registry: {place}"),
            RegistryState::Away => {
                let time = duration(self.away_seconds.unwrap_or_default());
                format!(
                    "registry: {place}: away for {time} ({}): reads and writes go on, and the pool does not change",
                    printable(reason)
                )
            }
            RegistryState::Taken => {
                format!("registry: {place}: another server has taken the pool, {}", printable(reason))
            }
        }
    }
}
