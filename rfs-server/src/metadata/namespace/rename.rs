//! Rename with the rules of `renameat2`. All checks precede all changes.
//!
//! # Concurrency
//! None; an operation has exclusive access to its inodes.

use rfs_proto::{Errno, RenameFlags};
use seeded_faults::seeded;

use super::{
    Namespace,
    inode::{Body, New},
    inodes::InodesMut,
    names::{Effects, Place, check_name},
};

impl<I: InodesMut> Namespace<I> {
    /// Returns true if [`Namespace::rename`] will change something, false if both names have the
    /// same inode.
    ///
    /// # Errors
    /// The error that the rename would return.
    pub fn may_rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        leaves_something: bool,
    ) -> Result<bool, I::Stop> {
        Ok(self.ends(from, to, flags, leaves_something)?.is_some())
    }

    /// Renames an entry: replaces an existing entry, refuses to, or exchanges both, by `flags`.
    /// Makes the inode `left` at the old name, if given. Both directories were requested. The
    /// effects do not list the new inode, whose record does not exist yet.
    pub fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        left: Option<New<'_>>,
        now: i64,
    ) -> Result<Effects, I::Stop> {
        match self.ends(from, to, flags, left.is_some())? {
            None => Ok(Effects::default()),
            Some((source, Some(target))) if flags.contains(RenameFlags::EXCHANGE) => {
                Ok(self.exchange(from, source, to, target, now)?)
            }
            Some((source, target)) => self.replace((from, source), (to, target), left, now),
        }
    }

    /// Checks a rename. Returns the renamed inode and the inode at the new name; `None` if there is
    /// nothing to do.
    fn ends(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        leaves_something: bool,
    ) -> Result<Option<(u64, Option<u64>)>, I::Stop> {
        let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if flags.contains(both) || !both.contains(flags) || exchange && leaves_something {
            return Err(Errno::EINVAL.into());
        }
        for place in [from, to] {
            check_name(place.name)?;
            self.directory(place.parent)?;
            if matches!(place.name, b"." | b"..") {
                return Err(Errno::EBUSY.into());
            }
        }
        let source = self.lookup(from.parent, from.name)?;
        let target = self.probe(to.parent, to.name)?;
        let no_replace = flags.contains(RenameFlags::NOREPLACE) && !seeded!(NoReplaceIgnored);
        if target.is_some() && no_replace {
            return Err(Errno::EEXIST.into());
        }
        self.need(source)?;
        target.map_or(Ok(()), |target| self.need(target))?;
        if self.is_above(source, from.parent, to.parent)? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(target) = target
            && self.is_above(target, to.parent, from.parent)?
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
        }
        match target {
            None if exchange => return Err(Errno::ENOENT.into()),
            // Two names of one inode: POSIX says that nothing happens.
            Some(target) if target == source => return Ok(None),
            Some(target) if exchange => self.may_exchange((from, source), (to, target))?,
            _ => self.may_replace((from, source), (to, target))?,
        }
        if leaves_something {
            self.inodes.fresh()?;
        }
        Ok(Some((source, target)))
    }

    fn may_replace(
        &self,
        (from, source): (Place<'_>, u64),
        (to, target): (Place<'_>, Option<u64>),
    ) -> Result<(), Errno> {
        let moves_directory = self.get(source)?.is_directory();
        let mut loses_directory = false;
        if let Some(target) = target {
            match (moves_directory, self.get(target)?.directory()) {
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
        Ok(())
    }

    fn replace(
        &mut self,
        (from, source): (Place<'_>, u64),
        (to, target): (Place<'_>, Option<u64>),
        left: Option<New<'_>>,
        now: i64,
    ) -> Result<Effects, I::Stop> {
        let moved = u32::from(self.get(source)?.is_directory());
        // Target and source are of the same kind, as `may_replace` checked.
        let lost = if target.is_some() { moved } else { 0 };
        let made = match left {
            Some(new) => Some(self.make_inode(from.parent, new, now)?),
            None => None,
        };
        if from.parent == to.parent && made.is_none() {
            self.change_entries(from, now, |directory, nlink| {
                directory.rename(from.name, to.name);
                *nlink -= lost;
            });
            // The new name changed as well.
            self.change_entries(to, now, |_, _| {});
        } else {
            self.change_entries(from, now, |directory, nlink| {
                if made.is_none() || seeded!(WhiteoutMisplaced) {
                    directory.remove(from.name);
                }
                if let Some(ino) = made {
                    // The name exists all the time, so that a concurrent listing shows it once.
                    directory.set(from.name, ino);
                }
                *nlink -= moved;
            });
            self.change_entries(to, now, |directory, nlink| {
                directory.set(to.name, source);
                *nlink = *nlink + moved - lost;
            });
        }
        let touched = vec![from.parent, to.parent, source];
        let mut effects = Effects { touched, made, ..Effects::default() };
        self.moved(source, to.parent, now, &mut effects)?;
        if let Some(target) = target {
            effects.orphaned = self.lose_name(target, now)?;
            effects.touched.push(target);
        }
        Ok(effects)
    }

    fn may_exchange(
        &self,
        (from, source): (Place<'_>, u64),
        (to, target): (Place<'_>, u64),
    ) -> Result<(), Errno> {
        let gains = match (self.get(source)?.is_directory(), self.get(target)?.is_directory()) {
            _ if from.parent == to.parent => None,
            (true, false) => Some(to.parent),
            (false, true) => Some(from.parent),
            _ => None,
        };
        match gains {
            Some(parent) if self.get(parent)?.nlink >= self.max_links => Err(Errno::EMLINK),
            _ => Ok(()),
        }
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
        self.change_entries(from, now, |directory, nlink| {
            directory.set(from.name, target);
            *nlink = *nlink + target_directory - source_directory;
        });
        self.change_entries(to, now, |directory, nlink| {
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
            && !seeded!(DotDotKept)
        {
            directory.parent = parent;
            effects.moved.push(ino);
        }
        Ok(())
    }

    /// Returns true if an inode with a name in directory `own` is an ancestor of `other` or `other`
    /// itself. Only a directory with another parent than `other` can be one.
    fn is_above(&mut self, ino: u64, own: u64, other: u64) -> Result<bool, I::Stop> {
        Ok(own != other && self.get(ino)?.is_directory() && self.inodes.is_within(other, ino)?)
    }
}
