//! Handles of open files, and which pages of a file the kernel may have filled.
//!
//! [`Handles`] knows which inodes are open through the kernel's pages. For each inode it records
//! the pages that were read while a file was open with O_DIRECT. For a file with recalled pages
//! it also records the latest reads.
//!
//! # Concurrency
//! Session threads, and pollers that complete writes. One lock over the inodes, held briefly.
//! Reads take it only while a file is open with O_DIRECT, or if the file is contested.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use super::page_ranges::{PAGE, PageRanges};

/// Flag: opened with O_APPEND.
const APPEND: u64 = 1;
/// Flag: the kernel reads and writes around its pages.
const DIRECT: u64 = 2;
/// Flag: opened with O_DIRECT, but the kernel may cache pages of the file.
const O_DIRECT: u64 = 4;
/// Bit position of the number above the flags.
const NUMBER: u32 = 3;

/// Properties of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::fuse) struct HandleOptions {
    /// Opened with O_APPEND.
    pub(in crate::fuse) appends: bool,
    /// The kernel reads and writes around its pages (FOPEN_DIRECT_IO).
    pub(in crate::fuse) without_pages: bool,
    /// Opened with O_DIRECT.
    pub(in crate::fuse) o_direct: bool,
}

/// An open file, as the kernel names it in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Handle(pub(in crate::fuse) u64);

impl Handle {
    /// Returns true if the file was opened with O_APPEND.
    pub(in crate::fuse) fn is_for_append(self) -> bool {
        self.0 & APPEND != 0
    }

    /// Returns true if the file was opened with O_DIRECT, and the kernel may cache its pages.
    pub(in crate::fuse) fn is_o_direct(self) -> bool {
        self.0 & O_DIRECT != 0
    }

    /// Returns true if the kernel reads and writes around its pages.
    pub(in crate::fuse) fn is_without_pages(self) -> bool {
        self.0 & DIRECT != 0
    }
}

/// An inode that is open through the kernel's pages.
#[derive(Debug, Default)]
struct Cached {
    /// Number of open files.
    count: u32,
    /// Pages that were read while a file was open with O_DIRECT, and not dropped since.
    filled: PageRanges,
    /// Latest reads of a file whose pages the server recalls: the number of the request, and the
    /// range.
    latest_reads: VecDeque<(u64, (u64, u64))>,
}

/// Maximum number of reads in [`Cached::latest_reads`]. The kernel sends far fewer during one
/// write.
const MAX_LATEST_READS: usize = 1024;

/// The open files of a mount.
#[derive(Debug, Default)]
pub(in crate::fuse) struct Handles {
    last: AtomicU64,
    /// Inodes that are open through the kernel's pages.
    cached: Mutex<HashMap<u64, Cached>>,
    /// Number of files that are open with O_DIRECT. While it is 0, reads are not recorded.
    o_direct: AtomicUsize,
}

/// Numbers of handles that one process gives out, as a power of 2.
const PER_PROCESS: u32 = 40;

impl Handles {
    /// Continues with the open files of a previous process: the inode, the number of opens through
    /// pages, and how many of them have O_DIRECT set. `takeovers` processes have continued so far.
    pub(in crate::fuse) fn continue_from(&self, takeovers: u64, open: &[(u64, u64, u64)]) {
        self.last.store(takeovers << PER_PROCESS, Ordering::Relaxed);
        let mut cached = self.cached.lock();
        for &(ino, count, direct) in open {
            // A file has fewer opens.
            cached.entry(ino).or_default().count = u32::try_from(count).unwrap_or(u32::MAX);
            self.o_direct.fetch_add(direct as usize, Ordering::SeqCst);
            if direct > 0 {
                // Reads of the previous process are not known.
                cached.entry(ino).or_default().filled.add((0, u64::MAX));
            }
        }
    }

    /// Returns a handle that no other open file has had.
    pub(in crate::fuse) fn open(&self, ino: u64, options: HandleOptions) -> Handle {
        let HandleOptions { appends, without_pages, o_direct } = options;
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if !without_pages {
            self.cached.lock().entry(ino).or_default().count += 1;
        }
        let o_direct = o_direct && !without_pages;
        if o_direct {
            // Counted before the kernel learns of the file, and so before its first write.
            self.o_direct.fetch_add(1, Ordering::SeqCst);
        }
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(appends, APPEND) | flag(without_pages, DIRECT) | flag(o_direct, O_DIRECT);
        Handle(number << NUMBER | flags)
    }

    /// Returns a handle for an open directory.
    pub(in crate::fuse) fn open_directory(&self) -> Handle {
        Handle((self.last.fetch_add(1, Ordering::Relaxed) + 1) << NUMBER)
    }

    /// Records the last close of a file.
    pub(in crate::fuse) fn close(&self, ino: u64, handle: Handle) {
        if handle.0 & DIRECT != 0 {
            return;
        }
        if handle.0 & O_DIRECT != 0 {
            self.o_direct.fetch_sub(1, Ordering::SeqCst);
        }
        let mut cached = self.cached.lock();
        if let Some(open) = cached.get_mut(&ino) {
            open.count -= 1;
            if open.count == 0 {
                cached.remove(&ino);
            }
        }
    }

