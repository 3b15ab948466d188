//! Fuzzes the messages and attribute records of the protocol.

#[path = "../../../../rfs-proto/fuzz/entry.rs"]
mod entry;

use std::{fs, path::Path};

use rfs_proto::{FileKind, record};

/// Runs an input, as the cargo-fuzz target does.
pub(super) fn message(bytes: &[u8]) {
    entry::check(bytes);
}

/// Returns one message of each kind, from the cargo-fuzz corpus, and records.
pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rfs-proto/fuzz/corpus/decode");
    let Ok(files) = fs::read_dir(&corpus) else { panic!("{} is not there", corpus.display()) };
    let mut files: Vec<_> = files.flatten().map(|file| file.path()).collect();
    files.sort();
    let mut seeds: Vec<_> = files.iter().filter_map(|file| fs::read(file).ok()).collect();
    seeds.extend(record_seeds());
    seeds
}

/// Runs an input: an attribute record whose checksum is made valid.
///
/// Asserts that the decoded kind fits the mode, and that the space does not grow when the file
/// shrinks.
pub(super) fn record(bytes: &[u8]) {
    let Some(raw) = bytes.first_chunk::<{ record::LEN }>() else { return };
    let mut raw = *raw;
    let word = |raw: &[u8; record::LEN], at: usize| {
        raw[at..].first_chunk().map_or(0, |word: &[u8; 8]| u64::from_le_bytes(*word))
    };
    let (ino, version) = (word(&raw, record::INO), word(&raw, record::VERSION) & !1);
    raw[record::VERSION..][..8].copy_from_slice(&version.to_le_bytes());
    let Some(part) = raw[record::MTIME..].first_chunk::<{ record::SERVER_PART }>() else { return };
    let check = record::check(ino, version, part);
    raw[record::CHECK..][..8].copy_from_slice(&check.to_le_bytes());
    assert!(record::decode(&raw, ino ^ 1, 0).is_none(), "a record of another inode was accepted");
    if let Some(attr) = record::decode(&raw, ino, 3) {
        let mode = word(&raw, record::MODE) as u32;
        assert_eq!(FileKind::from_mode(mode), Some(attr.kind));
        assert_eq!((attr.ino, attr.slot, attr.perm), (ino, 3, mode & 0o7777));
        assert!(attr.blocks <= word(&raw, record::BLOCKS));
        raw[record::SIZE..][..8].fill(0);
        let empty = record::decode(&raw, ino, 3);
        assert!(empty.is_some_and(|empty| empty.size == 0 && empty.blocks <= attr.blocks));
    }
}

/// Returns records of a file and of a directory.
pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let seed = |kind: FileKind, size: u64, blocks: u64| {
        let mut raw = vec![0; record::LEN];
        for (at, value) in [
            (record::INO, 300),
            (record::VERSION, 2),
            (record::SIZE, size),
            (record::MTIME, 1_700_000_000_000_000_000),
            (record::BLOCKS, blocks),
            (record::MODE, u64::from(kind.mode_bits() | 0o644) | 1 << 32),
            (record::NEEDED_TO, size),
            (record::SPACE_END, blocks * 512),
        ] {
            raw[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        raw
    };
    vec![seed(FileKind::Regular, 10_000, 64), seed(FileKind::Directory, 0, 0)]
}
