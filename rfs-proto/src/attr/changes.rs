//! Changes of attributes.

use serde::{Deserialize, Serialize};

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The time of the change on the server's clock.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// The required owner of an inode. If the owner differs, the server changes nothing and replies
/// EPERM. It protects a permission check of the client against a concurrent change of owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedOwner {
    /// Owner.
    pub uid: u32,
    /// Group. `None` accepts any group.
    pub gid: Option<u32>,
}

/// The owner of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory is setgid.
    pub gid: u32,
}

/// Attribute changes. `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes. A smaller length frees space, a larger one adds a hole.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<SetTime>,
    /// Time of the last change of contents.
    pub mtime: Option<SetTime>,
    /// Clears set-user-ID, set-group-ID if the group may execute, and security.capability, as a
    /// write by an unprivileged user does. A change of owner or group does so too, unless `perm` is
    /// set.
    pub drop_privileges: bool,
    /// Time of the last change of contents or attributes, in nanoseconds since 1970. `None` is now.
    pub ctime: Option<i64>,
    /// Required owner.
    pub only_if: Option<ExpectedOwner>,
}
