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
    /// The strength of the agreement as evidence.
    pub basis: Basis,
    /// How far the model agrees with the paper.
    pub shape: Shape,
    /// The same loads on a provider without the model.
    pub beside: Option<Beside>,
}

/// The value of a provider of this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The value.
    pub value: String,
    /// How far it agrees with the paper.
    pub shape: Shape,
}

/// The strength of an agreement as evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Neither constants nor the load were selected for it.
    Predicted,
    /// Constants were fitted to it, so agreement proves little.
    Calibrated,
    /// The load was selected so that the effect can appear.
    Chosen,
}

/// How far the model agrees with the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The paper has a direction or a count, and the model has it too.
    Holds,
    /// The paper has a number or a range, and the model's value lies in it.
    InRange,
    /// The paper has a number or a range. The model has its direction, beyond the noise.
    DirectionOnly,
    /// The run uses another value than the paper.
    Differs,
    /// The model does not agree, or has no value.
    Fails,
}

impl Basis {
    /// Returns the text in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Calibrated => "calibrated",
            Self::Chosen => "load chosen",
        }
    }
}

impl Shape {
    /// Returns the text in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::InRange => "in range",
            Self::DirectionOnly => "direction only",
            Self::Differs => "differs",
            Self::Fails => "DOES NOT HOLD",
        }
    }

    /// Returns [`Holds`](Self::Holds) or [`Fails`](Self::Fails).
    pub fn if_true(holds: bool) -> Shape {
        if holds { Shape::Holds } else { Shape::Fails }
    }
}
