//! The figures of the paper: which points each has, and their tables.
//!
//! # Concurrency
//! Plain values.

mod definition;
mod table;

pub(crate) use self::{
    definition::{Figure, Point},
    table::{Outcome, Table},
};
