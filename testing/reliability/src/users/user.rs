//! A simulated user of a mount. Creates, writes, reads, renames, lists, locks and removes files,
//! and checks all results.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use super::{SharedDir, Tally, content};
use crate::error::{Error, Result};

/// Maximum number of files of a user.
const FILES: usize = 8;
/// Maximum length of a file in bytes.
const LARGEST: usize = 256 << 10;

#[derive(Debug)]
struct OwnFile {
    name: String,
    stream: u64,
    len: usize,
}

/// A simulated user of a mount.
#[derive(Debug)]
pub(crate) struct User {
    dir: PathBuf,
    /// File with the counter that all users increment.
    counter: PathBuf,
    /// Mount point.
    mount: PathBuf,
    /// The shared directories of all users, and the index of this user's own directory. Empty if
    /// the trial has none.
    shared_dirs: (Arc<[SharedDir]>, usize),
    random: fastrand::Rng,
    files: Vec<OwnFile>,
    /// Paths that the current operation changes. If it fails, their state is unknown.
    in_doubt: Vec<PathBuf>,
    next: u64,
    id: u64,
    tally: Tally,
}

impl User {
    /// Creates a user with its own directory in a mount.
    pub(crate) fn new(mount: &Path, id: u64) -> Result<User> {
        let dir = mount.join(format!("user{id}"));
        fs::create_dir(&dir).map_err(Error::io("a user's directory"))?;
        let random = fastrand::Rng::with_seed(id);
        let counter = mount.join("counter");
        let (files, in_doubt, tally) = (Vec::new(), Vec::new(), Tally::default());
        let (mount, shared_dirs) = (mount.to_owned(), (Arc::default(), 0));
        Ok(User { dir, counter, mount, shared_dirs, random, files, in_doubt, next: 0, id, tally })
    }

    /// Adds shared directories: the user changes the directory `own` and checks the others.
    pub(crate) fn with_shared_dirs(self, shared_dirs: &Arc<[SharedDir]>, own: usize) -> User {
        User { shared_dirs: (Arc::clone(shared_dirs), own), ..self }
    }

    /// Works until `stop` is set. Calls `observe` with the results after each round. Returns the
    /// results.
    pub(crate) fn run(self, stop: &AtomicBool, observe: impl Fn(&Tally)) -> Tally {
        self.run_and_return(stop, observe).tally
    }

