//! Combinations of options, and the rounds that run them.

pub mod matrix;
pub mod runner;
pub mod settings;
