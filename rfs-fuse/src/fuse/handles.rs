//! The numbers of open files, and which files are open in a way that has the kernel keep pages of them.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Opened with O_APPEND.
const APPEND: u64 = 1;
/// Opened so that the kernel reads and writes around its pages.
const DIRECT: u64 = 2;
/// The number proper begins here.
const NUMBER: u32 = 2;

/// An open file as the kernel names it in its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) u64);

impl Handle {
    /// True if it was opened with O_APPEND.
    pub(super) fn is_for_append(self) -> bool {
        self.0 & APPEND != 0
    }
}

/// All open files.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: AtomicU64,
    /// How often each inode is open through the kernel's pages.
    cached: Mutex<HashMap<u64, u32>>,
}

impl Handles {
    /// A number that no other open file has had.
    pub(super) fn open(&self, ino: u64, append: bool, direct: bool) -> Handle {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if !direct {
            *self.cached.lock().entry(ino).or_default() += 1;
        }
        Handle(number << NUMBER | if append { APPEND } else { 0 } | if direct { DIRECT } else { 0 })
    }

    /// A number for an open directory.
    pub(super) fn open_directory(&self) -> Handle {
        Handle((self.last.fetch_add(1, Ordering::Relaxed) + 1) << NUMBER)
    }

    /// The file is closed for good.
    pub(super) fn close(&self, ino: u64, handle: Handle) {
        if handle.0 & DIRECT != 0 {
            return;
        }
        let mut cached = self.cached.lock();
        if let Some(count) = cached.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                cached.remove(&ino);
            }
        }
    }

    /// True if somebody has the inode open through the kernel's pages.
    pub(super) fn are_cached(&self, ino: u64) -> bool {
        self.cached.lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_ones_keep_no_pages() {
        let handles = Handles::default();
        let direct = handles.open(5, true, true);
        assert!(direct.is_for_append() && !handles.are_cached(5));
        let (one, two) = (handles.open(5, false, false), handles.open(5, false, false));
        assert!(!one.is_for_append() && one != two && handles.are_cached(5) && !handles.are_cached(6));
        handles.close(5, one);
        handles.close(5, direct);
        assert!(handles.are_cached(5));
        handles.close(5, two);
        assert!(!handles.are_cached(5));
        // A number that was never given out harms nobody.
        handles.close(5, Handle(0));
        assert!(handles.cached.lock().is_empty());
    }
}
