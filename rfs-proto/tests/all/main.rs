//! Tests of the encoding: one test program, so that it is linked once.

mod golden;
mod properties;
#[path = "../support/mod.rs"]
mod support;
