//! Gives each connection of a local client that maps memory a tether, which the next server finds.
//!
//! A client of this host writes to mapped memory with its own processor, also after the server has
//! ended. So each connection that maps memory holds the write end of a FIFO of its own. It holds it
//! until none of its requests can access the memory ([`Host::tether`](rdmabox::Host::tether)). The
//! next server asks the kernel whether a FIFO has a writer ([`PreviousClients`]): a stopped client
//! cannot be missed, because it need not answer. A client can close its own write end, but not that
//! of another client. The name of a FIFO says which process connected.
//!
//! # Concurrency
//! Any thread. One lock over the known state of the FIFOs of this server.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileTypeExt},
    },
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rdmabox::ConnectedProcess;
use rustix::fs::{CWD, FileType, FlockOperation, FsWord, Mode, OFlags, flock, fstat, fstatfs, mknodat};

use super::{ownership, previous_clients::PreviousClients};

/// Prefix of the directories of FIFOs, before their number. No export's directory has a name with a
/// dot.
const PREFIX: &str = "clients.";
/// New FIFOs between two searches for those that have no writer any more.
const SWEEP_INTERVAL: u64 = 64;
/// FIFOs that one process may hold. A connection has one, and a session some connections.
const MAX_PER_PROCESS: usize = if cfg!(test) { 300 } else { 8192 };
/// FIFOs that processes without a name may hold together.
const MAX_UNNAMED: usize = 32_768;
/// Bytes of a FIFO that are read at most in one attempt to find out whether it has a writer. Only a
/// client that does not follow the protocol writes any.
const MAX_DRAINED: usize = 64 << 10;
/// `PID_FS_MAGIC`: pidfds have a file system of their own, with one inode for each process.
const PIDFS_MAGIC: FsWord = 0x5049_4446;

/// A process, by its number and by the inode of its pidfd. A process that gets the number later has
/// another inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) inode: u64,
}

impl Process {
    /// Returns `None` before Linux 6.9, where pidfds have no inodes of their own.
    pub(super) fn of(pid: i32, pidfd: impl AsFd) -> Option<Process> {
        let is_pidfs = fstatfs(&pidfd).is_ok_and(|fs| fs.f_type == PIDFS_MAGIC);
        (is_pidfs && pid > 0).then(|| fstat(&pidfd).ok())?.map(|stat| Process { pid, inode: stat.st_ino })
    }
}

/// The FIFOs of the clients of a server that runs.
#[derive(Debug)]
pub struct Tethers {
    directory: PathBuf,
    issued: Mutex<Issued>,
}

#[derive(Debug, Default)]
struct Issued {
    /// FIFOs that were created.
    count: u64,
    /// FIFOs by process, 0 for processes without a name: those that the last search found held, and
    /// all later ones.
    held: HashMap<i32, usize>,
}

impl Tethers {
    /// Creates the next directory of FIFOs in a directory of this server, and finds those of
    /// previous servers.
    ///
    /// # Errors
    /// The file system has no FIFOs, or a client of an older version holds on.
    pub fn make(directory: &Path) -> io::Result<(Tethers, PreviousClients)> {
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
            if path.symlink_metadata()?.is_dir() {
                ownership::open_directory(&path).map_err(io::Error::other)?;
                left.extend(held_tethers(&path)?);
                remove_directory(&path);
            } else {
                remove_lock_file(&path)?;
            }
        }
        let path = path(numbers.into_iter().max().map_or(1, |last| last.saturating_add(1)));
        DirBuilder::new().mode(0o700).create(&path)?;
        // Not only when the first client connects.
        let trial = path.join("trial");
        create_fifo(&trial)?;
        fs::remove_file(&trial)?;
        Ok((Tethers { directory: path, issued: Mutex::default() }, PreviousClients::new(left)))
    }

    /// Creates a FIFO and returns its write end, for a connection of `process`. `None` stands for a
    /// process that the kernel cannot name here.
    ///
    /// # Errors
    /// The process holds too many, or the file system has no room for another.
    pub fn descriptor(&self, process: Option<&ConnectedProcess>) -> io::Result<OwnedFd> {
        let process = process.and_then(|process| Process::of(process.pid, &process.pidfd));
        let Process { pid, inode } = process.unwrap_or(Process { pid: 0, inode: 0 });
        let limit = if pid == 0 { MAX_UNNAMED } else { MAX_PER_PROCESS };
        // Locked until the FIFO has a writer, so that no search takes it for one without.
        let mut issued = self.issued.lock();
        let is_full = |issued: &Issued| issued.held.get(&pid).is_some_and(|held| *held >= limit);
        if issued.count % SWEEP_INTERVAL == SWEEP_INTERVAL - 1 || is_full(&issued) {
            match held_tethers(&self.directory) {
                Ok(tethers) => issued.held = count_by_process(&tethers),
                Err(e) => log::warn!("searching {}: {e}", self.directory.display()),
            }
        }
        issued.count += 1;
        if is_full(&issued) {
            return Err(io::Error::other(format!("client {pid} holds {limit} connections that map memory")));
        }
        let path = self.directory.join(format!("{pid}.{inode}.{}", issued.count));
        create_fifo(&path)?;
        // The write end opens without blocking while a read end is open.
        let reader = open_reader(&path)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let writer = rustix::fs::open(&path, flags, Mode::empty())?;
        drop(reader);
        *issued.held.entry(pid).or_default() += 1;
        Ok(writer)
    }
}

