//! The table of descriptors that the library knows.
//!
//! Several descriptors may have one entry, as after `dup`. A descriptor without an entry is the
//! kernel's alone.
//!
//! # Concurrency
//! Any thread. A look-up takes no lock, and neither allocates nor writes memory of other threads.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use arc_swap::{ArcSwapOption, Guard};

use crate::next::DESCRIPTORS;

/// Descriptors of one chunk.
const CHUNK: usize = 256;

type Chunk<T> = Box<[ArcSwapOption<T>]>;

/// A table from descriptors to entries.
pub(crate) struct Table<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table { chunks: (0..DESCRIPTORS / CHUNK).map(|_| OnceLock::new()).collect() }
    }

    fn slot(&self, fd: i32) -> Option<&ArcSwapOption<T>> {
        let fd = usize::try_from(fd).ok()?;
        self.chunks.get(fd / CHUNK)?.get()?.get(fd % CHUNK)
    }

    /// Returns the entry of a descriptor. It stays valid while the guard lives.
    #[inline]
    pub(crate) fn find(&self, fd: i32) -> Option<Guard<Option<Arc<T>>>> {
        let entry = self.slot(fd)?.load();
        entry.is_some().then_some(entry)
    }

    /// Returns the entry of a descriptor, to keep it.
    pub(crate) fn get(&self, fd: i32) -> Option<Arc<T>> {
        self.slot(fd)?.load_full()
    }

    /// Sets the entry of a descriptor. Returns the earlier one.
    pub(crate) fn set(&self, fd: i32, entry: Arc<T>) -> Option<Arc<T>> {
        let at = usize::try_from(fd).ok().filter(|at| *at < DESCRIPTORS)?;
        let chunk = self.chunks[at / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| ArcSwapOption::const_empty()).collect());
        chunk[at % CHUNK].swap(Some(entry))
    }

    /// Removes the entry of a descriptor, and returns it.
    pub(crate) fn remove(&self, fd: i32) -> Option<Arc<T>> {
        self.slot(fd)?.swap(None)
    }

    /// Removes the entry of a descriptor if it still is `entry`. Returns true if it was.
    pub(crate) fn remove_entry(&self, fd: i32, entry: &Arc<T>) -> bool {
        let Some(slot) = self.slot(fd) else { return false };
        let before = slot.compare_and_swap(entry, None);
        before.as_ref().is_some_and(|before| Arc::ptr_eq(before, entry))
    }

    /// Returns the entries of a range of descriptors.
    pub(crate) fn entries(&self, fds: Range<usize>) -> Vec<(i32, Arc<T>)> {
        let mut found = Vec::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk.get() else { continue };
            for (at, slot) in chunk.iter().enumerate() {
                let fd = number * CHUNK + at;
                if fds.contains(&fd)
                    && let Some(entry) = slot.load_full()
                {
                    found.push((fd as i32, entry));
                }
            }
        }
        found
    }

    /// Returns all entries.
    pub(crate) fn all(&self) -> Vec<(i32, Arc<T>)> {
        self.entries(0..DESCRIPTORS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Set(i32, u32),
        Copy(i32, i32),
        Remove(i32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let fd = || prop_oneof![0..4_i32, 254..258_i32, Just(65_535)];
        let step = prop_oneof![
            (fd(), any::<u32>()).prop_map(|(fd, value)| Step::Set(fd, value)),
            (fd(), fd()).prop_map(|(from, to)| Step::Copy(from, to)),
            fd().prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(steps in steps()) {
            let (table, mut model) = (Table::new(), HashMap::new());
            for step in steps {
                match step {
                    Step::Set(fd, value) => {
                        table.set(fd, Arc::new(value));
                        model.insert(fd, value);
                    }
                    Step::Copy(from, to) => {
                        if let Some(entry) = table.get(from) {
                            table.set(to, entry);
                            model.insert(to, model[&from]);
                        }
                    }
                    Step::Remove(fd) => {
                        prop_assert_eq!(table.remove(fd).map(|entry| *entry), model.remove(&fd));
                    }
                }
            }
            let mut all: Vec<(i32, u32)> = table.all().iter().map(|(fd, entry)| (*fd, **entry)).collect();
            let mut expected: Vec<(i32, u32)> = model.into_iter().collect();
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn descriptors_outside_the_table_have_no_entry() {
        let table = Table::new();
        for fd in [-1, DESCRIPTORS as i32, i32::MAX] {
            assert!(table.set(fd, Arc::new(1)).is_none());
            assert!(table.find(fd).is_none() && table.remove(fd).is_none());
        }
    }

    #[test]
    fn an_entry_is_removed_only_if_it_is_the_same() {
        let table = Table::new();
        let (first, second) = (Arc::new(1), Arc::new(1));
        table.set(3, Arc::clone(&first));
        assert!(!table.remove_entry(3, &second) && table.find(3).is_some());
        assert!(table.remove_entry(3, &first) && table.find(3).is_none());
    }
}
