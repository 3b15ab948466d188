//! Extended attributes of paths.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use rfs_client::ClientError;
use rfs_proto::{
    Errno, ExpectedOwner, FileKind, MAX_XATTR_NAME, XattrSet,
    mode::{READ, STICKY, WRITE},
    xattr,
};

use super::Dir;
use crate::{
    access::permission::check_owner,
    cache::nodes::Node,
    error::{Result, at},
    path::walk::Follow,
};

impl Dir {
    /// Checks that the user may read or change an extended attribute.
    fn check_xattr(&self, node: &Node, name: &[u8], changes: bool) -> std::result::Result<(), ClientError> {
        if !(1..=MAX_XATTR_NAME).contains(&name.len()) {
            return Err(Errno::ERANGE.into());
        }
        let absent = if changes { Errno::EPERM } else { Errno::ENODATA };
        if name.starts_with(xattr::TRUSTED) {
            return if self.user.is_root() { Ok(()) } else { Err(absent.into()) };
        }
        if name.starts_with(xattr::SECURITY) {
            return if self.user.is_root() || !changes { Ok(()) } else { Err(Errno::EPERM.into()) };
        }
        if name.starts_with(xattr::ANY_ACL) {
            return if changes { Ok(check_owner(&self.user, &node.attr()?)?) } else { Ok(()) };
        }
        if !name.starts_with(xattr::USER) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
            return Err(absent.into());
        }
        let attr = node.attr()?;
        if changes && node.is_directory() && attr.perm & STICKY != 0 {
            check_owner(&self.user, &attr)?;
        }
        node.check(&self.user, if changes { WRITE } else { READ })
    }

    /// Returns the value of an extended attribute. Follows a symbolic link.
    ///
    /// # Errors
    /// ENODATA if there is none.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        let (path, name) = (path.as_ref(), name.as_ref().as_bytes());
        let get = || {
            let node = self.node_at(path, Follow::Yes)?;
            self.check_xattr(&node, name, false)?;
            self.core.client.xattrs.get_xattr(node.ino, name)
        };
        get().map_err(at("xattr", path))
    }

    /// Returns the names of all extended attributes that the user may see.
    ///
    /// # Errors
    /// ENOENT if the path names nothing.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let path = path.as_ref();
        let list = || {
            let node = self.node_at(path, Follow::Yes)?;
            self.core.client.xattrs.list_xattr(node.ino)
        };
        let names = list().map_err(at("xattrs", path))?;
        let shown =
            |name: &&[u8]| !name.is_empty() && (self.user.is_root() || !name.starts_with(xattr::TRUSTED));
        Ok(names
            .split(|byte| *byte == 0)
            .filter(shown)
            .map(|name| OsString::from_vec(name.to_vec()))
            .collect())
    }

    /// Sets an extended attribute of up to 64 KiB. Follows a symbolic link.
    ///
    /// # Errors
    /// EOPNOTSUPP for another namespace than `user.`, `trusted.`, `security.` and the ACLs.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8]) -> Result<()> {
        let (path, name) = (path.as_ref(), name.as_ref().as_bytes());
        let set = || {
            let node = self.node_at(path, Follow::Yes)?;
            self.check_xattr(&node, name, true)?;
            let attr = node.attr()?;
            let drop_sgid =
                name == xattr::ACCESS_ACL && !self.user.is_root() && !self.user.in_group(attr.gid);
            let only_if = self.expected_owner(name);
            let set =
                self.core.client.xattrs.set_xattr(node.ino, name, value, XattrSet::Any, drop_sgid, only_if);
            node.changed();
            set
        };
        set().map_err(at("set_xattr", path))
    }

    /// Removes an extended attribute. Follows a symbolic link.
    ///
    /// # Errors
    /// ENODATA if there is none.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let (path, name) = (path.as_ref(), name.as_ref().as_bytes());
        let remove = || {
            let node = self.node_at(path, Follow::Yes)?;
            self.check_xattr(&node, name, true)?;
            let removed = self.core.client.xattrs.remove_xattr(node.ino, name, self.expected_owner(name));
            node.changed();
            match removed {
                // The file has no ACL, which is the result that the caller wants.
                Err(ClientError::Errno(Errno::ENODATA)) if name.starts_with(xattr::ANY_ACL) => Ok(()),
                removed => removed,
            }
        };
        remove().map_err(at("remove_xattr", path))
    }

    /// Returns the owner that a change of an ACL assumes.
    fn expected_owner(&self, name: &[u8]) -> Option<ExpectedOwner> {
        let is_checked = name.starts_with(xattr::ANY_ACL) && !self.user.is_root();
        is_checked.then_some(ExpectedOwner { uid: self.user.uid, gid: None })
    }
}
