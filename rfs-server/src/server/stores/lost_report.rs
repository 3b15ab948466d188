//! The report about files whose data is lost with a store.
//!
//! # Concurrency
//! Plain functions.

use pool::StoreId;
use rdmabox::Address;

use crate::dispatch::{LostFile, LostFiles};

/// Files that the log lists.
const MAX_LOGGED: usize = 20;

/// Logs which files have lost data.
pub(super) fn report_lost(store: StoreId, address: &Address, files: &LostFiles) {
    lines(store, address, files).iter().for_each(|line| log::error!("{line}"));
}

/// Returns the lines of the report.
fn lines(store: StoreId, address: &Address, LostFiles { files, bytes, listed }: &LostFiles) -> Vec<String> {
    if *files == 0 {
        return vec![format!("{store} at {address}: no file had data there")];
    }
    let of = if *files == 1 { "1 file has".into() } else { format!("{files} files have") };
    let size = byte_size::show(*bytes);
    let mut lines = vec![format!(
        "{store} at {address}: {of} lost {size} there: reads of that data give EIO until the files are \
         truncated or removed"
    )];
    lines.extend(listed.iter().take(MAX_LOGGED).map(line));
    if *files > MAX_LOGGED as u64 {
        let more = files - MAX_LOGGED as u64;
        lines.push(format!("{store}: and {more} more files: rfs-server pool status --json lists them"));
    }
    lines
}

fn line(LostFile { ino, bytes, path }: &LostFile) -> String {
    let size = byte_size::show(*bytes);
    match path {
        // Names may have bytes that a terminal would obey.
        Some(path) => format!("lost: {size} of {}, inode {ino}", path.escape_ascii()),
        None => format!("lost: {size} of a file without a name, inode {ino}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(count: u64) -> Vec<String> {
        let file = |ino| LostFile { ino, bytes: 4096, path: (ino != 7).then(|| b"/a\x1b".to_vec()) };
        let files = LostFiles { files: count, bytes: count * 4096, listed: (1..=count).map(file).collect() };
        lines(StoreId(2), &Address::Unix("/s".into()), &files)
    }

    #[test]
    fn a_report_names_each_file_up_to_a_bound() {
        assert_eq!(report(0), ["store 2 at unix:/s: no file had data there"]);
        let lines = report(1);
        assert!(lines[0].starts_with("store 2 at unix:/s: 1 file has lost 4 KiB there"), "{lines:?}");
        assert_eq!(lines[1..], ["lost: 4 KiB of /a\\x1b, inode 1"]);
        let lines = report(50);
        assert_eq!(lines.len(), 22);
        assert_eq!(lines[7], "lost: 4 KiB of a file without a name, inode 7");
        assert_eq!(lines[21], "store 2: and 30 more files: rfs-server pool status --json lists them");
    }
}
