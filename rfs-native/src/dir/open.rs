//! Opening and creating of files.

use std::{os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use rfs_client::ClientError;
use rfs_proto::{
    Attr, Errno, FileKind,
    mode::{READ, WRITE},
};

use super::Dir;
use crate::{
    cache::nodes::Node,
    error::{Result, at, on},
    file::{File, open::OpenOptions},
    path::walk::{End, Follow},
};

/// Number of attempts to open or create a name that another mount keeps creating and removing.
const TRIES: u32 = 1000;

impl OpenOptions {
    /// Opens a file at a path in a directory.
    ///
    /// # Errors
    /// ENOENT if the path names nothing and is not to be created. EACCES without permission. EISDIR
    /// for a directory, ELOOP for a link that is not followed, ENXIO for a special file. EINVAL if
    /// the file is to be neither read nor written.
    pub fn open(&self, dir: &Dir, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.open_at(dir, path.as_os_str().as_bytes()).map_err(at("open", path))
    }

    /// Opens a regular file by the number of its inode, and checks no permissions. The caller knows
    /// the file from another mount, which has checked them.
    ///
    /// # Errors
    /// ENOENT if the file has no name any more. EINVAL for options that create or truncate a file,
    /// or open it for nothing. Otherwise as [`open`](Self::open).
    pub fn open_number(&self, mount: &Dir, ino: u64) -> Result<File> {
        self.open_node_of(mount, ino).map_err(on("open_number", ino))
    }

    fn open_node_of(&self, dir: &Dir, ino: u64) -> std::result::Result<File, ClientError> {
        let opens_for_nothing = !self.read && !self.is_to_write();
        if opens_for_nothing || self.create || self.create_new || self.truncate {
            return Err(Errno::EINVAL.into());
        }
        let core = &dir.core;
        let caching = &core.client.caching;
        let (since, arrival) = (caching.since(), caching.arrival());
        let attr = core.client.lookups.lookup_number(ino)?;
        let node = core.nodes.adopt(attr.ino, attr.kind);
        node.learn(since, &attr);
        // The inode may be removed from here on, and it is known then.
        drop(arrival);
        self.check_openable(dir, &node)?;
        self.open_permitted(dir, node)
    }

    fn open_at(&self, dir: &Dir, path: &[u8]) -> std::result::Result<File, ClientError> {
        let creates = self.create || self.create_new;
        if !self.read && !self.is_to_write() {
            return Err(Errno::EINVAL.into());
        }
        let follow = match self.follow && !self.create_new {
            true if creates => Follow::Create,
            true => Follow::Yes,
            false if creates => Follow::Never,
            false => Follow::No,
        };
        for _ in 0..TRIES {
            let (parent, name, node) = match dir.walk().find_end(path, follow)? {
                End::Here(_) if self.create_new => return Err(Errno::EEXIST.into()),
                End::Here(_) => return Err(Errno::EISDIR.into()),
                End::Entry { slash: true, .. } if creates => return Err(Errno::EISDIR.into()),
                End::Entry { parent, name, node, .. } => (parent, name, node),
            };
            let opened = match node {
                Some(_) if self.create_new => return Err(Errno::EEXIST.into()),
                Some(node) => self.open_node(dir, node),
                None if creates => self.create_name(dir, &parent, &name),
                None => return Err(Errno::ENOENT.into()),
            };
            match opened {
                // Another mount has removed the file, or has created it.
                Err(ClientError::Errno(Errno::ENOENT | Errno::ESTALE)) if creates => {
                    dir.core.names.remove(parent.ino, &name);
                }
                Err(ClientError::Errno(Errno::EEXIST)) if !self.create_new => {}
                Err(ClientError::Errno(Errno::ESTALE)) => return Err(Errno::ENOENT.into()),
                opened => return opened,
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Opens an existing file.
    fn open_node(&self, dir: &Dir, node: Arc<Node>) -> std::result::Result<File, ClientError> {
        self.check_openable(dir, &node)?;
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        node.check(&dir.user, bit(self.read, READ) | bit(self.changes(), WRITE))?;
        self.open_permitted(dir, node)
    }

    /// Checks that a file can be opened in this way, by any user.
    ///
    /// # Errors
    /// EISDIR for a directory, ELOOP for a symbolic link, ENXIO for a special file. EROFS if the
    /// open changes the file, and the mount is read-only.
    fn check_openable(&self, dir: &Dir, node: &Node) -> std::result::Result<(), Errno> {
        match node.kind {
            FileKind::Regular if self.changes() && dir.core.client.is_read_only() => Err(Errno::EROFS),
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Errno::EISDIR),
            FileKind::Symlink => Err(Errno::ELOOP),
            _ => Err(Errno::ENXIO),
        }
    }

    /// Returns true if the open changes the file, or is to change it.
    fn changes(&self) -> bool {
        self.is_to_write() || self.truncate
    }

    /// Opens an existing file that the user may open.
    fn open_permitted(&self, dir: &Dir, node: Arc<Node>) -> std::result::Result<File, ClientError> {
        let since = dir.core.client.caching.since();
        if self.is_to_write() {
            node.begin_writes();
        }
        let opened = dir.core.client.files.open(node.ino, self.is_to_write());
        let attr = match opened {
            Ok(attr) => attr,
            Err(e) => {
                if self.is_to_write() {
                    node.end_writes();
                }
                return Err(e);
            }
        };
        if !self.is_to_write() {
            node.learn(since, &attr);
        }
        let file = self.opened(dir, node, &attr);
        if self.truncate {
            file.inner.truncate()?;
        }
        Ok(file)
    }

    /// Creates a file with a name that does not exist.
    fn create_name(
        &self,
        dir: &Dir,
        parent: &Arc<Node>,
        name: &[u8],
    ) -> std::result::Result<File, ClientError> {
        dir.check_change(parent)?;
        let core = &dir.core;
        let (perm, by) = (dir.new_file_mode(parent, self.mode)?, dir.creator());
        // Always exclusive: the user may create the file, but may not be permitted to open one.
        let create = || core.client.files.create(parent.ino, name, perm, by, true);
        let (node, attr) = core.make_name(parent, name, create)?;
        if self.is_to_write() {
            node.begin_writes();
        }
        Ok(self.opened(dir, node, &attr))
    }

    /// Returns the file of an open that the client has made.
    fn opened(&self, dir: &Dir, node: Arc<Node>, attr: &Attr) -> File {
        let client = &dir.core.client;
        if self.read && self.count_reads {
            client.access_times.will_read(attr, false, false);
        }
        File::opened((&dir.core, &dir.user), node, self)
    }
}
