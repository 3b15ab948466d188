//! Renames.

use std::{os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use rfs_client::ClientError;
use rfs_proto::{Errno, RenameFlags};
use smallvec::SmallVec;

use super::{Dir, between};
use crate::{
    access::permission::WRITE,
    cache::nodes::Node,
    error::Result,
    path::walk::{End, Follow},
};

/// Number of attempts to rename while another mount changes one of the names.
const TRIES: u32 = 100;

/// The effect of a rename on the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// EEXIST if it exists.
    NoReplace,
    /// The two names are exchanged.
    Exchange,
}

/// One of the two names.
struct Side {
    parent: Arc<Node>,
    name: Vec<u8>,
    slash: bool,
    node: Option<Arc<Node>>,
    /// The directories above.
    above: SmallVec<[u64; 8]>,
}

impl Side {
    /// Returns the name at the end of a walk, unless the path ends with `.`, `..` or the root.
    fn of(end: End) -> Option<Side> {
        match end {
            End::Here(_) => None,
            End::Entry { parent, name, slash, node, above } => {
                Some(Side { parent, name: name.to_vec(), slash, node, above })
            }
        }
    }
}

impl Dir {
    /// Renames a file or a directory, and replaces the new name if it exists. The rename is atomic
    /// on all mounts.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames as `mode` says.
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.try_rename(from, to, mode).map_err(between("rename", from, to))
    }

    fn try_rename(&self, from: &Path, to: &Path, mode: RenameMode) -> std::result::Result<(), ClientError> {
        for _ in 0..TRIES {
            match self.rename_once(from, to, mode) {
                // Another mount has changed a name since its permissions were checked.
                Err(ClientError::Errno(Errno::ESTALE)) => {}
                done => return done,
            }
        }
        Err(Errno::EBUSY.into())
    }

    fn end(&self, path: &Path) -> std::result::Result<End, ClientError> {
        self.walk().find_end(path.as_os_str().as_bytes(), Follow::Never)
    }

    fn rename_once(&self, from: &Path, to: &Path, mode: RenameMode) -> std::result::Result<(), ClientError> {
        let (old, new) = (self.end(from)?, self.end(to)?);
        let old = Side::of(old).ok_or(Errno::EBUSY)?;
        let no_name = if mode == RenameMode::NoReplace { Errno::EEXIST } else { Errno::EBUSY };
        let new = Side::of(new).ok_or(no_name)?;
        let moved = old.node.as_ref().ok_or(Errno::ENOENT)?;
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        check_names(&old, &new, moved, mode)?;
        if new.node.as_ref().is_some_and(|node| node.ino == moved.ino) {
            // Both names are of one inode.
            return Ok(());
        }
        self.check_rename(&old, &new, moved, mode)?;
        // Permissions hold for these inodes. The server refuses the rename if a name stands for
        // another inode by now.
        let expected =
            |node: &Option<Arc<Node>>| node.as_ref().filter(|_| !self.user.is_root()).map(|node| node.ino);
        let change = self.core.change_names(&[old.parent.ino, new.parent.ino]);
        let renamed = self.core.client.names.rename(
            (old.parent.ino, &old.name),
            (new.parent.ino, &new.name),
            flags,
            None,
            (expected(&old.node), expected(&new.node)),
        );
        for side in [&old, &new] {
            change.remove(side.parent.ino, &side.name);
            side.parent.forget_attr();
            side.node.iter().for_each(|node| node.changed());
        }
        renamed
    }

    fn check_rename(
        &self,
        old: &Side,
        new: &Side,
        moved: &Node,
        mode: RenameMode,
    ) -> std::result::Result<(), ClientError> {
        self.check_removal(&old.parent, moved)?;
        match &new.node {
            Some(replaced) => {
                self.check_removal(&new.parent, replaced)?;
                match (moved.is_directory(), replaced.is_directory()) {
                    _ if mode == RenameMode::Exchange => {}
                    (true, false) => return Err(Errno::ENOTDIR.into()),
                    (false, true) => return Err(Errno::EISDIR.into()),
                    _ => {}
                }
            }
            None => self.check_change(&new.parent)?,
        }
        if old.parent.ino == new.parent.ino {
            return Ok(());
        }
        // A move changes `..` of a directory.
        let exchanged = new.node.as_deref().filter(|_| mode == RenameMode::Exchange);
        for node in [Some(moved), exchanged].into_iter().flatten() {
            if node.is_directory() {
                node.check(&self.user, WRITE)?;
            }
        }
        Ok(())
    }
}

/// Checks the two names, before permissions.
fn check_names(old: &Side, new: &Side, moved: &Node, mode: RenameMode) -> std::result::Result<(), Errno> {
    match &new.node {
        Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
        None if mode == RenameMode::Exchange => return Err(Errno::ENOENT),
        Some(node) if mode == RenameMode::Exchange && new.slash && !node.is_directory() => {
            return Err(Errno::ENOTDIR);
        }
        _ => {}
    }
    let needs_directory = old.slash || new.slash && mode != RenameMode::Exchange;
    if needs_directory && !moved.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    // A directory cannot move into itself. The server checks it again, for moves of other mounts.
    if new.above.contains(&moved.ino) {
        return Err(Errno::EINVAL);
    }
    match &new.node {
        Some(node) if old.above.contains(&node.ino) => match mode {
            RenameMode::Exchange => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTEMPTY),
        },
        _ => Ok(()),
    }
}
