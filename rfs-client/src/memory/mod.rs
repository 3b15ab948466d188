//! The server's memory as the client sees it: attribute records and checksum words.

pub(crate) mod checksums;
pub(crate) mod records;
