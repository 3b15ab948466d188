//! Users, and their rights to inodes.

pub(crate) mod acl;
pub(crate) mod credentials;
pub(crate) mod permission;
