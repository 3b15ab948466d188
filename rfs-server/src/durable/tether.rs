//! Who may still write to memory that a server before has handed out: clients of this host have it mapped, and go on when that
//! server is dead.
//!
//! Each server makes a file beside its objects, of a number that none of before has, and locks it. Every client that maps memory holds a copy of its
//! descriptor until no request of it is under way any more ([`Host::tether`](rdmabox::Host::tether)); the lock is that of the open file
//! description, which they share, and is there for as long as any of them has it. So the next server asks the kernel, and nobody else, whether
//! anything can come from before: a client that is stopped does not answer, and cannot be forgotten.
//!
//! Threading: any thread; one lock over what is left of the files of before.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};
use seeded_faults::{Fault, seeded};

use crate::ownership;

/// What the files are called, before their number. No export's directory has a name with a dot.
const PREFIX: &str = "clients.";
/// Between two looks at all processes.
const LOOK: Duration = Duration::from_secs(1);

/// The file of a server that runs.
#[derive(Debug)]
pub struct Tether {
    path: PathBuf,
    file: Option<File>,
}

impl Tether {
    /// Makes the next one in a directory that is this server's, and finds those of before.
    pub fn make(directory: &Path) -> io::Result<(Tether, Former)> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u64>().ok());
            numbers.extend(number.filter(|number| name == *format!("{PREFIX}{number}")));
        }
        let path = |number: u64| directory.join(format!("{PREFIX}{number}"));
        let mut left = Vec::new();
        for &number in &numbers {
            let path = path(number);
            let file = ownership::open_file(&path, OFlags::RDONLY).map_err(io::Error::other)?;
            left.push((path, file));
        }
        let path = path(numbers.into_iter().max().map_or(1, |last| last.saturating_add(1)));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok((Tether { path, file: Some(file) }, Former { left: Mutex::new(left), told: Mutex::default() }))
    }

    /// A copy for the host.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        match &self.file {
            Some(file) => Ok(file.try_clone()?.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Drop for Tether {
    /// The file stays if a client has not let go, for the next server to ask.
    fn drop(&mut self) {
        let again = File::open(&self.path);
        drop(self.file.take());
        if again.is_ok_and(|file| is_free(&file)) {
            remove(&self.path);
        }
    }
}

/// What clients of servers before have not let go of.
#[derive(Debug, Default)]
pub struct Former {
    left: Mutex<Vec<(PathBuf, File)>>,
    /// What has been said and done about it.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// When it was last looked for processes.
    looked: Option<Instant>,
    /// That there is one that cannot be ended.
    cannot_end: bool,
}

impl Former {
    /// True if somebody may still touch memory as a client of a server before.
    pub fn is_held(&self) -> bool {
        let mut left = self.left.lock();
        left.retain(|(path, file)| {
            let is_held = !is_free(file);
            if !is_held {
                remove(path);
            }
            is_held
        });
        !left.is_empty() && !seeded(Fault::FormerForgotten)
    }

    /// Whether a process is among them; `None` if it cannot be looked at.
    pub fn is_held_by(&self, process: i32) -> Option<bool> {
        holds(process, &self.locks())
    }

    /// Whoever holds on has had his time: he is killed, where that may be. False until nobody is left. It takes a while, at most once a
    /// second.
    pub fn ends(&self, kill: bool) -> bool {
        if !self.is_held() {
            return true;
        }
        // Whoever comes while another one looks need not look, too.
        let Some(mut told) = self.told.try_lock() else { return false };
        if told.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        told.looked = Some(Instant::now());
        let killed = if kill { kill_holders(&self.locks()) } else { 0 };
        if killed == 0 && !told.cannot_end {
            told.cannot_end = true;
            log::warn!(
                "a client of a server before does not react and has memory mapped, and {}: what it and others of then had \
                 open stays taken until it lets go or ends",
                if kill { "cannot be found or killed" } else { "is not to be killed (yet)" }
            );
        }
        told.cannot_end &= kill;
        !self.is_held()
    }

    /// How the kernel shows the locks.
    fn locks(&self) -> Vec<String> {
        let left = self.left.lock();
        let shown = |meta: fs::Metadata| {
            let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
            format!(" {major:02x}:{minor:02x}:{} ", meta.ino())
        };
        left.iter().filter_map(|(_, file)| file.metadata().ok()).map(shown).collect()
    }
}

/// Nobody has it locked, and nobody will: who makes a file locks it before anybody else knows of it.
fn is_free(file: &File) -> bool {
    // What cannot be asked is taken for held.
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn remove(path: &Path) {
    if let Err(e) = fs::remove_file(path) {
        log::debug!("{}: {e}", path.display());
    }
}

/// How many processes have been killed that have one of these locks.
fn kill_holders(locks: &[String]) -> usize {
    let mut killed = 0;
    for process in processes().into_iter().filter(|process| holds(*process, locks) == Some(true)) {
        match end(process, locks) {
            Ok(false) => {}
            Ok(true) => {
                killed += 1;
                log::warn!(
                    "process {process} does not react and has memory mapped as a client of a server before: it has been killed"
                );
            }
            Err(e) => log::debug!("process {process} cannot be killed: {e}"),
        }
    }
    killed
}

/// All that can be seen, but for this one; none where the numbers are those of another namespace.
fn processes() -> Vec<i32> {
    let own = getpid().as_raw_nonzero().get();
    if fs::read_link("/proc/self").is_ok_and(|link| link != Path::new(&own.to_string())) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    entries.filter_map(number).filter(|process| *process != own).collect()
}

/// Whether a process has a descriptor with one of these locks; `None` if it cannot be looked at. The files themselves are not asked for anything: one
/// may be on a mount that does not answer.
fn holds(process: i32, locks: &[String]) -> Option<bool> {
    let mut descriptors = fs::read_dir(format!("/proc/{process}/fdinfo")).ok()?;
    let has_lock = |descriptor: io::Result<fs::DirEntry>| {
        let text =
            descriptor.and_then(|descriptor| fs::read_to_string(descriptor.path())).unwrap_or_default();
        let mut lines = text.lines().filter(|line| line.starts_with("lock:") && line.contains(" FLOCK "));
        lines.any(|line| locks.iter().any(|lock| line.contains(lock)))
    };
    Some(descriptors.any(has_lock))
}

/// Kills a process, if it is still the one that has one of these locks.
fn end(process: i32, locks: &[String]) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(process) else { return Ok(false) };
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    // What has this number from here on is what the descriptor is of.
    let same = holds(process, locks) == Some(true);
    if same {
        pidfd_send_signal(&descriptor, Signal::KILL)?;
    }
    Ok(same)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt,
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A process that has it.
    fn holder(tether: &Tether) -> Child {
        let held = Stdio::from(tether.descriptor().unwrap());
        Command::new("sleep").arg("1000").stdin(held).spawn().unwrap()
    }

    #[test]
    fn nothing_is_left_where_nobody_holds_on() {
        let directory = tempfile::tempdir().unwrap();
        let (tether, former) = Tether::make(directory.path()).unwrap();
        assert!(!former.is_held() && former.ends(true));
        assert_eq!(names(directory.path()), ["clients.1"]);
        let copy = tether.descriptor().unwrap();
        drop((copy, tether));
        assert_eq!(names(directory.path()), [""; 0]);
    }

    /// As after a server that was killed: the file is there, and whoever had it as a client.
    #[test]
    fn a_copy_is_enough_to_be_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = Tether::make(directory.path()).unwrap();
        let copy = first.descriptor().unwrap();
        drop(first);
        assert_eq!(names(directory.path()), ["clients.1"]);
        let (second, former) = Tether::make(directory.path()).unwrap();
        assert!(former.is_held());
        // One that is held by this process ends when it likes.
        assert!(!former.ends(true) && !former.ends(false) && former.is_held());
        // And the next one waits for both.
        let later = second.descriptor().unwrap();
        drop((second, former));
        let (_third, former) = Tether::make(directory.path()).unwrap();
        assert_eq!(names(directory.path()), ["clients.1", "clients.2", "clients.3"]);
        drop(copy);
        assert!(former.is_held());
        assert_eq!(names(directory.path()), ["clients.2", "clients.3"]);
        drop(later);
        assert!(!former.is_held());
        assert_eq!(names(directory.path()), ["clients.3"]);
    }

    #[test]
    fn who_holds_on_is_found_and_killed_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = Tether::make(directory.path()).unwrap();
        let mut of_before = holder(&first);
        drop(first);
        let (second, former) = Tether::make(directory.path()).unwrap();
        let mut of_now = holder(&second);
        let pid = |child: &Child| i32::try_from(child.id()).unwrap();
        assert_eq!(
            [&of_before, &of_now].map(|child| former.is_held_by(pid(child))),
            [Some(true), Some(false)]
        );
        assert!(!former.ends(false));
        assert!(of_before.try_wait().unwrap().is_none(), "it may live");
        // Others may have the file open.
        let _reader = File::open(directory.path().join("clients.1")).unwrap();
        while former.is_held() {
            former.ends(true);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(of_before.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(former.ends(true));
        assert!(of_now.try_wait().unwrap().is_none());
        of_now.kill().unwrap();
        of_now.wait().unwrap();
    }
}
