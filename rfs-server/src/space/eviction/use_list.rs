//! Doubly linked lists of numbers, in a vector of links. No I/O, no locks, no clock.
//!
//! Each number is in one list at most. All operations but [`UseLists::iter`] take constant time.
//! Memory is twelve bytes for each number up to the highest that was ever in a list.
//!
//! # Concurrency
//! None; the caller holds a lock.

/// Marks the end of a list.
const END: u32 = u32::MAX;

/// One of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListName {
    /// Files that may go, the least recently used first.
    Unused,
    /// Files that stay because they are pinned.
    Pinned,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    list: Option<ListName>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
    len: u64,
}

/// The lists.
#[derive(Debug)]
pub(super) struct UseLists {
    links: Vec<Link>,
    unused: Ends,
    pinned: Ends,
}

impl Default for UseLists {
    fn default() -> UseLists {
        let empty = Ends { first: END, last: END, len: 0 };
        UseLists { links: Vec::new(), unused: empty, pinned: empty }
    }
}

impl UseLists {
    /// Returns the list that a number is in.
    pub(super) fn list_of(&self, number: u32) -> Option<ListName> {
        self.links.get(number as usize)?.list
    }

    /// Returns the first number of a list.
    pub(super) fn first(&self, list: ListName) -> Option<u32> {
        Some(self.ends(list).first).filter(|&first| first != END)
    }

    /// Returns the length of a list.
    pub(super) fn len(&self, list: ListName) -> u64 {
        self.ends(list).len
    }

    /// Moves a number to the end of a list.
    pub(super) fn push_last(&mut self, list: ListName, number: u32) {
        self.remove(number);
        let last = self.ends(list).last;
        self.link(list, number, (last, END));
    }

    /// Moves a number to the beginning of a list.
    pub(super) fn push_first(&mut self, list: ListName, number: u32) {
        self.remove(number);
        let first = self.ends(list).first;
        self.link(list, number, (END, first));
    }

    /// Takes a number out of its list. Returns false if it was in none.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let Some(link) = self.links.get_mut(number as usize) else { return false };
        let Some(list) = link.list.take() else { return false };
        let Link { before, after, .. } = *link;
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = after,
            None => self.ends_mut(list).first = after,
        }
        match self.links.get_mut(after as usize) {
            Some(link) => link.before = before,
            None => self.ends_mut(list).last = before,
        }
        self.ends_mut(list).len -= 1;
        true
    }

    /// Returns the numbers of a list, in order.
    pub(super) fn iter(&self, list: ListName) -> impl Iterator<Item = u32> + '_ {
        let next = |number: u32| self.links.get(number as usize).map(|link| link.after);
        std::iter::successors(self.first(list), move |&number| next(number).filter(|&after| after != END))
    }

    fn link(&mut self, list: ListName, number: u32, (before, after): (u32, u32)) {
        let at = number as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, Link { before: END, after: END, list: None });
        }
        self.links[at] = Link { before, after, list: Some(list) };
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = number,
            None => self.ends_mut(list).first = number,
        }
        match self.links.get_mut(after as usize) {
            Some(link) => link.before = number,
            None => self.ends_mut(list).last = number,
        }
        self.ends_mut(list).len += 1;
    }

    fn ends(&self, list: ListName) -> &Ends {
        match list {
            ListName::Unused => &self.unused,
            ListName::Pinned => &self.pinned,
        }
    }

    fn ends_mut(&mut self, list: ListName) -> &mut Ends {
        match list {
            ListName::Unused => &mut self.unused,
            ListName::Pinned => &mut self.pinned,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LISTS: [ListName; 2] = [ListName::Unused, ListName::Pinned];

    proptest! {
        /// The lists agree with two vectors.
        #[test]
        fn agrees_with_vectors(steps in proptest::collection::vec((0..3u8, 0..2usize, 0..12u32), 1..120)) {
            let mut lists = UseLists::default();
            let mut model: [Vec<u32>; 2] = Default::default();
            for (kind, list, number) in steps {
                let there = model.iter().any(|list| list.contains(&number));
                model.iter_mut().for_each(|list| list.retain(|&other| other != number));
                match kind {
                    0 => {
                        lists.push_last(LISTS[list], number);
                        model[list].push(number);
                    }
                    1 => {
                        lists.push_first(LISTS[list], number);
                        model[list].insert(0, number);
                    }
                    _ => prop_assert_eq!(lists.remove(number), there),
                }
                for (name, model) in LISTS.into_iter().zip(&model) {
                    prop_assert_eq!(&lists.iter(name).collect::<Vec<_>>(), model);
                    prop_assert_eq!(lists.first(name), model.first().copied());
                    prop_assert_eq!(lists.len(name), model.len() as u64);
                    for number in model {
                        prop_assert_eq!(lists.list_of(*number), Some(name));
                    }
                }
            }
        }
    }
}