impl Drop for Tethers {
    /// Removes the FIFOs that no client holds. The others stay for the next server.
    fn drop(&mut self) {
        if let Err(e) = held_tethers(&self.directory) {
            log::debug!("{}: {e}", self.directory.display());
        }
        remove_directory(&self.directory);
    }
}

/// A FIFO. It is opened for each look only, so that many cost no descriptors.
#[derive(Debug)]
pub(super) struct Tether {
    pub(super) path: PathBuf,
    /// The process that connected.
    pub(super) process: Option<Process>,
}

impl Tether {
    /// Returns true if a process holds the write end. Assumes so if the kernel refuses to say.
    pub(super) fn is_held(&self) -> bool {
        let mut reader = match open_reader(&self.path) {
            Ok(reader) => reader,
            Err(e) => return e.kind() != ErrorKind::NotFound,
        };
        let mut drained = 0;
        let mut buffer = [0; 4096];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return false,
                Ok(len) if drained < MAX_DRAINED => drained += len,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// Removes the FIFO, and its directory if that is empty.
    pub(super) fn remove(&self) {
        remove_file(&self.path);
        self.path.parent().into_iter().for_each(remove_directory);
    }
}

/// Returns the FIFOs of a directory that a process holds, and removes the others.
fn held_tethers(directory: &Path) -> io::Result<Vec<Tether>> {
    let mut held = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if !entry.file_type()?.is_fifo() {
            log::warn!("{}: not a FIFO of a client: ignored", path.display());
            continue;
        }
        let tether = Tether { process: process_of(&entry.file_name()), path };
        if tether.is_held() {
            held.push(tether);
        } else {
            remove_file(&tether.path);
        }
    }
    Ok(held)
}

fn count_by_process(tethers: &[Tether]) -> HashMap<i32, usize> {
    let mut counts = HashMap::new();
    for tether in tethers {
        *counts.entry(tether.process.map_or(0, |process| process.pid)).or_default() += 1;
    }
    counts
}

fn create_fifo(path: &Path) -> io::Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

