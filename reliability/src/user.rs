//! Somebody who uses a mount: makes, writes, reads, renames, lists, locks and removes files, and checks all that he sees.

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
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, Result, content, shelf::Shelf};

/// Files that he has at a time.
const FILES: usize = 8;
/// Most bytes of a file.
const LARGEST: usize = 256 << 10;
/// Errors whose texts are kept.
const TOLD: usize = 5;

/// What he has met with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Operations that went well.
    pub(crate) operations: u64,
    /// Those that did not, and bytes or names that were wrong.
    pub(crate) errors: u64,
    /// Bytes or names that were wrong, of those.
    pub(crate) wrong: u64,
    /// What the first of these were.
    pub(crate) wrong_texts: Vec<String>,
    /// What the first of them were.
    pub(crate) texts: Vec<String>,
    /// The operation that took longest.
    pub(crate) longest: (Duration, &'static str),
    /// How often he has counted the shared counter up.
    pub(crate) counted: u64,
    /// How often that has failed when he may have done it.
    pub(crate) perhaps_counted: u64,
    /// How often he has looked at what another one has put on his shelf.
    pub(crate) looks: u64,
}

impl Tally {
    /// Does something, and counts that.
    pub(crate) fn timed<T>(
        &mut self,
        what: &'static str,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let result = operation();
        self.longest = self.longest.max((began.elapsed(), what));
        self.operations += u64::from(result.is_ok());
        result.map_err(Error::io(what))
    }

    /// Adds what another one has met with.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.wrong += other.wrong;
        self.counted += other.counted;
        self.perhaps_counted += other.perhaps_counted;
        self.looks += other.looks;
        self.longest = self.longest.max(other.longest);
        self.texts.extend(other.texts.iter().take(TOLD - self.texts.len().min(TOLD)).cloned());
        self.wrong_texts.extend(other.wrong_texts.iter().cloned());
    }

    /// Whether all has been counted, and nothing twice.
    pub(crate) fn fits(&self, count: u64) -> bool {
        (self.counted..=self.counted + self.perhaps_counted).contains(&count)
    }

    fn error(&mut self, error: &Error, text: String) {
        self.errors += 1;
        if matches!(error, Error::Wrong(_)) {
            self.wrong += 1;
            if self.wrong_texts.len() < TOLD {
                self.wrong_texts.push(text.clone());
            }
        }
        if self.texts.len() < TOLD {
            self.texts.push(text);
        }
    }
}

#[derive(Debug)]
struct Kept {
    name: String,
    stream: u64,
    len: usize,
}

/// Somebody who uses a mount.
#[derive(Debug)]
pub(crate) struct User {
    dir: PathBuf,
    /// A file that all users count up in.
    counter: PathBuf,
    /// Where the mount is.
    mount: PathBuf,
    /// Those of all users, and which is his; none where there are none.
    shelves: (Arc<[Shelf]>, usize),
    random: fastrand::Rng,
    files: Vec<Kept>,
    /// What the operation under way changes: if it fails, nobody knows what became of it.
    in_doubt: Vec<PathBuf>,
    next: u64,
    id: u64,
    tally: Tally,
}

impl User {
    /// One with a directory of his own in a mount.
    pub(crate) fn new(mount: &Path, id: u64) -> Result<User> {
        let dir = mount.join(format!("user{id}"));
        fs::create_dir(&dir).map_err(Error::io("a user's directory"))?;
        let random = fastrand::Rng::with_seed(id);
        let counter = mount.join("counter");
        let (files, in_doubt, tally) = (Vec::new(), Vec::new(), Tally::default());
        let (mount, shelves) = (mount.to_owned(), (Arc::default(), 0));
        Ok(User { dir, counter, mount, shelves, random, files, in_doubt, next: 0, id, tally })
    }

    /// One who has one of these shelves, and looks at those of the others.
    pub(crate) fn with_shelf(self, shelves: &Arc<[Shelf]>, own: usize) -> User {
        User { shelves: (Arc::clone(shelves), own), ..self }
    }

    /// Goes on until he is told to stop. What is seen of it meanwhile is given to `look`, now and then.
    pub(crate) fn use_it(self, stop: &AtomicBool, look: impl Fn(&Tally)) -> Tally {
        self.use_it_for_now(stop, look).tally
    }

