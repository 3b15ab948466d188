//! Calls about attributes of paths.
//!
//! Only the owner may change mode, owner, group and given times.

use std::{cell::Cell, path::Path, time::SystemTime};

use rfs_client::{ClientError, LentRights, Loss};
use rfs_proto::{
    Attr, Errno, FileKind, SetAttr,
    mode::{READ, SEARCH, WRITE, lends_rights},
};

use super::Dir;
use crate::{
    access::permission::{check_chown, check_owner, permitted_mode},
    attributes::{
        change::change_attr,
        contents::{check_size, end_loss, set_size_if},
        stat::Stat,
    },
    cache::nodes::Node,
    error::{Result, at},
    path::walk::Follow,
};

/// A time to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// The time stays.
    #[default]
    Keep,
    /// The time of the change on the server's clock.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Times to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time of the last access.
    pub accessed: SetTime,
    /// Time of the last change of contents.
    pub modified: SetTime,
}

impl SetTime {
    /// Returns a given time.
    pub fn at(time: SystemTime) -> SetTime {
        let nanoseconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
        };
        SetTime::At(nanoseconds)
    }

    fn change(self) -> Option<rfs_proto::SetTime> {
        match self {
            SetTime::Keep => None,
            SetTime::Now => Some(rfs_proto::SetTime::Now),
            SetTime::At(time) => Some(rfs_proto::SetTime::At(time)),
        }
    }
}

impl Dir {
    fn stat_of(&self, path: &Path, follow: Follow) -> std::result::Result<Stat, ClientError> {
        self.node_at(path, follow)?.attr().map(|attr| Stat::of(&attr))
    }

    /// Returns the attributes of a path, and follows a symbolic link.
    ///
    /// # Errors
    /// ENOENT if the path names nothing.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Stat> {
        let path = path.as_ref();
        self.stat_of(path, Follow::Yes).map_err(at("stat", path))
    }

    /// Returns the attributes of a path. Those of a symbolic link are its own.
    ///
    /// # Errors
    /// ENOENT if the path names nothing.
    pub fn stat_link(&self, path: impl AsRef<Path>) -> Result<Stat> {
        let path = path.as_ref();
        self.stat_of(path, Follow::No).map_err(at("stat_link", path))
    }

    /// Returns the time at which the inode of a path was created, in nanoseconds since 1970. It
    /// follows a symbolic link. `None` if the server does not know it: an earlier version of the
    /// server has created the inode, or still runs.
    ///
    /// # Errors
    /// ENOENT if the path names nothing.
    pub fn born(&self, path: impl AsRef<Path>) -> Result<Option<i64>> {
        let path = path.as_ref();
        self.node_at(path, Follow::Yes).and_then(|node| node.birth()).map_err(at("born", path))
    }

    /// Checks that the user may read, write, or execute (search) the object that a path names.
    ///
    /// # Errors
    /// EACCES if a permission is missing, EROFS for `write` on a read-only mount.
    pub fn access(&self, path: impl AsRef<Path>, read: bool, write: bool, execute: bool) -> Result<()> {
        let path = path.as_ref();
        let check = || {
            let node = self.node_at(path, Follow::Yes)?;
            let bit = |set: bool, bit: u32| if set { bit } else { 0 };
            let wanted = bit(read, READ) | bit(write, WRITE) | bit(execute, SEARCH);
            if write && self.core.client.is_read_only() {
                return Err(Errno::EROFS.into());
            }
            node.check(&self.user, wanted)
        };
        check().map_err(at("access", path))
    }

    /// Changes attributes of a path.
    fn change(
        &self,
        call: &'static str,
        (path, follow): (&Path, Follow),
        permitted: impl Fn(&Node, &Attr) -> std::result::Result<SetAttr, ClientError>,
    ) -> Result<()> {
        let change = || {
            let node = self.node_at(path, follow)?;
            change_attr(&self.core, &self.user, &node, |attr| permitted(&node, attr)).map(|_| ())
        };
        change().map_err(at(call, path))
    }

    /// Sets the permission bits (07777). Follows a symbolic link. A user outside the file's group
    /// cannot set set-group-ID.
    ///
    /// # Errors
    /// EPERM if the user is neither root nor the owner.
    pub fn set_mode(&self, path: impl AsRef<Path>, perm: u32) -> Result<()> {
        self.change("set_mode", (path.as_ref(), Follow::Yes), |_, attr| {
            check_owner(&self.user, attr)?;
            let perm = Some(permitted_mode(&self.user, perm & 0o7777, attr.gid));
            Ok(SetAttr { perm, ..SetAttr::default() })
        })
    }

    /// Sets owner and group; `None` keeps one. Follows a symbolic link. Clears set-user-ID,
    /// set-group-ID and security.capability of a file, as a change of its contents does.
    ///
    /// # Errors
    /// EPERM if the user is not root, unless the owner gives the file to one of its own groups.
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let path = path.as_ref();
        let set = || {
            let node = self.node_at(path, Follow::Yes)?;
            let nothing = (uid, gid) == (None, None);
            let before = Cell::new(None);
            change_attr(&self.core, &self.user, &node, |attr| {
                before.set(Some(*attr));
                // Such a call also clears set-user-ID if it names neither owner nor group.
                let drop_privileges = nothing && !node.is_directory() && lends_rights(attr.perm);
                match drop_privileges {
                    true => check_owner(&self.user, attr)?,
                    false => check_chown(&self.user, attr, uid, gid)?,
                }
                Ok(SetAttr { uid, gid, drop_privileges, ..SetAttr::default() })
            })?;
            let Some(before) = before.get().filter(|_| !node.is_directory()) else { return Ok(()) };
            // The server has cleared the bits that do not depend on the group.
            let loss = LentRights::new(before.perm, before.marks).loss(self.user.is_root());
            let loss = Loss { ids: false, capability: loss.capability && nothing, ..loss };
            end_loss(&self.core, &node, loss, |_| self.user.in_group(before.gid))
        };
        set().map_err(at("set_owner", path))
    }

    /// Sets times. Follows a symbolic link. Does nothing if both times are [`SetTime::Keep`].
    ///
    /// # Errors
    /// EPERM if the user is neither root nor the owner. If both times are [`SetTime::Now`],
    /// permission to write is enough, and its lack is EACCES.
    pub fn set_times(&self, path: impl AsRef<Path>, times: Times) -> Result<()> {
        if times == Times::default() {
            return Ok(());
        }
        self.change("set_times", (path.as_ref(), Follow::Yes), |node, attr| {
            let Times { accessed, modified } = times;
            let both_now = (accessed, modified) == (SetTime::Now, SetTime::Now);
            match check_owner(&self.user, attr) {
                Err(_) if both_now => node.check(&self.user, WRITE)?,
                checked => checked?,
            }
            let (atime, mtime) = (accessed.change(), modified.change());
            Ok(SetAttr { atime, mtime, ..SetAttr::default() })
        })
    }

    /// Sets the length of a file. A smaller length frees space, a larger one adds a hole.
    ///
    /// # Errors
    /// EISDIR for a directory, EINVAL for a special file, EACCES without permission to write.
    pub fn set_len(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        let path = path.as_ref();
        let set = || {
            let node = self.node_at(path, Follow::Yes)?;
            match node.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            set_size_if(&self.core, &self.user, &node, size, || {
                node.check(&self.user, WRITE)?;
                Ok(check_size(size)?)
            })
        };
        set().map_err(at("set_len", path))
    }
}