fn open_reader(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Returns the process in the name of a FIFO.
fn process_of(name: &std::ffi::OsStr) -> Option<Process> {
    let mut parts = name.to_str()?.split('.');
    let (pid, inode) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (pid > 0).then_some(Process { pid, inode })
}

fn remove_file(path: &Path) {
    if let Err(e) = fs::remove_file(path) {
        log::debug!("{}: {e}", path.display());
    }
}

/// Removes a directory that is empty.
fn remove_directory(path: &Path) {
    match fs::remove_dir(path) {
        Err(e) if e.kind() != ErrorKind::DirectoryNotEmpty => log::debug!("{}: {e}", path.display()),
        _ => {}
    }
}

/// Removes the file that clients of an older version held, which locked it.
fn remove_lock_file(path: &Path) -> io::Result<()> {
    let file = ownership::open_file(path, OFlags::RDONLY).map_err(io::Error::other)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
        rustix::io::Errno::WOULDBLOCK => io::Error::other(format!(
            "{}: held by a client of an older rfs-server: unmount or end that client first",
            path.display()
        )),
        e => e.into(),
    })?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::{fd::AsRawFd, unix::process::ExitStatusExt},
        process::{Child, Command, Stdio},
        time::Duration,
    };

    use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open};

    use super::*;

    fn connected(pid: i32) -> ConnectedProcess {
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        ConnectedProcess { pid, pidfd }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn pid_of(child: &Child) -> i32 {
        i32::try_from(child.id()).unwrap()
    }

    /// Starts a process that holds the write end of a FIFO. The FIFO names the process, as that of
    /// a connection does.
    fn holder(tethers: &Tethers) -> Child {
        // A shell that waits for its FIFO's number on its input, and then holds that FIFO.
        let mut child = Command::new("sh")
            .args(["-c", "read path && exec sleep 1000 1>$path"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = pid_of(&child);
        let write_end = tethers.descriptor(Some(&connected(pid))).unwrap();
        let name = names(&tethers.directory).into_iter().find(|name| name.starts_with(&format!("{pid}.")));
        let path = tethers.directory.join(name.unwrap());
        let reader = open_reader(&path).unwrap();
        writeln!(child.stdin.take().unwrap(), "{}", path.display()).unwrap();
        // The shell has opened it when its output is no longer this process's.
        let link = format!("/proc/{pid}/fd/1");
        while fs::read_link(&link).ok().as_deref() != Some(&*path) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop((write_end, reader));
        child
    }

    #[test]
    fn no_file_is_left_when_no_client_holds_a_tether() {
        let directory = tempfile::tempdir().unwrap();
        let (tethers, previous) = Tethers::make(directory.path()).unwrap();
        assert!(!previous.is_held() && previous.ends(true));
        assert_eq!(names(directory.path()), ["clients.1"]);
        let copy = tethers.descriptor(None).unwrap();
        drop((copy, tethers));
        assert_eq!(names(directory.path()), [""; 0]);
    }

    #[test]
    fn the_next_server_waits_for_each_holder_of_a_tether() {
        let directory = tempfile::tempdir().unwrap();
        let own = getpid().as_raw_nonzero().get();
        let (first, _) = Tethers::make(directory.path()).unwrap();
        let copy = first.descriptor(Some(&connected(own))).unwrap();
        drop(first);
        assert_eq!(names(directory.path()), ["clients.1"]);
        let (second, previous) = Tethers::make(directory.path()).unwrap();
        assert!(previous.is_held());
        assert_eq!(previous.is_held_by(own), Some(true));
        // The server never kills itself.
        assert!(!previous.ends(true) && !previous.ends(false) && previous.is_held());
        // And the next server waits for clients of both.
        let later = second.descriptor(None).unwrap();
        drop((second, previous));
        let (_third, previous) = Tethers::make(directory.path()).unwrap();
        assert_eq!(names(directory.path()), ["clients.1", "clients.2", "clients.3"]);
        assert_eq!(previous.is_held_by(own), Some(true));
        drop(copy);
        assert!(previous.is_held());
        assert_eq!(previous.is_held_by(own), Some(true), "the tether has no name, but is open here");
        assert_eq!(names(directory.path()), ["clients.2", "clients.3"]);
        drop(later);
        assert!(!previous.is_held());
        assert_eq!(names(directory.path()), ["clients.3"]);
    }

    /// With a lock of a shared open file description, one client could unlock for all.
    #[test]
    fn a_client_cannot_release_the_tether_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = Tethers::make(directory.path()).unwrap();
        let [honest, hostile] = [(); 2].map(|()| first.descriptor(None).unwrap());
        drop(first);
        // An unlock, a read end of its own, bytes in its FIFO, and at last the end of its tether.
        let _ = flock(&hostile, FlockOperation::Unlock);
        let path = fs::read_link(format!("/proc/self/fd/{}", hostile.as_raw_fd())).unwrap();
        let _reader = open_reader(&path).unwrap();
        rustix::io::write(&hostile, &[1; 60_000]).unwrap();
        drop(hostile);
        let (_second, previous) = Tethers::make(directory.path()).unwrap();
        assert!(previous.is_held());
        drop(honest);
        assert!(!previous.is_held());
    }

    #[test]
    fn tethers_that_ended_are_removed_while_the_server_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (tethers, _) = Tethers::make(directory.path()).unwrap();
        let kept = tethers.descriptor(None).unwrap();
        for _ in 0..3 * SWEEP_INTERVAL {
            drop(tethers.descriptor(None).unwrap());
        }
        assert!(names(&tethers.directory).len() <= 2 + usize::try_from(SWEEP_INTERVAL).unwrap());
        drop(tethers);
        let (_next, previous) = Tethers::make(directory.path()).unwrap();
        assert!(previous.is_held());
        drop(kept);
        assert!(!previous.is_held());
    }

    #[test]
    fn the_holder_of_a_tether_is_killed_and_no_other_process() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = Tethers::make(directory.path()).unwrap();
        let mut of_previous = holder(&first);
        drop(first);
        let (second, previous) = Tethers::make(directory.path()).unwrap();
        let mut of_now = holder(&second);
        assert_eq!(
            [&of_previous, &of_now].map(|child| previous.is_held_by(pid_of(child))),
            [Some(true), Some(false)]
        );
        assert!(!previous.ends(false));
        assert!(of_previous.try_wait().unwrap().is_none(), "it may live");
        while previous.is_held() {
            previous.ends(true);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(of_previous.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(previous.ends(true));
        assert!(of_now.try_wait().unwrap().is_none());
        of_now.kill().unwrap();
        of_now.wait().unwrap();
    }

    #[test]
    fn a_process_that_was_given_a_tether_is_found_when_the_named_one_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = Tethers::make(directory.path()).unwrap();
        let mut named = Command::new("sleep").arg("1000").spawn().unwrap();
        let tether = first.descriptor(Some(&connected(pid_of(&named)))).unwrap();
        let mut heir = Command::new("sleep").arg("1000").stdout(Stdio::from(tether)).spawn().unwrap();
        drop(first);
        let (_second, previous) = Tethers::make(directory.path()).unwrap();
        // Not waited for at first: it may be killed, but it is no holder any more.
        named.kill().unwrap();
        for round in 0.. {
            if previous.ends(true) {
                break;
            }
            assert!(round < 300, "the heir lives");
            std::thread::sleep(Duration::from_millis(100));
            named.wait().unwrap();
        }
        assert_eq!(heir.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn many_tethers_cost_no_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let count = || fs::read_dir("/proc/self/fd").unwrap().count();
        let (first, _) = Tethers::make(directory.path()).unwrap();
        let before = count();
        let held: Vec<OwnedFd> = (0..3 * SWEEP_INTERVAL).map(|_| first.descriptor(None).unwrap()).collect();
        assert_eq!(count(), before + held.len());
        drop(first);
        let (_second, previous) = Tethers::make(directory.path()).unwrap();
        assert!(previous.is_held());
        assert_eq!(count(), before + held.len());
    }

    #[test]
    fn one_process_cannot_hold_tethers_without_limit() {
        let directory = tempfile::tempdir().unwrap();
        let (tethers, _) = Tethers::make(directory.path()).unwrap();
        let own = connected(getpid().as_raw_nonzero().get());
        let mut held: Vec<OwnedFd> =
            (0..MAX_PER_PROCESS).map(|_| tethers.descriptor(Some(&own)).unwrap()).collect();
        let refused = tethers.descriptor(Some(&own)).unwrap_err().to_string();
        assert!(refused.contains("connections that map memory"), "{refused}");
        // Others are served, and so is this process when it holds fewer.
        tethers.descriptor(None).unwrap();
        held.pop();
        held.push(tethers.descriptor(Some(&own)).unwrap());
        tethers.descriptor(Some(&own)).unwrap_err();
    }

    #[test]
    fn the_lock_file_of_an_older_version_is_respected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients.7");
        let lock = File::create(&path).unwrap();
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let refused = Tethers::make(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("clients.7: held by a client of an older rfs-server"), "{refused}");
        drop(lock);
        let (tethers, previous) = Tethers::make(directory.path()).unwrap();
        assert!(!previous.is_held());
        assert_eq!(names(directory.path()), ["clients.8"]);
        drop(tethers);
    }
}
