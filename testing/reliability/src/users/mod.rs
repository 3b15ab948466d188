//! Simulated users of mounts, the files that they write and check, and their results.

mod bulk;
pub(crate) mod content;
mod shared_dir;
mod tally;
mod user;

pub(crate) use bulk::Bulk;
pub(crate) use shared_dir::SharedDir;
pub(crate) use tally::Tally;
pub(crate) use user::{User, counted};
