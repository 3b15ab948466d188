//! A result of a model beside the paper's. No I/O, no locks, no clock.

use serde::Serialize;

/// A figure of the paper and of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The quantity.
    pub what: String,
    /// The paper's value.
    pub paper: String,
    /// The value of this run.
    pub model: String,
    /// "calibrated" if constants were chosen for it, else "predicted".
    pub basis: &'static str,
    /// Whether the shape holds.
    pub holds: bool,
}
