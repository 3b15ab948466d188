//! Helpers for the tests of the benchmark programs. They panic on unexpected input.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// Returns the entries of a directory, sorted.
#[track_caller]
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

/// Converts output to text. Invalid UTF-8 is replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the process IDs of all processes except this process.
pub fn other_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse().ok());
    numbers.filter(|pid| *pid != std::process::id())
}

/// Polls until `done` returns true. Panics after one minute or if `child` ends.
#[track_caller]
pub fn wait_until(what: &str, child: &mut Child, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        assert!(matches!(child.try_wait(), Ok(None)), "{what}: the program ended");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that every element of an SVG picture, or of other XML without comments, is closed.
#[track_caller]
pub fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split_once('>').map_or(tag, |(tag, _)| tag);
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.extend(tag.split(' ').next()),
        }
    }
    assert_eq!(open, [] as [&str; 0]);
}
