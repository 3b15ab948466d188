//! Keeps bytes of files out of core dumps.
//!
//! fuser reads requests into one buffer for each session thread, on the heap. A core dump would
//! contain the last data of each thread. The pages with data leave the dump when data arrives
//! there first. Neighbours on these pages leave it, too, which harms no analysis.
//!
//! # Concurrency
//! Session threads. No locks: each thread has its own buffer.

use std::cell::Cell;

use rustix::{
    mm::{Advice, madvise},
    param::page_size,
};

thread_local! {
    /// Addresses of the pages of the calling thread that are not dumped: the first, and the end.
    static EXCLUDED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Excludes the memory of `data` from core dumps. `data` lies in the buffer of the calling thread.
pub(super) fn exclude(data: &[u8]) {
    let (page, start) = (page_size(), data.as_ptr().addr());
    let (first, end) = (start - start % page, (start + data.len()).next_multiple_of(page));
    let (from, to) = EXCLUDED.get();
    if data.is_empty() || from <= first && end <= to {
        return;
    }
    let pages = data.as_ptr().with_addr(first).cast_mut().cast();
    // A kernel that refuses the advice dumps the memory. SAFETY: `data` is mapped, and so are the
    // whole pages around it. The advice changes no contents.
    if unsafe { madvise(pages, end - first, Advice::LinuxDontDump) }.is_ok() {
        let is_next = first <= to && from <= end;
        EXCLUDED.set(if is_next { (from.min(first), to.max(end)) } else { (first, end) });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the kernel's flags of the mapping that contains an address.
    fn flags(address: usize) -> String {
        let maps = fs::read_to_string("/proc/self/smaps").expect("procfs");
        let (mut is_it, mut flags) = (false, String::new());
        for line in maps.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            if let Some((start, end)) = first.split_once('-') {
                let [start, end] = [start, end].map(|digits| usize::from_str_radix(digits, 16).unwrap_or(0));
                is_it = (start..end).contains(&address);
            } else if is_it && let Some(found) = line.strip_prefix("VmFlags: ") {
                flags = found.to_owned();
            }
        }
        flags
    }

    #[test]
    fn pages_with_data_are_not_dumped() {
        let buffer = vec![1_u8; 1 << 20];
        let is_excluded = |at: usize| flags(buffer[at..].as_ptr().addr()).contains("dd");
        exclude(&[]);
        exclude(&buffer[100..200]);
        assert!(is_excluded(150) && !is_excluded(1 << 19));
        // Longer data at the same place, and shorter data again.
        exclude(&buffer[100..300_000]);
        exclude(&buffer[100..200]);
        assert!(is_excluded(299_999) && !is_excluded(1 << 19));
        // Another buffer.
        exclude(&buffer[600_000..600_001]);
        assert!(is_excluded(600_000) && is_excluded(150) && !is_excluded(1 << 19));
    }
}
