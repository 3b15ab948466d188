//! The file size for a machine. No I/O, no locks, no clock.

pub use byte_size::{GIB, KIB, MIB, parse_nonzero, show};

use crate::{Error, Result};

/// IOzone's largest record.
pub const MAX_RECORD: u64 = 16 * MIB;

/// Returns the file size for a machine with `available` bytes of memory: an eighth of it, a power
/// of two, divided among the threads. It is at least 16 MiB, and at most 1 GiB, so that the default
/// run ends in minutes.
pub fn default_file_size(available: u64, threads: u32) -> u64 {
    let total = (available / 8).clamp(16 * MIB, GIB);
    let share = total / u64::from(threads.max(1));
    (1 << share.max(4 * MIB).ilog2()).min(GIB)
}

/// Returns the peak memory of one measurement. It has the file in the server (or in the null file
/// system) and in the client's page cache, and 256 MiB for the programs.
pub fn peak(file_size: u64, threads: u32) -> u64 {
    file_size.saturating_mul(2).saturating_mul(u64::from(threads)).saturating_add(256 * MIB)
}

/// Returns the memory for the server: the files, the slack of growing extents, and metadata.
pub fn server_memory(file_size: u64, threads: u32) -> u64 {
    let files = file_size.saturating_mul(u64::from(threads));
    (files.saturating_add(files / 4).saturating_add(64 * MIB)).next_multiple_of(MIB)
}

/// Returns an error for sizes that IOzone cannot run or this machine cannot hold.
pub fn check(file_size: u64, records: &[u64], threads: u32, available: u64) -> Result<()> {
    let usage = |text: String| Err(Error::Usage(text));
    if records.is_empty() {
        return usage("no record size given".into());
    }
    for &record in records {
        if !record.is_multiple_of(KIB) || record > MAX_RECORD {
            return usage(format!("record size {}: IOzone wants whole KiB up to 16 MiB", show(record)));
        }
        if !file_size.is_multiple_of(record) {
            let (file, record) = (show(file_size), show(record));
            return usage(format!("file size {file} is not a multiple of the record size {record}"));
        }
    }
    let peak = peak(file_size, threads);
    if peak > available {
        return usage(format!(
            "{} x {threads} needs {} of memory at its fullest, {} are available; give a smaller --file-size",
            show(file_size),
            show(peak),
            show(available)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_suits_the_machine() {
        assert_eq!(default_file_size(64 * GIB, 1), GIB);
        assert_eq!(default_file_size(8 * GIB, 1), GIB);
        assert_eq!(default_file_size(8 * GIB - 1, 1), 512 * MIB);
        assert_eq!(default_file_size(2 * GIB, 1), 256 * MIB);
        assert_eq!(default_file_size(2 * GIB, 4), 64 * MIB);
        assert_eq!(default_file_size(0, 1), 16 * MIB);
        assert_eq!(default_file_size(0, 64), 4 * MIB);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert!(check(GIB, &[4 * KIB, MIB], 1, 8 * GIB).is_ok());
        let err = check(4 * GIB, &[MIB], 1, 8 * GIB).unwrap_err().to_string();
        assert_eq!(
            err,
            "4 GiB x 1 needs 8.2 GiB of memory at its fullest, 8 GiB are available; give a smaller --file-size"
        );
        assert!(check(GIB, &[], 1, 8 * GIB).is_err());
        assert!(check(GIB, &[3 * KIB], 1, 8 * GIB).is_err());
        assert!(check(GIB, &[32 * MIB], 1, 8 * GIB).is_err());
        assert!(check(GIB, &[100], 1, 8 * GIB).is_err());
    }
}