    /// The same, for one who is to look again later at what he leaves.
    pub(crate) fn use_it_for_now(mut self, stop: &AtomicBool, look: impl Fn(&Tally)) -> User {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.round() {
                self.tell(&error);
                self.settle(stop);
            }
            look(&self.tally);
        }
        self
    }

    /// What he has met with so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Looks at all that he has, at another mount.
    pub(crate) fn look_again(&mut self, mount: &Path) -> Result<()> {
        self.dir = mount.join(format!("user{}", self.id));
        self.try_to_settle()
    }

    /// Looks at what he had at some moment, at another mount: how many files have bytes of their own only, or none where he was writing.
    pub(crate) fn look_at_some_moment(&self, mount: &Path) -> Result<usize> {
        let dir = mount.join(format!("user{}", self.id));
        let look = |name: &str| {
            let path = dir.join(name);
            let bytes = fs::read(&path).map_err(Error::io("read"))?;
            let number = name.strip_prefix("file").and_then(|number| number.parse::<u64>().ok());
            match number.map(|number| content::first_foreign(self.id << 40 | number, 0, &bytes)) {
                Some(None) if bytes.len() < LARGEST => Ok(true),
                Some(wrong) => Err(Error::Wrong(format!("{}: {wrong:?} is wrong", path.display()))),
                // What had no name of its own yet may be any file's.
                None => Ok(false),
            }
        };
        let names = fs::read_dir(&dir).and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<_> = names.map_err(Error::io("readdir"))?;
        let found = names.iter().filter_map(|name| name.to_str()).map(look);
        Ok(found.collect::<Result<Vec<bool>>>()?.into_iter().filter(|counts| *counts).count())
    }

    fn tell(&mut self, error: &Error) {
        self.tally.error(error, format!("user {}: {error}", self.id));
    }

    /// After an error: what was in doubt goes, and all else has to be as it was.
    fn settle(&mut self, stop: &AtomicBool) {
        while let Err(error) = self.try_to_settle() {
            self.tell(&error);
            if matches!(error, Error::Wrong(_)) {
                self.begin_anew();
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn try_to_settle(&mut self) -> Result<()> {
        while let Some(path) = self.in_doubt.last() {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io("unlink")(e)),
                _ => self.in_doubt.pop(),
            };
        }
        (0..self.files.len()).try_for_each(|at| self.look_at(at))?;
        self.list()
    }

    fn timed<T>(&mut self, what: &'static str, operation: impl FnOnce() -> io::Result<T>) -> Result<T> {
        self.tally.timed(what, operation)
    }

    fn round(&mut self) -> Result<()> {
        self.make()?;
        let at = self.random.usize(..self.files.len());
        self.look_at(at)?;
        self.change(at)?;
        self.list()?;
        self.count()?;
        self.show_and_look()?;
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
        self.files.push(Kept { name, stream, len });
        Ok(())
    }

    fn look_at(&mut self, at: usize) -> Result<()> {
        let Kept { ref name, stream, len } = self.files[at];
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

    /// Makes a file shorter, and then as long as it was.
    fn change(&mut self, at: usize) -> Result<()> {
        let Kept { name, stream, len } = self.files.swap_remove(at);
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
        self.files.push(Kept { name, stream, len });
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

    /// Counts up under a lock, which no other user may have meanwhile.
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

    /// Changes what is on his shelf, and looks at that of another one.
    fn show_and_look(&mut self) -> Result<()> {
        let (shelves, own) = &self.shelves;
        let Some(others) = shelves.len().checked_sub(1).filter(|others| *others > 0) else { return Ok(()) };
        self.next += 1;
        let stream = self.id << 40 | self.next;
        shelves[*own].change(&self.mount, stream, &mut self.random, &mut self.tally)?;
        let other = (own + 1 + self.random.usize(..others)) % shelves.len();
        self.tally.looks += u64::from(shelves[other].look(&self.mount, &mut self.tally)?);
        Ok(())
    }

    fn begin_anew(&mut self) {
        self.files.clear();
        let begun = fs::remove_dir_all(&self.dir).and_then(|()| fs::create_dir(&self.dir));
        if let Err(error) = begun.map_err(Error::io("beginning anew")) {
            self.tell(&error);
        }
    }
}

/// What the users of a mount have counted to; nothing if nobody has.
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
    fn a_file_system_that_is_right_shows_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let user = User::new(dir.path(), 1).unwrap();
        let tally = user.use_it(&stop, |tally| stop.store(tally.counted >= 20, Ordering::Relaxed));
        assert_eq!((tally.errors, tally.counted), (0, 20), "{:?}", tally.texts);
        assert_eq!(counted(dir.path()).unwrap(), 20);
        assert!(tally.operations > 200 && tally.longest.0 > Duration::ZERO);
    }

    #[test]
    fn what_one_leaves_can_be_looked_at_elsewhere() {
        let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let stop = AtomicBool::new(false);
        let user = User::new(dir.path(), 1).unwrap();
        let mut user = user.use_it_for_now(&stop, |tally| stop.store(tally.counted >= 3, Ordering::Relaxed));
        assert_eq!((user.tally().errors, user.tally().counted, user.files.len()), (0, 3, 3));
        assert!(user.look_again(other.path()).is_err());
        fs::create_dir(other.path().join("user1")).unwrap();
        for file in &user.files {
            let name = Path::new("user1").join(&file.name);
            fs::copy(dir.path().join(&name), other.path().join(&name)).unwrap();
        }
        user.look_again(other.path()).unwrap();
        fs::remove_file(other.path().join("user1/file2")).unwrap();
        assert!(user.look_again(other.path()).is_err());
    }

    #[test]
    fn users_look_at_what_each_other_has_put_on_his_shelf() {
        let dir = tempfile::tempdir().unwrap();
        let shelves: Arc<[Shelf]> = (0..2).map(|id| Shelf::new(dir.path(), id).unwrap()).collect();
        let stop = AtomicBool::new(false);
        let user = |id: u64| User::new(dir.path(), id).unwrap().with_shelf(&shelves, id as usize);
        let mut other = user(1);
        let look = |tally: &Tally| stop.store(tally.looks >= 20, Ordering::Relaxed);
        let tally = user(0).use_it(&stop, look);
        assert_eq!((tally.errors, tally.looks), (0, 20), "{:?}", tally.texts);
        other.show_and_look().unwrap();
        fs::remove_dir_all(dir.path().join("shelf0")).unwrap();
        assert!(matches!(other.show_and_look(), Err(Error::Wrong(_) | Error::Io { .. })));
    }

    #[test]
    fn of_some_moment_each_file_has_bytes_of_its_own_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut user = User::new(dir.path(), 1).unwrap();
        (0..3).for_each(|_| user.make().unwrap());
        let own = dir.path().join("user1");
        fs::write(own.join("part"), b"anything").unwrap();
        fs::write(own.join("file1"), [0; 10]).unwrap();
        assert_eq!(user.look_at_some_moment(dir.path()).unwrap(), 3);
        fs::copy(own.join("file2"), own.join("file3")).unwrap();
        assert!(matches!(user.look_at_some_moment(dir.path()), Err(Error::Wrong(_))));
    }

    #[test]
    fn a_byte_or_a_name_that_is_wrong_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut user = User::new(dir.path(), 1).unwrap();
        user.make().unwrap();
        user.look_at(0).unwrap();
        let path = dir.path().join("user1/file1");
        let len = user.files[0].len as u64;
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0], len - 1).unwrap();
        assert_eq!(
            user.look_at(0).unwrap_err().to_string(),
            format!("{}: byte {} is wrong", path.display(), len - 1)
        );
        user.list().unwrap();
        fs::write(dir.path().join("user1/more"), b"").unwrap();
        assert!(user.list().is_err());
    }

    #[test]
    fn what_failed_is_in_doubt_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut user = User::new(dir.path(), 1).unwrap();
        user.make().unwrap();
        // Half done, and then over.
        fs::create_dir(dir.path().join("user1/part")).unwrap();
        assert!(user.make().is_err());
        fs::remove_dir(dir.path().join("user1/part")).unwrap();
        fs::write(dir.path().join("user1/file2"), b"half").unwrap();
        user.try_to_settle().unwrap();
        assert!(!dir.path().join("user1/file2").exists());
        fs::remove_file(dir.path().join("user1/file1")).unwrap();
        assert!(user.try_to_settle().is_err());
    }

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::default();
        let tally = Tally {
            operations: 2,
            errors: 9,
            texts: vec!["e".into(); 4],
            wrong: 1,
            wrong_texts: vec!["w".into()],
            counted: 1,
            perhaps_counted: 1,
            looks: 3,
            longest: (Duration::from_secs(1), "read"),
        };
        all.add(&tally);
        all.add(&tally);
        assert_eq!((all.operations, all.errors, all.counted, all.texts.len()), (4, 18, 2, TOLD));
        assert_eq!((all.wrong, all.looks), (2, 6));
        assert_eq!([1, 2, 4, 5].map(|count| all.fits(count)), [false, true, true, false]);
        assert_eq!(all.longest, (Duration::from_secs(1), "read"));
    }
}
