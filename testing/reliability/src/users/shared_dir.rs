//! Directories that one user changes and users of other mounts check.
//!
//! The owner of a directory holds its write lock until each call has returned and the file is
//! closed. Checks hold the read lock. A check therefore has exactly one correct result. `stat`,
//! lookups, listings and `open` must not be older than a completed call of another mount. A file
//! that was closed must have its final bytes for every later open (close-to-open consistency;
//! docs/semantics). Checks cover only these promises: no files that are open elsewhere,
//! and no times. The promises also hold over a server restart if the kernel can drop names (Linux
//! 6.16 or later).
//!
//! Checks also look up missing names, so that mounts cache negative entries. Owners add and remove
//! names, overwrite files with the same size, and replace files under the same name.
//!
//! # Concurrency
//! Every user has a thread. The only lock is the one of the directory.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::RwLock,
};

use super::{Tally, content};
use crate::error::{Error, Result};

/// Number of names in a directory. About half of them exist at a time.
const NAMES: usize = 6;
/// Maximum length of a file in bytes.
const LARGEST: usize = 32 << 10;

/// A file. Its bytes are those of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedFile {
    stream: u64,
    len: usize,
}

/// A directory with known content.
#[derive(Debug)]
pub(crate) struct SharedDir {
    id: u64,
    /// The files by name. `None` after a failed change, because the content is then unknown.
    files: RwLock<Option<[Option<SharedFile>; NAMES]>>,
}

impl SharedDir {
    /// Creates an empty directory in a mount.
    pub(crate) fn new(mount: &Path, id: u64) -> Result<SharedDir> {
        let shared = SharedDir { id, files: RwLock::new(Some([None; NAMES])) };
        fs::create_dir(shared.directory(mount)).map_err(Error::io("a shared directory"))?;
        Ok(shared)
    }

    fn directory(&self, mount: &Path) -> PathBuf {
        mount.join(format!("shared{}", self.id))
    }

    /// Adds, replaces or removes one file, unless a check is in progress. Only the owner calls
    /// this. `stream` must be unique.
    pub(crate) fn change(
        &self,
        mount: &Path,
        stream: u64,
        random: &mut fastrand::Rng,
        tally: &mut Tally,
    ) -> Result<()> {
        let Ok(mut files) = self.files.try_write() else { return Ok(()) };
        let dir = self.directory(mount);
        // The content is unknown until all calls have succeeded.
        let mut known = match files.take() {
            Some(known) => known,
            None => {
                empty(&dir)?;
                [None; NAMES]
            }
        };
        let at = random.usize(..NAMES);
        let (path, put) = (dir.join(at.to_string()), SharedFile { stream, len: random.usize(1..LARGEST) });
        known[at] = match known[at] {
            None => Some(create(&path, put, tally)?),
            Some(SharedFile { len, .. }) => match random.u8(..4) {
                // The new file differs from the old file only in bytes and times.
                0 => Some(overwrite(&path, SharedFile { stream, len }, tally)?),
                1 => {
                    let part = dir.join("part");
                    create(&part, put, tally)?;
                    tally.timed("rename", || fs::rename(&part, &path))?;
                    Some(put)
                }
                _ => {
                    tally.timed("unlink", || fs::remove_file(&path))?;
                    None
                }
            },
        };
        *files = Some(known);
        Ok(())
    }

