//! What users put where others look at it, each at a mount of his own.
//!
//! Whoever changes a shelf has it for himself until each of his calls has returned and the file is closed, and no look is under way meanwhile. So
//! there is one thing only that a look may find: what `stat`, a name, a listing, or an `open` shows is never older than a call of another mount that
//! returned before, and a file that was closed is read as it was then by whoever opens it after that (close to open; SEMANTICS.md of rfs-fuse).
//! Nothing is looked at of which that is not promised: no file that is open elsewhere, and no times. It is promised over a restart of the
//! server, too, where the kernel can drop names, from Linux 6.16 on.
//!
//! All names are looked at, also those that are not there, so that mounts have something to keep that is wrong later: names that come and go,
//! other bytes in a file of the same size, another file by the same name.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::RwLock,
};

use crate::{Error, Result, content, user::Tally};

/// Names on a shelf; half of them are there, more or less.
const NAMES: usize = 6;
/// Most bytes of a file.
const LARGEST: usize = 32 << 10;

/// A file: its bytes are those of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Put {
    stream: u64,
    len: usize,
}

/// A directory of which all that is in it is known.
#[derive(Debug)]
pub(crate) struct Shelf {
    id: u64,
    /// By name. `None` while nobody knows: a change of it has failed.
    there: RwLock<Option<[Option<Put>; NAMES]>>,
}

impl Shelf {
    /// An empty one in a mount.
    pub(crate) fn new(mount: &Path, id: u64) -> Result<Shelf> {
        let shelf = Shelf { id, there: RwLock::new(Some([None; NAMES])) };
        fs::create_dir(shelf.directory(mount)).map_err(Error::io("a shelf"))?;
        Ok(shelf)
    }

    fn directory(&self, mount: &Path) -> PathBuf {
        mount.join(format!("shelf{}", self.id))
    }

    /// Its owner puts something there, replaces it or takes it away, unless somebody is looking. `stream` is of no other file.
    pub(crate) fn change(
        &self,
        mount: &Path,
        stream: u64,
        random: &mut fastrand::Rng,
        tally: &mut Tally,
    ) -> Result<()> {
        let Ok(mut there) = self.there.try_write() else { return Ok(()) };
        let dir = self.directory(mount);
        // Until it has all gone well.
        let mut known = match there.take() {
            Some(known) => known,
            None => {
                empty(&dir)?;
                [None; NAMES]
            }
        };
        let at = random.usize(..NAMES);
        let (path, put) = (dir.join(at.to_string()), Put { stream, len: random.usize(1..LARGEST) });
        known[at] = match known[at] {
            None => Some(put_anew(&path, put, tally)?),
            Some(Put { len, .. }) => match random.u8(..4) {
                // Nothing tells it from the one before but its bytes, and the times.
                0 => Some(overwrite(&path, Put { stream, len }, tally)?),
                1 => {
                    let part = dir.join("part");
                    put_anew(&part, put, tally)?;
                    tally.timed("rename", || fs::rename(&part, &path))?;
                    Some(put)
                }
                _ => {
                    tally.timed("unlink", || fs::remove_file(&path))?;
                    None
                }
            },
        };
        *there = Some(known);
        Ok(())
    }

    /// Looks at it from a mount, unless it is being changed or nobody knows what is there. Whether that was so.
    pub(crate) fn look(&self, mount: &Path, tally: &mut Tally) -> Result<bool> {
        let Ok(there) = self.there.try_read() else { return Ok(false) };
        let Some(known) = *there else { return Ok(false) };
        let dir = self.directory(mount);
        for (at, put) in known.into_iter().enumerate() {
            look_at(&dir.join(at.to_string()), put, tally)?;
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
    remove().map_err(Error::io("a shelf that is made empty"))
}

fn put_anew(path: &Path, put: Put, tally: &mut Tally) -> Result<Put> {
    // Where somebody had failed it may be there.
    let file = tally.timed("create", || File::create(path))?;
    fill(&file, put, tally)
}

fn overwrite(path: &Path, put: Put, tally: &mut Tally) -> Result<Put> {
    let file = tally.timed("open", || OpenOptions::new().write(true).open(path))?;
    fill(&file, put, tally)
}

fn fill(file: &File, put: Put, tally: &mut Tally) -> Result<Put> {
    let mut bytes = vec![0; put.len];
    content::fill(put.stream, 0, &mut bytes);
    tally.timed("write", || file.write_all_at(&bytes, 0))?;
    Ok(put)
}

fn look_at(path: &Path, put: Option<Put>, tally: &mut Tally) -> Result<()> {
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
    let Some(Put { stream, len }) = put else { return Ok(()) };
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

    fn with_some(mount: &Path) -> (Shelf, fastrand::Rng, Tally) {
        let (mut random, mut tally) = (fastrand::Rng::with_seed(1), Tally::default());
        let shelf = Shelf::new(mount, 1).unwrap();
        for stream in 1..200 {
            shelf.change(mount, stream, &mut random, &mut tally).unwrap();
            assert!(shelf.look(mount, &mut tally).unwrap());
        }
        // One that is there, at least.
        while shelf.there.read().unwrap().unwrap()[0].is_none() {
            shelf.change(mount, 200, &mut random, &mut tally).unwrap();
        }
        (shelf, random, tally)
    }

    #[test]
    fn what_is_as_it_was_put_there_is_right_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let (shelf, _, mut tally) = with_some(dir.path());
        let (first, more) = (dir.path().join("shelf1/0"), dir.path().join("shelf1/more"));
        let right = fs::read(&first).unwrap();
        let mut wrong = right.clone();
        *wrong.last_mut().unwrap() ^= 2;
        let mut is_wrong = || matches!(shelf.look(dir.path(), &mut tally), Err(Error::Wrong(_)));
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
            let path = dir.path().join(format!("shelf1/{at}"));
            if !path.exists() {
                fs::write(&path, b"").unwrap();
                assert!(is_wrong());
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn nobody_looks_while_it_changes_nor_after_a_change_that_failed_until_it_is_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (shelf, mut random, mut tally) = with_some(dir.path());
        let (own, away) = (dir.path().join("shelf1"), dir.path().join("away"));
        let changing = shelf.there.write().unwrap();
        assert!(!shelf.look(dir.path(), &mut tally).unwrap());
        drop(changing);
        let looking = shelf.there.read().unwrap();
        shelf.change(dir.path(), 300, &mut random, &mut tally).unwrap();
        drop(looking);
        assert!(shelf.look(dir.path(), &mut tally).unwrap());
        fs::rename(&own, &away).unwrap();
        assert!(shelf.change(dir.path(), 301, &mut random, &mut tally).is_err());
        assert!(!shelf.look(dir.path(), &mut tally).unwrap());
        fs::rename(&away, &own).unwrap();
        shelf.change(dir.path(), 302, &mut random, &mut tally).unwrap();
        assert!(shelf.look(dir.path(), &mut tally).unwrap());
        assert_eq!(fs::read_dir(own).unwrap().count(), 1);
    }
}
