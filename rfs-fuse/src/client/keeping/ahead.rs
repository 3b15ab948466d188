//! Names that were asked for before anybody wanted them. Pure.
//!
//! Who looks at the names of a directory one after the other, in the directory's order, is given those that follow with one of
//! them. Every look asks for one more; if that is what is looked at next, many are asked for. An
//! entry is handed out once, and goes when it is recalled or when this client changes it.

use std::collections::HashMap;

use rfs_proto::Attr;

/// Entries kept, at most.
const ENTRIES: usize = 8192;
/// Asked for with a name, to learn in which order names are looked at.
const FEW: u32 = 2;
/// Asked for where they are.
const MANY: u32 = 128;

type Name = Box<[u8]>;

/// What was asked for ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    by_name: HashMap<(u64, Name), Attr>,
    by_ino: HashMap<u64, (u64, Name)>,
    /// The directory that was looked into last, and what was last there of all that came with a look.
    last: Option<(u64, Option<Name>)>,
    in_order: bool,
}

impl Ahead {
    /// How many entries are to come with a name that is about to be asked for; 0: only the name.
    pub(crate) fn wanted(&mut self, dir: u64) -> u32 {
        match &self.last {
            Some((last, _)) if *last != dir => {
                // A path is being walked.
                (self.last, self.in_order) = (Some((dir, None)), false);
                0
            }
            None => {
                self.last = Some((dir, None));
                0
            }
            Some(_) if std::mem::take(&mut self.in_order) => MANY,
            Some(_) => FEW,
        }
    }

    /// Entries that came behind a name, with which this client has nothing to do yet.
    pub(crate) fn came(&mut self, dir: u64, entries: impl Iterator<Item = (Name, Attr)>) {
        let mut following = None;
        for (name, attr) in entries {
            if self.by_name.len() >= ENTRIES {
                self.by_name.clear();
                self.by_ino.clear();
            }
            self.of_inode(attr.ino);
            self.of_name(dir, &name);
            following = Some(name.clone());
            self.by_ino.insert(attr.ino, (dir, name.clone()));
            self.by_name.insert((dir, name), attr);
        }
        self.last = Some((dir, following));
    }

    /// Hands a name's attributes out.
    pub(crate) fn take(&mut self, dir: u64, name: &[u8]) -> Option<Attr> {
        let attr = self.of_name(dir, name)?;
        // The last of those that came: the next look asks for more.
        if let Some((last, following)) = &self.last
            && (*last, following.as_deref()) == (dir, Some(name))
        {
            self.in_order = true;
        }
        Some(attr)
    }

    /// A name is not what it was.
    pub(crate) fn of_name(&mut self, dir: u64, name: &[u8]) -> Option<Attr> {
        if self.by_name.is_empty() {
            return None;
        }
        let attr = self.by_name.remove(&(dir, Name::from(name)))?;
        self.by_ino.remove(&attr.ino);
        Some(attr)
    }

    /// An inode is not what it was, or is known in another way.
    pub(crate) fn of_inode(&mut self, ino: u64) {
        if self.by_ino.is_empty() {
            return;
        }
        if let Some(at) = self.by_ino.remove(&ino) {
            self.by_name.remove(&at);
        }
    }

    /// All names of all directories.
    pub(crate) fn forget_all(&mut self) {
        self.by_name.clear();
        self.by_ino.clear();
    }

    /// All names of a directory.
    pub(crate) fn of_directory(&mut self, dir: u64) {
        self.by_name.retain(|(parent, _), _| *parent != dir);
        self.by_ino.retain(|_, (parent, _)| *parent != dir);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rfs_proto::Marks;

    use super::*;
    use crate::client::fake::new_attr;

    fn attr(ino: u64) -> Attr {
        Attr { marks: Marks::KEEP, ..new_attr(ino, 0) }
    }

    fn name(i: u64) -> Name {
        i.to_string().into_bytes().into()
    }

    /// Looks a name up in a directory of `names`; how many calls that is.
    fn look(ahead: &mut Ahead, dir: u64, names: u64, i: u64) -> u64 {
        if let Some(found) = ahead.take(dir, &name(i)) {
            assert_eq!(found.ino, i);
            return 0;
        }
        let wanted = u64::from(ahead.wanted(dir));
        if wanted > 0 {
            let entries = (i + 1..names.min(i + wanted)).map(|i| (name(i), attr(i)));
            ahead.came(dir, entries);
        }
        1
    }

    #[test]
    fn in_order_a_call_brings_many() {
        let mut ahead = Ahead::default();
        let calls: u64 = (0..10_000).map(|i| look(&mut ahead, 1, 10_000, i)).sum();
        assert!(calls <= 10_000 / u64::from(MANY) + 4, "{calls}");
    }

    #[test]
    fn out_of_order_it_brings_few() {
        let mut ahead = Ahead::default();
        let looked: Vec<u64> = (0..1000).map(|i| i * 7919 % 1000).collect();
        let calls: u64 = looked.iter().map(|i| look(&mut ahead, 1, 1000, *i)).sum();
        assert!(calls >= 1000 / u64::from(FEW), "{calls}");
        assert!(ahead.by_name.len() < 1000);
    }

    #[test]
    fn a_path_brings_nothing() {
        let mut ahead = Ahead::default();
        for dir in 1..20 {
            assert_eq!(ahead.wanted(dir), 0);
        }
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut ahead = Ahead::default();
        for dir in 0..100 {
            ahead.came(dir, (0..1000).map(|i| (name(i), attr(dir * 1000 + i))));
            assert!(ahead.by_name.len() <= ENTRIES && ahead.by_ino.len() == ahead.by_name.len());
        }
    }

    proptest! {
        /// Both maps say the same, and what is not what it was is never handed out.
        #[test]
        fn nothing_old_is_handed_out(steps in prop::collection::vec((0..5_u8, 0..3_u64, 0..6_u64), 0..60)) {
            let mut ahead = Ahead::default();
            let mut kept: HashMap<(u64, u64), u64> = HashMap::new();
            for (step, dir, i) in steps {
                match step {
                    0 => {
                        let ino = dir * 100 + i;
                        ahead.came(dir, std::iter::once((name(i), attr(ino))));
                        kept.retain(|_, at| *at != ino);
                        kept.insert((dir, i), ino);
                    }
                    1 => prop_assert_eq!(ahead.take(dir, &name(i)).map(|attr| attr.ino), kept.remove(&(dir, i))),
                    2 => {
                        ahead.of_name(dir, &name(i));
                        kept.remove(&(dir, i));
                    }
                    3 => {
                        ahead.of_inode(dir * 100 + i);
                        kept.retain(|_, at| *at != dir * 100 + i);
                    }
                    _ => {
                        ahead.of_directory(dir);
                        kept.retain(|(parent, _), _| *parent != dir);
                    }
                }
                prop_assert_eq!(ahead.by_name.len(), kept.len());
                prop_assert_eq!(ahead.by_ino.len(), kept.len());
            }
        }
    }
}
