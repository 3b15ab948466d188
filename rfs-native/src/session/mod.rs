//! The session of a mount, and the thread that obeys the server's recalls.

pub(crate) mod core;
pub(crate) mod options;
pub(crate) mod recalls;
pub(crate) mod workers;