    /// Works like [`run`](Self::run), but returns the user, which can check its files later.
    pub(crate) fn run_and_return(mut self, stop: &AtomicBool, observe: impl Fn(&Tally)) -> User {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.round() {
                self.record(&error);
                self.recover(stop);
            }
            observe(&self.tally);
        }
        self
    }

    /// Returns the results so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Checks all files of the user through another mount.
    pub(crate) fn check_all(&mut self, mount: &Path) -> Result<()> {
        self.dir = mount.join(format!("user{}", self.id));
        self.try_to_recover()
    }

    /// Checks the user's files in the state of an earlier moment, through another mount. Each file
    /// must have only its own bytes, or holes. Returns the number of files.
    pub(crate) fn check_earlier_state(&self, mount: &Path) -> Result<usize> {
        let dir = mount.join(format!("user{}", self.id));
        let check = |name: &str| {
            let path = dir.join(name);
            let bytes = fs::read(&path).map_err(Error::io("read"))?;
            let number = name.strip_prefix("file").and_then(|number| number.parse::<u64>().ok());
            match number.map(|number| content::first_foreign(self.id << 40 | number, 0, &bytes)) {
                Some(None) if bytes.len() < LARGEST => Ok(true),
                Some(wrong) => Err(Error::Wrong(format!("{}: {wrong:?} is wrong", path.display()))),
                // A file that had no final name yet may have any stream.
                None => Ok(false),
            }
        };
        let names = fs::read_dir(&dir).and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<_> = names.map_err(Error::io("readdir"))?;
        let found = names.iter().filter_map(|name| name.to_str()).map(check);
        Ok(found.collect::<Result<Vec<bool>>>()?.into_iter().filter(|counts| *counts).count())
    }

    fn record(&mut self, error: &Error) {
        self.tally.error(error, format!("user {}: {error}", self.id));
    }

    /// Recovers from an error: removes the files in doubt, and checks that all other files are
    /// intact.
    fn recover(&mut self, stop: &AtomicBool) {
        while let Err(error) = self.try_to_recover() {
            self.record(&error);
            if matches!(error, Error::Wrong(_)) {
                self.recreate_dir();
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn try_to_recover(&mut self) -> Result<()> {
        while let Some(path) = self.in_doubt.last() {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io("unlink")(e)),
                _ => self.in_doubt.pop(),
            };
        }
        (0..self.files.len()).try_for_each(|at| self.check_file(at))?;
        self.list()
    }

    fn timed<T>(&mut self, what: &'static str, operation: impl FnOnce() -> io::Result<T>) -> Result<T> {
        self.tally.timed(what, operation)
    }

    fn round(&mut self) -> Result<()> {
        self.make()?;
        let at = self.random.usize(..self.files.len());
        self.check_file(at)?;
        self.change(at)?;
        self.list()?;
        self.count()?;
        self.change_and_check_shared()?;
        if self.files.len() >= FILES {
            let gone = self.files.swap_remove(self.random.usize(..FILES));
            let path = self.dir.join(gone.name);
            self.in_doubt.push(path.clone());
            self.timed("unlink", || fs::remove_file(path))?;
            self.in_doubt.clear();
        }
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        self.next += 1;
        let stream = self.id << 40 | self.next;
        let len = self.random.usize(1..LARGEST);
        let (part, name) = (self.dir.join("part"), format!("file{}", self.next));
        self.in_doubt.extend([part.clone(), self.dir.join(&name)]);
        let mut bytes = vec![0; len];
        content::fill(stream, 0, &mut bytes);
        let file = self.timed("create", || File::create_new(&part))?;
        let (first, second) = bytes.split_at(len / 2);
        self.timed("write", || file.write_all_at(second, first.len() as u64))?;
        self.timed("write", || file.write_all_at(first, 0))?;
        self.timed("fsync", || file.sync_all())?;
        self.timed("close", || {
            drop(file);
            Ok(())
        })?;
        let path = self.dir.join(&name);
        self.timed("rename", || fs::rename(&part, path))?;
        self.in_doubt.clear();
        self.files.push(OwnFile { name, stream, len });
        Ok(())
    }

    fn check_file(&mut self, at: usize) -> Result<()> {
        let OwnFile { ref name, stream, len } = self.files[at];
        let path = self.dir.join(name);
        let found = self.timed("stat", || fs::metadata(&path))?.len();
        let bytes = self.timed("read", || fs::read(&path))?;
        if (found, bytes.len()) != (len as u64, len) {
            let read = bytes.len();
            return Err(Error::Wrong(format!("{}: {len} bytes are {found}, {read} read", path.display())));
        }
        match content::first_wrong(stream, 0, &bytes) {
            None => Ok(()),
            Some(wrong) => Err(Error::Wrong(format!("{}: byte {wrong} is wrong", path.display()))),
        }
    }

    /// Truncates a file at a random length and writes the rest again.
    fn change(&mut self, at: usize) -> Result<()> {
        let OwnFile { name, stream, len } = self.files.swap_remove(at);
        let path = self.dir.join(&name);
        self.in_doubt.push(path.clone());
        let from = self.random.usize(..len);
        let mut bytes = vec![0; len - from];
        content::fill(stream, from as u64, &mut bytes);
        let file = self.timed("open", || OpenOptions::new().write(true).open(&path))?;
        self.timed("truncate", || file.set_len(from as u64))?;
        self.timed("write", || file.write_all_at(&bytes, from as u64))?;
        self.timed("close", || {
            drop(file);
            Ok(())
        })?;
        self.in_doubt.clear();
        self.files.push(OwnFile { name, stream, len });
        Ok(())
    }

    fn list(&mut self) -> Result<()> {
        let dir = self.dir.clone();
        let names =
            move || fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        let found: Vec<_> = self.timed("readdir", names)?;
        let there: BTreeSet<_> = found.iter().filter_map(|name| name.to_str()).collect();
        let own: BTreeSet<_> = self.files.iter().map(|file| file.name.as_str()).collect();
        match there == own && found.len() == own.len() {
            true => Ok(()),
            false => Err(Error::Wrong(format!("{}: {found:?} are not {own:?}", self.dir.display()))),
        }
    }

    /// Increments the shared counter under an exclusive lock.
    fn count(&mut self) -> Result<()> {
        let counter = self.counter.clone();
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(counter);
        let file = self.timed("open", open)?;
        self.timed("lock", || Ok(flock(&file, FlockOperation::LockExclusive)?))?;
        let count = self.timed("read", || read_counter(&file))?;
        let counted = self.timed("write", || file.write_all_at(&(count + 1).to_le_bytes(), 0));
        self.tally.counted += u64::from(counted.is_ok());
        self.tally.perhaps_counted += u64::from(counted.is_err());
        counted?;
        self.timed("unlock", || Ok(flock(&file, FlockOperation::Unlock)?))
    }

    /// Changes the user's own shared directory and checks that of another user.
    fn change_and_check_shared(&mut self) -> Result<()> {
        let (shared_dirs, own) = &self.shared_dirs;
        let Some(others) = shared_dirs.len().checked_sub(1).filter(|others| *others > 0) else {
            return Ok(());
        };
        self.next += 1;
        let stream = self.id << 40 | self.next;
        shared_dirs[*own].change(&self.mount, stream, &mut self.random, &mut self.tally)?;
        let other = (own + 1 + self.random.usize(..others)) % shared_dirs.len();
        self.tally.looks += u64::from(shared_dirs[other].check(&self.mount, &mut self.tally)?);
        Ok(())
    }

    fn recreate_dir(&mut self) {
        self.files.clear();
        let begun = fs::remove_dir_all(&self.dir).and_then(|()| fs::create_dir(&self.dir));
        if let Err(error) = begun.map_err(Error::io("recreating a directory")) {
            self.record(&error);
        }
    }
}

