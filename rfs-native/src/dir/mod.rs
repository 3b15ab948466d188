//! Directories, and all calls with paths.

mod attributes;
mod create;
mod listing;
mod open;
mod remove;
mod rename;
mod trees;
mod xattrs;

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rfs_client::{ClientError, Creator};
use rfs_proto::{
    Errno,
    mode::{SEARCH, WRITE, lends_group},
};

pub use self::{
    attributes::{SetTime, Times},
    listing::{Entries, Entry},
    rename::RenameMode,
};
use crate::{
    access::{credentials::Credentials, permission::new_file_mode},
    cache::nodes::Node,
    error::{Error, Result, at},
    file::{File, open::OpenOptions},
    path::walk::{Follow, Walk},
    session::core::Core,
};

/// An open directory. Paths of its calls begin here, or at the root of the export if they begin
/// with a slash.
///
/// A clone is the same directory. A removed directory has no entries, as on a mount.
///
/// # Concurrency
/// Any number of threads call every method.
#[derive(Clone, Debug)]
pub struct Dir {
    pub(crate) core: Arc<Core>,
    pub(crate) user: Arc<Credentials>,
    pub(crate) node: Arc<Node>,
}

impl Dir {
    /// Returns a walk that begins here.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk::new(&self.core, &self.user, &self.node)
    }

    /// Returns the inode of a path.
    pub(crate) fn node_at(&self, path: &Path, follow: Follow) -> std::result::Result<Arc<Node>, ClientError> {
        self.walk().find_node(path.as_os_str().as_bytes(), follow)
    }

    /// Returns the user as the creator of an inode.
    pub(crate) fn creator(&self) -> Creator {
        Creator { uid: self.user.uid, gid: self.user.gid, umask: self.user.umask }
    }

    /// Checks that the user may change names of a directory.
    pub(crate) fn check_change(&self, parent: &Node) -> std::result::Result<(), ClientError> {
        parent.check(&self.user, WRITE | SEARCH)
    }

    /// Returns the permission bits of a file that the user creates in a directory.
    pub(crate) fn new_file_mode(&self, parent: &Node, perm: u32) -> std::result::Result<u32, ClientError> {
        let perm = perm & 0o7777;
        if lends_group(perm) { Ok(new_file_mode(&self.user, perm, &parent.attr()?)) } else { Ok(perm) }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Creates a file, or cuts an existing one to no bytes, and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// Opens a file as the options say.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        options.open(self, path)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// ENOTDIR if the path names a file.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        let path = path.as_ref();
        self.dir_at(path).map_err(at("open_dir", path))
    }

    pub(crate) fn dir_at(&self, path: &Path) -> std::result::Result<Dir, ClientError> {
        let node = self.node_at(path, Follow::Yes)?;
        if !node.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(Dir { core: Arc::clone(&self.core), user: Arc::clone(&self.user), node })
    }

    /// Returns this directory for another user. The server checks users only if the key has a
    /// squash; this library checks all.
    pub fn as_user(&self, user: Credentials) -> Dir {
        Dir { user: Arc::new(user), ..self.clone() }
    }

    /// Returns the user of this directory's calls.
    pub fn user(&self) -> &Credentials {
        &self.user
    }

    /// Returns the number of the directory's inode.
    pub fn ino(&self) -> u64 {
        self.node.ino
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL if the path names no symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let read = || {
            let node = self.node_at(path, Follow::No)?;
            if node.kind != rfs_proto::FileKind::Symlink {
                return Err(Errno::EINVAL.into());
            }
            Ok(PathBuf::from(std::ffi::OsStr::from_bytes(node.target()?)))
        };
        read().map_err(at("read_link", path))
    }

    /// Returns true if the path names something.
    ///
    /// # Errors
    /// Any error but ENOENT and ENOTDIR.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        match self.node_at(path, Follow::Yes) {
            Ok(_) => Ok(true),
            Err(ClientError::Errno(Errno::ENOENT | Errno::ENOTDIR)) => Ok(false),
            Err(e) => Err(at("exists", path)(e)),
        }
    }
}

/// Returns an error about two paths.
pub(crate) fn between<'p>(
    call: &'static str,
    from: &'p Path,
    to: &'p Path,
) -> impl FnOnce(ClientError) -> Error + use<'p> {
    move |reason| Error::new(call, format!("{} to {}", from.display(), to.display()), reason)
}
