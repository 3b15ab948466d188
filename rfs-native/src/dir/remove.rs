//! Calls that remove names.

use std::{os::unix::ffi::OsStrExt, path::Path};

use rfs_client::ClientError;
use rfs_proto::Errno;

use super::Dir;
use crate::{
    access::permission::check_sticky,
    cache::nodes::Node,
    error::{Result, at},
    path::walk::{End, Follow},
};

/// Errno EBUSY is the kernel's answer to a removal of a mounted root.
const ROOT: Errno = Errno::EBUSY;

impl Dir {
    /// Checks that the user may remove or replace the name of `node` in a directory.
    pub(crate) fn check_removal(&self, parent: &Node, node: &Node) -> std::result::Result<(), ClientError> {
        self.check_change(parent)?;
        if !self.user.is_root() {
            check_sticky(&self.user, &parent.attr()?, &node.attr()?)?;
        }
        Ok(())
    }

    /// Removes a file, symbolic link or special file. An open file lives until its last close on
    /// any mount.
    ///
    /// # Errors
    /// EISDIR for a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.remove(path, false).map_err(at("remove_file", path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOTEMPTY if it has entries, ENOTDIR if it is no directory, EBUSY for the root. EINVAL if
    /// the path ends with `.`, and ENOTEMPTY if it ends with `..`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.remove(path, true).map_err(at("remove_dir", path))
    }

    fn remove(&self, path: &Path, is_dir: bool) -> std::result::Result<(), ClientError> {
        let bytes = path.as_os_str().as_bytes();
        let End::Entry { parent, name, node, slash, .. } = self.walk().find_end(bytes, Follow::Never)? else {
            return Err(special_end(bytes, is_dir).into());
        };
        let node = node.ok_or(Errno::ENOENT)?;
        let wrong_kind = match node.is_directory() {
            true if !is_dir => Some(Errno::EISDIR),
            false if is_dir || slash => Some(Errno::ENOTDIR),
            _ => None,
        };
        // As in the kernel, a slash after a file comes before permissions, and the kind after them.
        if slash && !is_dir {
            wrong_kind.map_or(Ok(()), Err)?;
        }
        self.check_removal(&parent, &node)?;
        wrong_kind.map_or(Ok(()), Err)?;
        let change = self.core.change_names(&[(parent.ino, &name)]);
        let removed = match is_dir {
            true => self.core.client.names.rmdir(parent.ino, &name),
            false => self.core.client.names.unlink(parent.ino, &name),
        };
        change.remove(parent.ino, &name);
        parent.forget_attr();
        node.changed();
        removed
    }
}

/// Returns the error of removing a path that ends with no name.
fn special_end(path: &[u8], is_dir: bool) -> Errno {
    if !is_dir {
        return Errno::EISDIR;
    }
    let trimmed = path.iter().rposition(|byte| *byte != b'/').map_or(&path[..0], |end| &path[..=end]);
    match trimmed.rsplit(|byte| *byte == b'/').next() {
        Some(b".") => Errno::EINVAL,
        Some(b"..") => Errno::ENOTEMPTY,
        _ => ROOT,
    }
}
