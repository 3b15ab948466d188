//! Rules of POSIX file systems that clients and the server share: permission bits, access lists,
//! and names of extended attributes.

pub mod acl;
pub mod mode;
pub mod xattr;
