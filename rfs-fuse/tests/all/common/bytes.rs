//! Expected bytes of a file, and operations on both.

use std::fs::File;

use rustix::{fs::copy_file_range, io::Errno};

/// Writes to the expected bytes. An empty write does not extend the file.
pub(crate) fn put(expected: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if expected.len() < at + bytes.len() {
        expected.resize(at + bytes.len(), 0);
    }
    expected[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Copies a range within a file and within the expected bytes.
pub(crate) fn copy_within(file: &File, expected: &mut Vec<u8>, (from, to): (u64, u64), len: u64) {
    let (size, source, target) = (expected.len(), from as usize, to as usize);
    match copy_file_range(file, Some(&mut { from }), file, Some(&mut { to }), len as usize) {
        Ok(count) => {
            assert_eq!(count, (len as usize).min(size - source));
            let bytes = expected[source..source + count].to_vec();
            put(expected, target, &bytes);
        }
        // The ranges overlap or are empty.
        Err(e) => assert_eq!(e, Errno::INVAL),
    }
}
