//! Names of extended attributes that have rules of their own.

/// The access ACL.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The ACL that new inodes of a directory inherit.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Prefix of the names of both ACLs.
pub const ANY_ACL: &[u8] = b"system.posix_acl_";
/// Capabilities of a program. A change of the program's contents removes them.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Prefix of attributes that file permissions protect.
pub const USER: &[u8] = b"user.";
/// Prefix of attributes that only root sees.
pub const TRUSTED: &[u8] = b"trusted.";
/// Prefix of attributes that only root changes.
pub const SECURITY: &[u8] = b"security.";
