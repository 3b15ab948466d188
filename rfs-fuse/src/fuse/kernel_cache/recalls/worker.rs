//! The workers: each takes a job from the queue, and has the kernel drop its object.
//!
//! # Concurrency
//! Up to `WORKERS` threads. A worker takes the lock of the queue to find a job, and holds no lock
//! while it notifies the kernel.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use rfs_proto::{FileKind, Recall};

use super::{
    job::Job,
    queue::{SecondDrop, Shared},
};
use crate::fuse::kernel::Part;

/// Pause between attempts to drop an inode that the kernel does not know yet, and between looks at
/// releases.
const PAUSE: Duration = Duration::from_micros(50);
/// Time limit for these attempts: far longer than the kernel takes to read a reply.
const READS_REPLIES: Duration = Duration::from_secs(1);
/// The same time from the start of this process, for inodes that only a previous process has named.
/// Its last replies were sent before this process began.
const READS_PREVIOUS_REPLIES: Duration = Duration::from_millis(200);
/// Time limit for the releases of locks.
const RELEASES_LOCKS: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) fn work(&self) {
        while let Some(job) = self.next() {
            match &job.recall {
                Recall::Name { parent, name } if job.expires && self.kernel.expires_names() => {
                    if let Err(e) = self.kernel.expire_name(*parent, name) {
                        log::warn!("cannot expire a renamed name in inode {parent}: {e}");
                    }
                }
                recall => self.drop(recall),
            }
            if job.returns_names
                && let Some(ino) = job.recall.inode()
                && let Err(e) = self.client.recalls.return_names(ino)
            {
                log::debug!("the names of directory {ino} are recalled one by one: {e}");
            }
            job.mark_dropped(&self.late);
            self.client.caching.changes().look_again();
        }
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            let due = queue.second_drops.front().map(|(when, _)| *when);
            if due.is_some_and(|when| when <= Instant::now())
                && let Some((_, what)) = queue.second_drops.pop_front()
            {
                drop(queue);
                let outcome = match &what {
                    SecondDrop::NamesOf(ino) => self.expire_names(*ino),
                    SecondDrop::NamesIn(dir, names) => self.expire(*dir, names),
                    SecondDrop::Inode(ino, part) => self.kernel.drop_inode(*ino, *part).map(drop),
                };
                if let Err(e) = outcome {
                    log::debug!("cannot drop what was recalled again: {e}");
                }
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            match due {
                Some(when) => drop(self.work.wait_until(&mut queue, when)),
                None => self.work.wait(&mut queue),
            }
            queue.idle -= 1;
        }
    }

    fn drop(&self, recall: &Recall) {
        let outcome = match recall {
            // The directory's attributes and listing go first, and even if the kernel does not know
            // the name. Dropping the name may wait for a change of the directory.
            Recall::Name { parent, name } => self
                .drop_inode(*parent, Part::PagesFrom(0))
                .and_then(|()| self.kernel.drop_name(*parent, name).map(drop)),
            Recall::Attr { ino } => self.drop_inode(*ino, Part::Attributes),
            Recall::Owner { ino } => {
                let outcome = self.drop_inode(*ino, Part::Attributes).and_then(|()| self.expire_names(*ino));
                self.drop_again(SecondDrop::NamesOf(*ino));
                outcome
            }
            Recall::Names { ino } => {
                self.drop_inode(*ino, Part::PagesFrom(0)).and_then(|()| self.drop_names(*ino))
            }
            Recall::Pages { ino } | Recall::Written { ino } => self.drop_inode(*ino, Part::PagesFrom(0)),
            Recall::Locks { ino } => {
                self.await_releases(*ino);
                Ok(())
            }
            // The client recalls each inode of `All` separately.
            Recall::Layout { .. } | Recall::All => Ok(()),
            Recall::Unlinked { ino } => self.drop_all_names(*ino),
        };
        if let Err(e) = outcome {
            log::warn!("cannot drop what was recalled ({recall:?}): {e}");
        }
    }

    /// Waits until the locks of a file are released, if its last close has returned.
    fn await_releases(&self, ino: u64) {
        if !self.client.locks.may_be_closed(ino) {
            return;
        }
        if !self.kernel.barrier().pass() {
            log::debug!("cannot wait for queued releases of inode {ino}");
        }
        let give_up = Instant::now() + RELEASES_LOCKS;
        while self.client.locks.is_unlocking(ino)
            && !self.stopping.load(Ordering::Relaxed)
            && Instant::now() < give_up
        {
            thread::sleep(PAUSE);
        }
    }

    /// Expires all names in a directory that the kernel may know, also absent names.
    fn drop_names(&self, dir: u64) -> io::Result<()> {
        let names = self.client.caching.names_in(dir);
        if names.is_empty() || !self.kernel.expires_names() {
            return Ok(());
        }
        let outcome = self.expire(dir, &names);
        if outcome.is_ok() {
            names.iter().for_each(|name| self.client.caching.dropped_name(dir, name));
        }
        self.drop_again(SecondDrop::NamesIn(dir, names));
        outcome
    }

    fn expire(&self, dir: u64, names: &[Arc<[u8]>]) -> io::Result<()> {
        names.iter().try_for_each(|name| self.kernel.expire_name(dir, name).map(drop))
    }

    /// Has the kernel drop all names of an unlinked inode. The kernel then forgets the inode unless
    /// a process uses it.
    fn drop_all_names(&self, ino: u64) -> io::Result<()> {
        let drop_name = |(parent, name): (u64, Arc<[u8]>)| self.kernel.drop_name(parent, &name).map(drop);
        self.client.caching.known_names(ino).try_for_each(drop_name)
    }

    /// Expires the names of an inode. Fresh attributes alone do not suffice: only `stat` asks for
    /// them, and permission checks do not.
    fn expire_names(&self, ino: u64) -> io::Result<()> {
        let (mut expired, mut outcome) = (HashSet::new(), Ok(()));
        loop {
            // While this waits for a directory, a rename may give the inode a new name.
            let new: Vec<_> =
                self.client.caching.known_names(ino).filter(|alias| !expired.contains(alias)).collect();
            if new.is_empty() {
                return outcome;
            }
            let expires = self.kernel.expires_names();
            let may_drop =
                || self.client.attributes.getattr(ino).is_ok_and(|attr| attr.kind != FileKind::Directory);
            for (parent, name) in &new {
                let told = match expires {
                    true => self.kernel.expire_name(*parent, name),
                    false if may_drop() => self.kernel.drop_name(*parent, name),
                    false => continue,
                };
                // A failure does not stop the others.
                outcome = outcome.and(told.map(drop));
            }
            expired.extend(new);
        }
    }

    /// Has the kernel drop a part of an inode. Retries while the kernel may not have read the reply
    /// yet that names the inode.
    fn drop_inode(&self, ino: u64, part: Part) -> io::Result<()> {
        let begin = Instant::now();
        while !self.kernel.drop_inode(ino, part)? {
            let is_named = self.client.lookups.has_named(ino);
            let give_up = match is_named {
                Some(true) => begin + READS_REPLIES,
                // The kernel has perhaps forgotten it, and told a process that was killed.
                Some(false) => self.began + READS_PREVIOUS_REPLIES,
                None => break,
            };
            if self.stopping.load(Ordering::Relaxed) {
                break;
            }
            if Instant::now() >= give_up {
                if is_named == Some(false) {
                    self.drop_again(SecondDrop::Inode(ino, part));
                }
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}
