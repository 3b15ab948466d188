//! The server's memory as the client sees it: attribute records.

pub(crate) mod records;