    /// Checks the directory from a mount. Returns false without a check if a change is in progress
    /// or the content is unknown.
    pub(crate) fn check(&self, mount: &Path, tally: &mut Tally) -> Result<bool> {
        let Ok(files) = self.files.try_read() else { return Ok(false) };
        let Some(known) = *files else { return Ok(false) };
        let dir = self.directory(mount);
        for (at, put) in known.into_iter().enumerate() {
            check_name(&dir.join(at.to_string()), put, tally)?;
        }
        let names =
            || fs::read_dir(&dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        let found = tally.timed("readdir", names)?;
        let listed: BTreeSet<_> = found.iter().filter_map(|name| name.to_str()).collect();
        let own: Vec<String> =
            (0..NAMES).filter(|at| known[*at].is_some()).map(|at| at.to_string()).collect();
        match listed == own.iter().map(String::as_str).collect() && found.len() == own.len() {
            true => Ok(true),
            false => Err(Error::Wrong(format!("{}: {found:?} are not {own:?}", dir.display()))),
        }
    }
}

fn empty(dir: &Path) -> Result<()> {
    let remove = || fs::read_dir(dir)?.try_for_each(|entry| fs::remove_file(entry?.path()));
    remove().map_err(Error::io("emptying a shared directory"))
}

fn create(path: &Path, put: SharedFile, tally: &mut Tally) -> Result<SharedFile> {
    // The file may exist if an earlier change failed.
    let file = tally.timed("create", || File::create(path))?;
    fill(&file, put, tally)
}

fn overwrite(path: &Path, put: SharedFile, tally: &mut Tally) -> Result<SharedFile> {
    let file = tally.timed("open", || OpenOptions::new().write(true).open(path))?;
    fill(&file, put, tally)
}

fn fill(file: &File, put: SharedFile, tally: &mut Tally) -> Result<SharedFile> {
    let mut bytes = vec![0; put.len];
    content::fill(put.stream, 0, &mut bytes);
    tally.timed("write", || file.write_all_at(&bytes, 0))?;
    Ok(put)
}

fn check_name(path: &Path, put: Option<SharedFile>, tally: &mut Tally) -> Result<()> {
    let found = tally.timed("stat", || match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        found => Ok(Some(found?.len())),
    })?;
    let name = path.display();
    match (found, put) {
        (None, None) => return Ok(()),
        (Some(found), Some(put)) if found == put.len as u64 => {}
        (found, put) => {
            let expected = put.map(|put| put.len);
            return Err(Error::Wrong(format!("{name}: its size is {found:?}, not {expected:?}")));
        }
    }
    let Some(SharedFile { stream, len }) = put else { return Ok(()) };
    let bytes = tally.timed("read", || fs::read(path))?;
    match content::first_wrong(stream, 0, &bytes) {
        _ if bytes.len() != len => Err(Error::Wrong(format!("{name}: {len} bytes are {}", bytes.len()))),
        None => Ok(()),
        Some(wrong) => Err(Error::Wrong(format!("{name}: byte {wrong} is old, or wrong"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_some(mount: &Path) -> (SharedDir, fastrand::Rng, Tally) {
        let (mut random, mut tally) = (fastrand::Rng::with_seed(1), Tally::default());
        let shared = SharedDir::new(mount, 1).unwrap();
        for stream in 1..200 {
            shared.change(mount, stream, &mut random, &mut tally).unwrap();
            assert!(shared.check(mount, &mut tally).unwrap());
        }
        // The tests need the file `0`.
        while shared.files.read().unwrap().unwrap()[0].is_none() {
            shared.change(mount, 200, &mut random, &mut tally).unwrap();
        }
        (shared, random, tally)
    }

    #[test]
    fn a_check_finds_wrong_bytes_sizes_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, _, mut tally) = with_some(dir.path());
        let (first, more) = (dir.path().join("shared1/0"), dir.path().join("shared1/more"));
        let right = fs::read(&first).unwrap();
        let mut wrong = right.clone();
        *wrong.last_mut().unwrap() ^= 2;
        let mut is_wrong = || matches!(shared.check(dir.path(), &mut tally), Err(Error::Wrong(_)));
        fs::write(&first, wrong).unwrap();
        assert!(is_wrong());
        fs::write(&first, &right[1..]).unwrap();
        assert!(is_wrong());
        fs::remove_file(&first).unwrap();
        assert!(is_wrong());
        fs::write(&first, &right).unwrap();
        assert!(!is_wrong());
        fs::write(&more, b"").unwrap();
        assert!(is_wrong());
        fs::remove_file(&more).unwrap();
        assert!(!is_wrong());
        for at in 0..NAMES {
            let path = dir.path().join(format!("shared1/{at}"));
            if !path.exists() {
                fs::write(&path, b"").unwrap();
                assert!(is_wrong());
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn a_directory_is_not_checked_during_a_change_or_after_a_failed_change() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, mut random, mut tally) = with_some(dir.path());
        let (own, away) = (dir.path().join("shared1"), dir.path().join("away"));
        let changing = shared.files.write().unwrap();
        assert!(!shared.check(dir.path(), &mut tally).unwrap());
        drop(changing);
        let checking = shared.files.read().unwrap();
        shared.change(dir.path(), 300, &mut random, &mut tally).unwrap();
        drop(checking);
        assert!(shared.check(dir.path(), &mut tally).unwrap());
        fs::rename(&own, &away).unwrap();
        assert!(shared.change(dir.path(), 301, &mut random, &mut tally).is_err());
        assert!(!shared.check(dir.path(), &mut tally).unwrap());
        fs::rename(&away, &own).unwrap();
        shared.change(dir.path(), 302, &mut random, &mut tally).unwrap();
        assert!(shared.check(dir.path(), &mut tally).unwrap());
        assert_eq!(fs::read_dir(own).unwrap().count(), 1);
    }
}
