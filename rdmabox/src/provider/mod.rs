//! Providers: implementations of the [verbs](crate::verbs) model.

pub mod soft;
