//! Descriptors that the library knows, and the open file descriptions behind them.

pub(crate) mod access;
pub(crate) mod description;
pub(crate) mod position;
pub(crate) mod table;
