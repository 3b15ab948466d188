//! Users, and their rights to inodes.

pub(crate) mod credentials;
pub(crate) mod permission;
