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
};

use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};
use seeded_faults::{Fault, seeded};

/// What the files are called, before their number. No export's directory has a name with a dot.
const PREFIX: &str = "clients.";

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
            numbers.extend(name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u64>().ok()));
        }
        let path = |number: u64| directory.join(format!("{PREFIX}{number}"));
        let mut left = Vec::new();
        for &number in &numbers {
            left.push((path(number), File::open(path(number))?));
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
    killed: Vec<i32>,
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

    /// True if this process is among them.
    pub fn is_held_by(&self, process: i32) -> bool {
        self.is_held() && holds(process, &self.identities())
    }

    /// Whoever holds on has had his time: he is killed, where that may be. False until nobody is left.
    pub fn ends(&self, kill: bool) -> bool {
        if !self.is_held() {
            return true;
        }
        let files = self.identities();
        let mut told = self.told.lock();
        let known = told.killed.len();
        for process in if kill { processes() } else { Vec::new() } {
            if told.killed.contains(&process) || !holds(process, &files) {
                continue;
            }
            match end(process, &files) {
                Ok(false) => {}
                Ok(true) => {
                    log::warn!(
                        "process {process} does not react and has memory mapped as a client of a server before: it has been killed"
                    );
                    told.killed.push(process);
                }
                Err(e) => log::debug!("process {process} cannot be killed: {e}"),
            }
        }
        if told.killed.is_empty() && known == 0 && !told.cannot_end {
            told.cannot_end = true;
            log::error!(
                "a client of a server before does not react and has memory mapped, and {}: what it and others of then had \
                 open stays taken until its process ends",
                if kill { "cannot be found or killed" } else { "is not to be killed" }
            );
        }
        !self.is_held()
    }

    /// Device and inode of each file.
    fn identities(&self) -> Vec<(u64, u64)> {
        let left = self.left.lock();
        left.iter()
            .filter_map(|(_, file)| file.metadata().ok())
            .map(|meta| (meta.dev(), meta.ino()))
            .collect()
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

/// All that can be seen, but for this one.
fn processes() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = getpid().as_raw_nonzero().get();
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    entries.filter_map(number).filter(|process| *process != own).collect()
}

/// Whether a process has one of these files open. One that may not be looked at has none.
fn holds(process: i32, files: &[(u64, u64)]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    descriptors
        .filter_map(|descriptor| fs::metadata(descriptor.ok()?.path()).ok())
        .any(|meta| files.contains(&(meta.dev(), meta.ino())))
}

/// Kills a process, if it is still the one that has one of these files open.
fn end(process: i32, files: &[(u64, u64)]) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(process) else { return Ok(false) };
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    // What has this number from here on is what the descriptor is of.
    let same = holds(process, files);
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
        assert!(!former.ends(true) && !former.ends(false));
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
        assert!(former.is_held_by(pid(&of_before)) && !former.is_held_by(pid(&of_now)));
        assert!(!former.ends(false));
        assert!(of_before.try_wait().unwrap().is_none(), "it may live");
        former.ends(true);
        assert_eq!(of_before.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(!former.is_held() && !former.is_held_by(pid(&of_before)) && former.ends(true));
        assert!(of_now.try_wait().unwrap().is_none());
        of_now.kill().unwrap();
        of_now.wait().unwrap();
    }
}
