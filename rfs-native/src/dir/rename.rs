//! Renames.

use std::{os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use rfs_client::ClientError;
use rfs_proto::{Errno, RenameFlags, mode::WRITE};

use super::{Dir, between};
use crate::{cache::nodes::Node, error::Result, path::walk::Name};

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

    fn rename_once(&self, from: &Path, to: &Path, mode: RenameMode) -> std::result::Result<(), ClientError> {
        let name = |path: &Path| self.walk().find_name(path.as_os_str().as_bytes());
        let (old, new) = (name(from)?, name(to)?);
        let no_name = if mode == RenameMode::NoReplace { Errno::EEXIST } else { Errno::EBUSY };
        let (old, new) = (old.ok_or(Errno::EBUSY)?, new.ok_or(no_name)?);
        let moved = &old.find(&self.core)?.ok_or(Errno::ENOENT)?;
        let replaced = new.find(&self.core)?;
        // A user may be forbidden to replace a file that another mount makes meanwhile.
        let is_new = mode == RenameMode::Replace && replaced.is_none() && !self.user.is_root();
        let flags = match mode {
            RenameMode::Replace if is_new => RenameFlags::NOREPLACE,
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        check_names(&old, &new, (moved, replaced.as_deref()), mode)?;
        if replaced.as_ref().is_some_and(|node| node.ino == moved.ino) {
            // Both names are of one inode.
            return Ok(());
        }
        self.check_rename(&old, &new, (moved, replaced.as_deref()), mode)?;
        // Permissions hold for these inodes. The server refuses the rename if a name stands for
        // another inode by now.
        let expected = |node: &Arc<Node>| (!self.user.is_root()).then_some(node.ino);
        let change = self.core.change_names(&[(old.parent.ino, &old.name), (new.parent.ino, &new.name)]);
        let renamed = self.core.client.names.rename(
            (old.parent.ino, &old.name),
            (new.parent.ino, &new.name),
            flags,
            None,
            (expected(moved), replaced.as_ref().and_then(expected)),
        );
        for side in [&old, &new] {
            change.remove(side.parent.ino, &side.name);
            side.parent.forget_attr();
        }
        moved.changed();
        replaced.iter().for_each(|node| node.changed());
        match renamed {
            Err(ClientError::Errno(Errno::EEXIST)) if is_new => Err(Errno::ESTALE.into()),
            renamed => renamed,
        }
    }

    fn check_rename(
        &self,
        old: &Name,
        new: &Name,
        (moved, replaced): (&Node, Option<&Node>),
        mode: RenameMode,
    ) -> std::result::Result<(), ClientError> {
        self.check_removal(&old.parent, moved)?;
        match replaced {
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
        let exchanged = replaced.filter(|_| mode == RenameMode::Exchange);
        for node in [Some(moved), exchanged].into_iter().flatten() {
            if node.is_directory() {
                node.check(&self.user, WRITE)?;
            }
        }
        Ok(())
    }
}

/// Checks the two names, before permissions.
fn check_names(
    old: &Name,
    new: &Name,
    (moved, replaced): (&Node, Option<&Node>),
    mode: RenameMode,
) -> std::result::Result<(), Errno> {
    match replaced {
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
    match replaced {
        Some(node) if old.above.contains(&node.ino) => match mode {
            RenameMode::Exchange => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTEMPTY),
        },
        _ => Ok(()),
    }
}
