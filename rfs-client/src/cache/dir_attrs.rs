//! Directory attributes that came with the replies to this client's own changes. No I/O, no
//! locks, no clock.
//!
//! The kernel asks for a directory's attributes after each of its changes there. If records are
//! not mapped, that costs a round trip per name, so the server sends the attributes with the
//! reply. They are valid until a recall, or the next change here. They answer one query only, and
//! none after a read of the directory: reads are not recalled, so the access time may be old.
//!
//! The order of two concurrent changes is unknown. Attributes count only if no other change ended
//! meanwhile, and a later end voids them. The reply to a removal does not name the inode, so it
//! voids all.

use rfs_proto::Attr;
use rustc_hash::FxHashMap;

use crate::cache::recall_log::RequestTime;

/// Maximum number of remembered directories.
const MAX_DIRECTORIES: usize = 64;

/// Number of removals so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removals(u64);

#[derive(Debug, Default)]
pub(crate) struct ChangedDirAttrs {
    known: FxHashMap<u64, (Attr, RequestTime)>,
    removals: Removals,
}

impl ChangedDirAttrs {
    pub(crate) fn removals(&self) -> Removals {
        self.removals
    }

    /// Adds a directory's attributes, valid as of `since`. `removals` is the number at the begin of
    /// the change.
    pub(crate) fn came(&mut self, attr: Attr, since: RequestTime, removals: Removals) {
        if removals != self.removals {
            return;
        }
        if self.known.len() == MAX_DIRECTORIES && !self.known.contains_key(&attr.ino) {
            self.known.clear();
        }
        self.known.insert(attr.ino, (attr, since));
    }

    /// Takes the attributes of a directory. They answer one query.
    pub(crate) fn take(&mut self, ino: u64) -> Option<(Attr, RequestTime)> {
        self.known.remove(&ino)
    }

    /// Notes that a directory was removed, or may have been.
    pub(crate) fn removed(&mut self) {
        self.known.clear();
        self.removals.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{RecallLog, changes::name_removals::Answered};
    use crate::tests::fake::new_attr;

    fn since() -> RequestTime {
        let now = RecallLog::default().now();
        RequestTime { recalled: now, changed: now, answered: Answered::default() }
    }

    #[test]
    fn a_removal_voids_known_attributes_and_those_in_flight() {
        let mut dir_attrs = ChangedDirAttrs::default();
        let before = dir_attrs.removals();
        dir_attrs.came(new_attr(5, 0o755), since(), before);
        assert_eq!(dir_attrs.take(5), Some((new_attr(5, 0o755), since())));
        assert_eq!(dir_attrs.take(5), None, "it was for one question");
        dir_attrs.came(new_attr(5, 0o755), since(), before);
        dir_attrs.removed();
        assert_eq!(dir_attrs.take(5), None);
        dir_attrs.came(new_attr(5, 0o755), since(), before);
        assert_eq!(dir_attrs.take(5), None, "asked for before the removal");
        dir_attrs.came(new_attr(5, 0o700), since(), dir_attrs.removals());
        assert_eq!(dir_attrs.take(5), Some((new_attr(5, 0o700), since())));
    }

    #[test]
    fn the_number_of_remembered_directories_is_limited() {
        let mut dir_attrs = ChangedDirAttrs::default();
        let mut came = |ino| {
            dir_attrs.came(new_attr(ino, 0o755), since(), Removals::default());
            dir_attrs.known.len()
        };
        assert_eq!((1..=MAX_DIRECTORIES as u64).map(&mut came).last(), Some(MAX_DIRECTORIES));
        assert_eq!(came(1), MAX_DIRECTORIES, "it is there already");
        assert_eq!(came(0), 1);
    }
}