/// Returns the value of the users' counter; 0 if no user has incremented it.
pub(crate) fn counted(mount: &Path) -> Result<u64> {
    match File::open(mount.join("counter")) {
        Ok(file) => read_counter(&file).map_err(Error::io("the counter")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(Error::io("the counter")(e)),
    }
}

fn read_counter(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match file.read_at(&mut bytes, 0)? {
        0 | 8 => Ok(u64::from_le_bytes(bytes)),
        len => Err(io::Error::other(format!("{len} bytes of a counter"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correct_file_system_shows_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let user = User::new(dir.path(), 1).unwrap();
        let tally = user.run(&stop, |tally| stop.store(tally.counted >= 20, Ordering::Relaxed));
        assert_eq!((tally.errors, tally.counted), (0, 20), "{:?}", tally.texts);
        assert_eq!(counted(dir.path()).unwrap(), 20);
        assert!(tally.operations > 200 && tally.longest.0 > Duration::ZERO);
    }

    #[test]
    fn the_files_of_a_user_can_be_checked_elsewhere() {
        let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let stop = AtomicBool::new(false);
        let user = User::new(dir.path(), 1).unwrap();
        let mut user = user.run_and_return(&stop, |tally| stop.store(tally.counted >= 3, Ordering::Relaxed));
        assert_eq!((user.tally().errors, user.tally().counted, user.files.len()), (0, 3, 3));
        assert!(user.check_all(other.path()).is_err());
        fs::create_dir(other.path().join("user1")).unwrap();
        for file in &user.files {
            let name = Path::new("user1").join(&file.name);
            fs::copy(dir.path().join(&name), other.path().join(&name)).unwrap();
        }
        user.check_all(other.path()).unwrap();
        fs::remove_file(other.path().join("user1/file2")).unwrap();
        assert!(user.check_all(other.path()).is_err());
    }

    #[test]
    fn users_check_the_shared_directories_of_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let shared_dirs: Arc<[SharedDir]> =
            (0..2).map(|id| SharedDir::new(dir.path(), id).unwrap()).collect();
        let stop = AtomicBool::new(false);
        let user = |id: u64| User::new(dir.path(), id).unwrap().with_shared_dirs(&shared_dirs, id as usize);
        let mut other = user(1);
        let observe = |tally: &Tally| stop.store(tally.looks >= 20, Ordering::Relaxed);
        let tally = user(0).run(&stop, observe);
        assert_eq!((tally.errors, tally.looks), (0, 20), "{:?}", tally.texts);
        other.change_and_check_shared().unwrap();
        fs::remove_dir_all(dir.path().join("shared0")).unwrap();
        assert!(matches!(other.change_and_check_shared(), Err(Error::Wrong(_) | Error::Io { .. })));
    }

    #[test]
    fn in_an_earlier_state_each_file_has_its_own_bytes_or_holes() {
        let dir = tempfile::tempdir().unwrap();
        let mut user = User::new(dir.path(), 1).unwrap();
        (0..3).for_each(|_| user.make().unwrap());
        let own = dir.path().join("user1");
        fs::write(own.join("part"), b"anything").unwrap();
        fs::write(own.join("file1"), [0; 10]).unwrap();
        assert_eq!(user.check_earlier_state(dir.path()).unwrap(), 3);
        fs::copy(own.join("file2"), own.join("file3")).unwrap();
        assert!(matches!(user.check_earlier_state(dir.path()), Err(Error::Wrong(_))));
    }

    #[test]
    fn a_wrong_byte_or_name_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut user = User::new(dir.path(), 1).unwrap();
        user.make().unwrap();
        user.check_file(0).unwrap();
        let path = dir.path().join("user1/file1");
        let len = user.files[0].len as u64;
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0], len - 1).unwrap();
        assert_eq!(
            user.check_file(0).unwrap_err().to_string(),
            format!("{}: byte {} is wrong", path.display(), len - 1)
        );
        user.list().unwrap();
        fs::write(dir.path().join("user1/more"), b"").unwrap();
        assert!(user.list().is_err());
    }

    #[test]
    fn only_the_files_of_a_failed_operation_are_in_doubt() {
        let dir = tempfile::tempdir().unwrap();
        let mut user = User::new(dir.path(), 1).unwrap();
        user.make().unwrap();
        // An operation that stops halfway and fails.
        fs::create_dir(dir.path().join("user1/part")).unwrap();
        assert!(user.make().is_err());
        fs::remove_dir(dir.path().join("user1/part")).unwrap();
        fs::write(dir.path().join("user1/file2"), b"half").unwrap();
        user.try_to_recover().unwrap();
        assert!(!dir.path().join("user1/file2").exists());
        fs::remove_file(dir.path().join("user1/file1")).unwrap();
        assert!(user.try_to_recover().is_err());
    }
}
