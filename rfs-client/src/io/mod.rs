//! Reads and writes of open files, and their space.

pub(crate) mod append;
pub(crate) mod async_io;
pub(crate) mod buffer;
pub(crate) mod checksum_read;
pub(crate) mod checksum_write;
mod pending_write;
pub(crate) mod read;
pub(crate) mod space;
pub(crate) mod view;
pub(crate) mod write;
pub(crate) mod writeback;
