//! Renaming, with the rules of `renameat2`.
//!
//! Threading: none; the metadata lock protects it. Everything is checked before anything is changed.

use rfs_proto::{Errno, ROOT_INO, RenameFlags};

use super::{Body, Effects, Namespace, check_name};

/// One end of a rename.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Directory.
    pub parent: u64,
    /// Name in it.
    pub name: &'a [u8],
}

impl Namespace {
    /// Renames, replacing what is there, or not, or swapping the two.
    pub fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        now: i64,
    ) -> Result<Effects, Errno> {
        let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
        if flags.contains(both) || !both.contains(flags) {
            return Err(Errno::EINVAL);
        }
        for place in [from, to] {
            check_name(place.name)?;
            self.directory(place.parent)?;
            if matches!(place.name, b"." | b"..") {
                return Err(Errno::EBUSY);
            }
        }
        let source = self.lookup(from.parent, from.name)?;
        let target = self.probe(to.parent, to.name)?;
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        if self.is_within(to.parent, source) {
            return Err(Errno::EINVAL);
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if let Some(target) = target
            && self.is_within(from.parent, target)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        match target {
            None if exchange => Err(Errno::ENOENT),
            // Two names of one inode: nothing to do, says POSIX.
            Some(target) if target == source => Ok(Effects::default()),
            Some(target) if exchange => self.exchange(from, source, to, target, now),
            _ => self.replace(from, source, to, target, now),
        }
    }

    fn replace(
        &mut self,
        from: Place<'_>,
        source: u64,
        to: Place<'_>,
        target: Option<u64>,
        now: i64,
    ) -> Result<Effects, Errno> {
        let moves_directory = self.get(source)?.is_directory();
        let mut loses_directory = false;
        if let Some(target) = target {
            let target = self.get(target)?;
            match (moves_directory, target.directory()) {
                (true, None) => return Err(Errno::ENOTDIR),
                (false, Some(_)) => return Err(Errno::EISDIR),
                (true, Some(directory)) if !directory.is_empty() => return Err(Errno::ENOTEMPTY),
                (_, directory) => loses_directory = directory.is_some(),
            }
        }
        let gains_link = moves_directory && from.parent != to.parent && !loses_directory;
        if gains_link && self.get(to.parent)?.nlink >= self.max_links {
            return Err(Errno::EMLINK);
        }

        let moved = u32::from(moves_directory);
        self.change_entries(from.parent, now, |directory, nlink| {
            directory.remove(from.name);
            *nlink -= moved;
        });
        self.change_entries(to.parent, now, |directory, nlink| {
            directory.set(to.name, source);
            *nlink = *nlink + moved - u32::from(loses_directory);
        });
        let mut effects = Effects { touched: vec![from.parent, to.parent, source], ..Effects::default() };
        self.moved(source, to.parent, now, &mut effects)?;
        if let Some(target) = target {
            effects.orphaned = self.lose_name(target, now)?;
            effects.touched.push(target);
        }
        Ok(effects)
    }

    fn exchange(
        &mut self,
        from: Place<'_>,
        source: u64,
        to: Place<'_>,
        target: u64,
        now: i64,
    ) -> Result<Effects, Errno> {
        let source_directory = u32::from(self.get(source)?.is_directory());
        let target_directory = u32::from(self.get(target)?.is_directory());
        if from.parent != to.parent {
            let gains = if source_directory > target_directory { Some(to.parent) } else { None };
            let gains = if target_directory > source_directory { Some(from.parent) } else { gains };
            if let Some(parent) = gains
                && self.get(parent)?.nlink >= self.max_links
            {
                return Err(Errno::EMLINK);
            }
        }
        self.change_entries(from.parent, now, |directory, nlink| {
            directory.set(from.name, target);
            *nlink = *nlink + target_directory - source_directory;
        });
        self.change_entries(to.parent, now, |directory, nlink| {
            directory.set(to.name, source);
            *nlink = *nlink + source_directory - target_directory;
        });
        let touched = vec![from.parent, to.parent, source, target];
        let mut effects = Effects { touched, ..Effects::default() };
        self.moved(source, to.parent, now, &mut effects)?;
        self.moved(target, from.parent, now, &mut effects)?;
        Ok(effects)
    }

    fn moved(&mut self, ino: u64, parent: u64, now: i64, effects: &mut Effects) -> Result<(), Errno> {
        let inode = self.get_mut(ino)?;
        inode.ctime = now;
        if let Body::Directory(directory) = &mut inode.body
            && directory.parent != parent
        {
            directory.parent = parent;
            effects.moved.push(ino);
        }
        Ok(())
    }

    /// True if a directory is `ancestor` or lies below it.
    fn is_within(&self, directory: u64, ancestor: u64) -> bool {
        let mut at = directory;
        loop {
            if at == ancestor {
                return true;
            }
            match self.directory(at) {
                Ok(directory) if at != ROOT_INO => at = directory.parent,
                _ => return false,
            }
        }
    }
}
