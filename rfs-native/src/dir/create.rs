//! Calls that make names: directories, links, special files.

use std::{os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use rfs_client::ClientError;
use rfs_proto::{
    Attr, Errno, FileKind,
    mode::{READ, WRITE},
};
use smallvec::SmallVec;

use super::{Dir, between};
use crate::{
    access::permission::may_link,
    cache::nodes::Node,
    error::{Result, at},
    path::{
        components::check_path,
        walk::{End, Follow},
    },
};

impl Dir {
    /// Walks to a name that is to be made.
    ///
    /// # Errors
    /// EEXIST if it exists; ENOENT if a slash follows, unless that is permitted.
    fn new_name(
        &self,
        path: &Path,
        may_end_with_slash: bool,
    ) -> std::result::Result<(Arc<Node>, SmallVec<[u8; 32]>), ClientError> {
        match self.walk().find_end(path.as_os_str().as_bytes(), Follow::Never)? {
            End::Here(_) | End::Entry { node: Some(_), .. } => Err(Errno::EEXIST.into()),
            End::Entry { slash: true, .. } if !may_end_with_slash => Err(Errno::ENOENT.into()),
            End::Entry { parent, name, .. } => Ok((parent, name)),
        }
    }

    /// Makes a name with an inode.
    fn make(
        &self,
        call: &'static str,
        path: &Path,
        make: impl FnOnce(&Node, &[u8]) -> std::result::Result<Attr, ClientError>,
    ) -> Result<()> {
        let made = || {
            let (parent, name) = self.new_name(path, call == "make_dir")?;
            self.check_change(&parent)?;
            self.core.make_name(&parent, &name, || make(&parent, &name)).map(|_| ())
        };
        made().map_err(at(call, path))
    }

    /// Creates a directory with these permission bits, less the umask.
    ///
    /// # Errors
    /// EEXIST if the path exists.
    pub fn make_dir(&self, path: impl AsRef<Path>, perm: u32) -> Result<()> {
        self.make("make_dir", path.as_ref(), |parent, name| {
            self.core.client.names.mkdir(parent.ino, name, perm & 0o1777, self.creator())
        })
    }

    /// Creates a symbolic link at `path` with a target of 1 to 4095 bytes.
    ///
    /// # Errors
    /// EEXIST if the path exists.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let (target, path) = (target.as_ref().as_os_str().as_bytes(), path.as_ref());
        check_path(target).map_err(|e| at("symlink", path)(e.into()))?;
        self.make("symlink", path, |parent, name| {
            self.core.client.names.symlink(parent.ino, name, target, self.creator())
        })
    }

    /// Creates a file, fifo, socket or device node with these permission bits, less the umask.
    ///
    /// # Errors
    /// EEXIST if the path exists, EPERM if a user other than root makes a device node, EINVAL for a
    /// directory or a symbolic link.
    pub fn make_node(&self, path: impl AsRef<Path>, kind: FileKind, perm: u32, rdev: u32) -> Result<()> {
        let path = path.as_ref();
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(at("make_node", path)(Errno::EINVAL.into()));
        }
        self.make("make_node", path, |parent, name| {
            if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) && !self.user.is_root() {
                return Err(Errno::EPERM.into());
            }
            let mode = kind.mode_bits() | self.new_file_mode(parent, perm)?;
            self.core.client.names.mknod(parent.ino, name, mode, rdev, self.creator())
        })
    }

    /// Creates a hard link at `to`. A symbolic link at `from` is linked itself.
    ///
    /// # Errors
    /// EPERM for a directory. Also EPERM if the user neither owns the file nor may read and write
    /// it, as on a kernel with `fs.protected_hardlinks`.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let link = || {
            let node = self.node_at(from, Follow::No)?;
            let (parent, name) = self.new_name(to, false)?;
            if !self.user.is_root() {
                let may_use = node.permits(&self.user, READ | WRITE)?;
                if !may_link(&self.user, &node.attr()?, may_use) {
                    return Err(Errno::EPERM.into());
                }
            }
            self.check_change(&parent)?;
            if node.is_directory() {
                return Err(Errno::EPERM.into());
            }
            let make = || self.core.client.names.link(node.ino, parent.ino, &name);
            self.core.make_name(&parent, &name, make).map(|_| ())
        };
        link().map_err(between("link", from, to))
    }
}