    /// Records that a range is about to be read into the kernel's pages.
    pub(in crate::fuse) fn record_page_fill(&self, ino: u64, range: (u64, u64)) {
        if self.o_direct.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(open) = self.cached.lock().get_mut(&ino) {
            open.filled.add(range);
        }
    }

    /// Records a write with O_DIRECT. Returns true if pages of the range have to be dropped before
    /// the write is answered.
    pub(in crate::fuse) fn record_direct_write(&self, ino: u64, handle: Handle, range: (u64, u64)) -> bool {
        if range.1 == 0 {
            return false;
        }
        // fcntl(2) may have set O_DIRECT later, so earlier reads are not recorded.
        let is_unrecorded = handle.0 & O_DIRECT == 0;
        match self.cached.lock().get_mut(&ino) {
            Some(open) => open.filled.take(range) || is_unrecorded,
            None => false,
        }
    }

    /// Records a read of a file whose pages the server recalls: the number of the request, and the
    /// range.
    pub(in crate::fuse) fn record_read(&self, ino: u64, unique: u64, range: (u64, u64)) {
        if let Some(open) = self.cached.lock().get_mut(&ino) {
            if open.latest_reads.len() == MAX_LATEST_READS {
                open.latest_reads.pop_front();
            }
            open.latest_reads.push_back((unique, range));
        }
    }

    /// Returns the pages that may lack the bytes of a write through the kernel's pages, as a range
    /// that covers them. These pages were dropped after the kernel had changed them, and read again
    /// after that. The kernel does not lock them for the write. `unique` is the number of the
    /// write.
    pub(in crate::fuse) fn overtaking_reads(
        &self,
        ino: u64,
        unique: u64,
        (from, len): (u64, u64),
    ) -> Option<(u64, u64)> {
        let cached = self.cached.lock();
        let end = from.saturating_add(len).next_multiple_of(PAGE);
        let from = from - from % PAGE;
        let later = cached.get(&ino)?.latest_reads.iter().filter(|(number, _)| *number > unique);
        let both = later.map(|(_, range)| (range.0.max(from), range.0.saturating_add(range.1).min(end)));
        let covered = both.filter(|(from, end)| from < end).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        Some((covered.0, covered.1 - covered.0))
    }

    /// Returns true if the inode is open through the kernel's pages.
    pub(in crate::fuse) fn are_cached(&self, ino: u64) -> bool {
        self.cached.lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_pages_are_not_cached() {
        let handles = Handles::default();
        let direct = handles.open(5, HandleOptions { appends: true, without_pages: true, o_direct: true });
        assert!(direct.is_for_append() && !handles.are_cached(5));
        let [one, two] = [(); 2].map(|()| handles.open(5, HandleOptions::default()));
        assert!(!one.is_for_append() && one != two && handles.are_cached(5) && !handles.are_cached(6));
        handles.close(5, one);
        handles.close(5, direct);
        assert!(handles.are_cached(5));
        handles.close(5, two);
        assert!(!handles.are_cached(5));
        // A handle that was never given out is ignored.
        handles.close(5, Handle(0));
        assert!(handles.cached.lock().is_empty());
    }

    #[test]
    fn pages_that_were_read_during_a_direct_write_are_dropped() {
        let handles = Handles::default();
        let cached = handles.open(5, HandleOptions::default());
        handles.record_page_fill(5, (0, 4096));
        let direct = handles.open(5, HandleOptions { o_direct: true, ..HandleOptions::default() });
        assert!(!handles.record_direct_write(5, direct, (0, 4096)), "the kernel dropped what it had before");
        handles.record_page_fill(5, (0, 4096));
        handles.record_page_fill(6, (0, 4096));
        assert!(!handles.record_direct_write(5, direct, (4096, 4096)));
        assert!(handles.record_direct_write(5, direct, (0, 512)));
        assert!(!handles.record_direct_write(5, direct, (0, 512)), "there is none any more");
        handles.close(5, direct);
        handles.record_page_fill(5, (0, 4096));
        // As if fcntl(2) had set O_DIRECT on it.
        assert!(handles.record_direct_write(5, cached, (8192, 512)), "what was read is not known");
        assert!(handles.record_direct_write(5, cached, (8192, 512)));
        handles.close(5, cached);
        assert!(!handles.record_direct_write(5, cached, (8192, 512)));
    }

    #[test]
    fn a_read_that_overtakes_a_write_is_found() {
        let handles = Handles::default();
        let file = handles.open(5, HandleOptions::default());
        handles.record_read(5, 8, (0, 4 * PAGE));
        assert_eq!(handles.overtaking_reads(5, 10, (100, 8)), None, "before the write");
        handles.record_read(5, 12, (PAGE, 4 * PAGE));
        handles.record_read(6, 14, (0, PAGE));
        assert_eq!(handles.overtaking_reads(5, 10, (100, 8)), None, "another page");
        assert_eq!(handles.overtaking_reads(5, 10, (100, 2 * PAGE)), Some((PAGE, 2 * PAGE)));
        assert_eq!(handles.overtaking_reads(5, 12, (100, 2 * PAGE)), None);
        (0..MAX_LATEST_READS as u64).for_each(|number| handles.record_read(5, 20 + number, (0, PAGE)));
        assert_eq!(handles.cached.lock()[&5].latest_reads.len(), MAX_LATEST_READS);
        handles.close(5, file);
        assert_eq!(handles.overtaking_reads(5, 10, (0, PAGE)), None);
    }
}
