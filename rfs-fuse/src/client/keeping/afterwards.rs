//! What directories are after this client's own changes in them, as the replies to those said. Pure.
//!
//! A kernel asks for a directory's attributes after each change that it has made there. Where records are not mapped that is a round trip for each name, beside
//! that of the change; so the server sends the attributes along with the reply, if this client keeps them. They are as good as those that the kernel keeps: until
//! something of the directory is recalled, or this client changes it again. The time of last access is not: nobody is told of reads. So they answer the one question that
//! the kernel has after the change, and no other; and none once the directory has been read here.
//!
//! Two changes at once: neither knows which one the server saw first. So what came with one counts only if no other one of this client ended
//! meanwhile; one that ends later makes it void. A directory that is removed is not told which one it was: each removal makes all void.

use rfs_proto::Attr;
use rustc_hash::FxHashMap;

use super::Since;

/// Directories that are remembered.
const DIRECTORIES: usize = 64;

/// How many removals there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removals(u64);

#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    known: FxHashMap<u64, (Attr, Since)>,
    removals: Removals,
}

impl Afterwards {
    pub(crate) fn removals(&self) -> Removals {
        self.removals
    }

    /// Attributes of a directory, good until something of it happens after `since`, came with a change that began when there had been so many
    /// removals.
    pub(crate) fn came(&mut self, attr: Attr, since: Since, removals: Removals) {
        if removals != self.removals {
            return;
        }
        if self.known.len() == DIRECTORIES && !self.known.contains_key(&attr.ino) {
            self.known.clear();
        }
        self.known.insert(attr.ino, (attr, since));
    }

    /// What came last of a directory. It answers once.
    pub(crate) fn take(&mut self, ino: u64) -> Option<(Attr, Since)> {
        self.known.remove(&ino)
    }

    /// A directory has been removed, or may have been.
    pub(crate) fn removed(&mut self) {
        self.known.clear();
        self.removals.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Recalled, *};
    use crate::client::fake::new_attr;

    fn since() -> Since {
        let now = Recalled::default().now();
        Since { recalled: now, changed: now }
    }

    #[test]
    fn a_removal_voids_what_came_before_it_and_what_was_under_way() {
        let mut afterwards = Afterwards::default();
        let before = afterwards.removals();
        afterwards.came(new_attr(5, 0o755), since(), before);
        assert_eq!(afterwards.take(5), Some((new_attr(5, 0o755), since())));
        assert_eq!(afterwards.take(5), None, "it was for one question");
        afterwards.came(new_attr(5, 0o755), since(), before);
        afterwards.removed();
        assert_eq!(afterwards.take(5), None);
        afterwards.came(new_attr(5, 0o755), since(), before);
        assert_eq!(afterwards.take(5), None, "asked for before the removal");
        afterwards.came(new_attr(5, 0o700), since(), afterwards.removals());
        assert_eq!(afterwards.take(5), Some((new_attr(5, 0o700), since())));
    }

    #[test]
    fn so_many_are_remembered() {
        let mut afterwards = Afterwards::default();
        let mut came = |ino| {
            afterwards.came(new_attr(ino, 0o755), since(), Removals::default());
            afterwards.known.len()
        };
        assert_eq!((1..=DIRECTORIES as u64).map(&mut came).last(), Some(DIRECTORIES));
        assert_eq!(came(1), DIRECTORIES, "it is there already");
        assert_eq!(came(0), 1);
    }
}
