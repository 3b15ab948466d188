//! Native mounts of a server in the test's process, over every provider of this machine.

mod async_io;
mod caching;
mod common;
mod data;
mod differential;
mod failures;
mod names;
mod permissions;
mod views;
