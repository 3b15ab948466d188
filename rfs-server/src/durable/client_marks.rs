//! Detects local clients that still map the memory of a previous server process.
//!
//! A client of this host writes to mapped memory with its own processor, also after the server has
//! ended. So each connection that maps memory holds the write end of a FIFO of its own, until none
//! of its requests can access the memory ([`Host::tether`](rdmabox::Host::tether)). The next server
//! asks the kernel whether a FIFO has a writer: a stopped client cannot be missed, because it need
//! not answer. A client can close its own write end, but not that of another client. The name of a
//! FIFO says which process got it.
//!
//! # Concurrency
//! Any thread. [`ClientMarks`] has a lock over its count of FIFOs. [`PriorClients`] has a lock over
//! the FIFOs of previous servers, and one over what it has reported; the second is taken first.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, fstatfs, mknodat},
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};
use seeded_faults::{Fault, seeded};

use crate::ownership;

/// Prefix of the directories of FIFOs, before their number. No export's directory has a name with a
/// dot.
const PREFIX: &str = "clients.";
/// Least time between two attempts to kill processes.
const KILL_INTERVAL: Duration = Duration::from_secs(1);
/// New FIFOs between two searches for those that have no writer any more.
const SWEEP_INTERVAL: u64 = 64;
/// Bytes of a FIFO that are read at most to find out whether it has a writer. Only a client that
/// does not follow the protocol writes any.
const MAX_DRAINED: usize = 1 << 20;

/// A process, by its number and by what tells it from another process that gets this number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    /// The inode of its pidfd (Linux 6.9), else the time of its start.
    identity: u64,
}

impl Process {
    fn of(pid: i32) -> Option<Process> {
        Process::open(pid).map(|(process, _)| process)
    }

    /// Returns the process that has a number now, and its pidfd.
    fn open(pid: i32) -> Option<(Process, OwnedFd)> {
        let pidfd = pidfd_open(Pid::from_raw(pid).filter(|_| pid > 0)?, PidfdFlags::empty()).ok()?;
        let identity = if fstatfs(&pidfd).is_ok_and(|fs| fs.f_type == PIDFS_MAGIC) {
            rustix::fs::fstat(&pidfd).ok()?.st_ino
        } else {
            start_time(pid)?
        };
        Some((Process { pid, identity }, pidfd))
    }
}

/// `PID_FS_MAGIC`: pidfds have a file system of their own, with one inode for each process.
const PIDFS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

/// Returns field 22 of `/proc/PID/stat`, in clock ticks since the start of the machine.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The FIFOs of the clients of a server that runs.
#[derive(Debug)]
pub struct ClientMarks {
    directory: PathBuf,
    /// FIFOs that were created.
    count: Mutex<u64>,
}

impl ClientMarks {
    /// Creates the next directory of FIFOs in a directory of this server, and finds those of
    /// previous servers.
    pub fn make(directory: &Path) -> io::Result<(ClientMarks, PriorClients)> {
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
                left.extend(marks(&path)?);
                remove_directory(&path);
            } else {
                remove_lock_file(&path)?;
            }
        }
        let path = path(numbers.into_iter().max().map_or(1, |last| last.saturating_add(1)));
        DirBuilder::new().mode(0o700).create(&path)?;
        let former = PriorClients { left: Mutex::new(left), reported: Mutex::default() };
        Ok((ClientMarks { directory: path, count: Mutex::new(0) }, former))
    }

    /// Creates a FIFO and returns its write end, for a connection of process `pid`. `None` stands
    /// for a process that the kernel cannot name here.
    pub fn descriptor(&self, pid: Option<i32>) -> io::Result<OwnedFd> {
        // Locked until the FIFO has a writer, so that no search takes it for one without.
        let mut count = self.count.lock();
        if count.is_multiple_of(SWEEP_INTERVAL) {
            marks(&self.directory)?;
        }
        *count += 1;
        let Process { pid, identity } = pid.and_then(Process::of).unwrap_or(Process { pid: 0, identity: 0 });
        let path = self.directory.join(format!("{pid}.{identity}.{count}"));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // The write end opens without blocking while a read end is open.
        let _reader = open_reader(&path)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&path, flags, Mode::empty())?)
    }
}

impl Drop for ClientMarks {
    /// Removes the FIFOs that no client holds. The others stay for the next server.
    fn drop(&mut self) {
        if let Err(e) = marks(&self.directory) {
            log::debug!("{}: {e}", self.directory.display());
        }
        remove_directory(&self.directory);
    }
}

/// A FIFO of a previous server's client.
#[derive(Debug)]
struct Mark {
    path: PathBuf,
    reader: File,
    holder: Option<Process>,
}

impl Mark {
    /// Returns true if a client holds the write end. Assumes so if the kernel refuses to say.
    fn is_held(&self) -> bool {
        let mut drained = 0;
        let mut buffer = [0; 4096];
        loop {
            match (&self.reader).read(&mut buffer) {
                Ok(0) => return false,
                Ok(len) if drained < MAX_DRAINED => drained += len,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

/// Returns the FIFOs of a directory that clients hold, and removes the others.
fn marks(directory: &Path) -> io::Result<Vec<Mark>> {
    let mut held = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if !entry.file_type()?.is_fifo() {
            log::warn!("{}: not a FIFO of a client: ignored", path.display());
            continue;
        }
        let mark = Mark { reader: open_reader(&path)?, holder: holder_of(&entry.file_name()), path };
        if mark.is_held() {
            held.push(mark);
        } else {
            remove_file(&mark.path);
        }
    }
    Ok(held)
}

fn open_reader(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Returns the process in the name of a FIFO.
fn holder_of(name: &std::ffi::OsStr) -> Option<Process> {
    let mut parts = name.to_str()?.split('.');
    let (pid, identity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (pid > 0).then_some(Process { pid, identity })
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
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let held =
            format!("{}: held by a client of an older rfs-server: end that client first", path.display());
        io::Error::other(held)
    })?;
    fs::remove_file(path)
}

/// Clients of previous servers that may still access memory.
#[derive(Debug, Default)]
pub struct PriorClients {
    left: Mutex<Vec<Mark>>,
    reported: Mutex<Reported>,
}

#[derive(Debug, Default)]
struct Reported {
    /// Time of the last attempt to kill processes.
    tried: Option<Instant>,
    /// The log names a client that cannot be killed.
    cannot_end: bool,
}

impl PriorClients {
    /// Returns true if a client of a previous server may still access memory.
    pub fn is_held(&self) -> bool {
        let mut left = self.left.lock();
        left.retain(|mark| {
            let is_held = mark.is_held();
            if !is_held {
                remove_file(&mark.path);
                mark.path.parent().into_iter().for_each(remove_directory);
            }
            is_held
        });
        !left.is_empty() && !seeded(Fault::FormerForgotten)
    }

    /// Returns whether a process is among these clients; `None` if that cannot be known.
    pub fn is_held_by(&self, pid: i32) -> Option<bool> {
        let process = Process::of(pid)?;
        let left = self.left.lock();
        let mut held = left.iter().filter(|mark| mark.is_held()).peekable();
        let unknown = held.peek().is_some() && left.iter().any(|mark| mark.holder.is_none());
        match held.any(|mark| mark.holder == Some(process)) {
            true => Some(true),
            false if unknown => None,
            false => Some(false),
        }
    }

    /// Kills these clients, if `kill` is set, at most once a second. Returns true if none is left.
    pub fn ends(&self, kill: bool) -> bool {
        if !self.is_held() {
            return true;
        }
        // Another thread is about to try.
        let Some(mut reported) = self.reported.try_lock() else { return false };
        if reported.tried.is_some_and(|tried| tried.elapsed() < KILL_INTERVAL) {
            return false;
        }
        reported.tried = Some(Instant::now());
        let killed = if kill { self.kill_holders() } else { 0 };
        if killed == 0 && !reported.cannot_end {
            reported.cannot_end = true;
            log::warn!(
                "a client of a previous server does not react and still maps memory, and {}: the files that such \
                 clients had open stay taken until it ends or unmaps",
                if kill { "cannot be found or killed" } else { "is not to be killed (yet)" }
            );
        }
        reported.cannot_end &= kill;
        !self.is_held()
    }

    /// Returns the number of processes that it has killed.
    fn kill_holders(&self) -> usize {
        let own = getpid().as_raw_nonzero().get();
        let mut holders: Vec<Process> = self.left.lock().iter().filter_map(|mark| mark.holder).collect();
        holders.sort_by_key(|holder| holder.pid);
        holders.dedup();
        holders.into_iter().filter(|holder| holder.pid != own && kill(*holder)).count()
    }
}

/// Kills a process, unless its number is another process's by now. Returns true if it was killed.
fn kill(holder: Process) -> bool {
    let pid = holder.pid;
    let Some((_, pidfd)) = Process::open(pid).filter(|(now, _)| *now == holder) else { return false };
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) => {
            log::warn!("killed client {pid}: unresponsive, and still maps memory of the previous server");
            true
        }
        Err(e) => {
            log::debug!("process {pid} cannot be killed: {e}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::{fd::AsRawFd, unix::process::ExitStatusExt},
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

    fn pid_of(child: &Child) -> i32 {
        i32::try_from(child.id()).unwrap()
    }

    /// Starts a process that holds the write end of a FIFO. The FIFO names the process, as that of
    /// a connection does.
    fn holder(tether: &ClientMarks) -> Child {
        // A shell that waits for its FIFO's number on its input, and then holds that FIFO.
        let mut child = Command::new("sh")
            .args(["-c", "read path && exec sleep 1000 1>$path"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = pid_of(&child);
        let write_end = tether.descriptor(Some(pid)).unwrap();
        let name = names(&tether.directory).into_iter().find(|name| name.starts_with(&format!("{pid}.")));
        let path = tether.directory.join(name.unwrap());
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
    fn no_file_is_left_when_no_client_holds_a_mark() {
        let directory = tempfile::tempdir().unwrap();
        let (tether, former) = ClientMarks::make(directory.path()).unwrap();
        assert!(!former.is_held() && former.ends(true));
        assert_eq!(names(directory.path()), ["clients.1"]);
        let copy = tether.descriptor(None).unwrap();
        drop((copy, tether));
        assert_eq!(names(directory.path()), [""; 0]);
    }

    #[test]
    fn the_next_server_waits_for_each_holder_of_a_mark() {
        let directory = tempfile::tempdir().unwrap();
        let own = getpid().as_raw_nonzero().get();
        let (first, _) = ClientMarks::make(directory.path()).unwrap();
        let copy = first.descriptor(Some(own)).unwrap();
        drop(first);
        assert_eq!(names(directory.path()), ["clients.1"]);
        let (second, former) = ClientMarks::make(directory.path()).unwrap();
        assert!(former.is_held());
        assert_eq!(former.is_held_by(own), Some(true));
        // The server never kills itself.
        assert!(!former.ends(true) && !former.ends(false) && former.is_held());
        // And the next server waits for clients of both.
        let later = second.descriptor(None).unwrap();
        drop((second, former));
        let (_third, former) = ClientMarks::make(directory.path()).unwrap();
        assert_eq!(names(directory.path()), ["clients.1", "clients.2", "clients.3"]);
        assert_eq!(former.is_held_by(own), Some(true));
        drop(copy);
        assert!(former.is_held());
        assert_eq!(former.is_held_by(own), None, "the last holder has no name");
        assert_eq!(names(directory.path()), ["clients.2", "clients.3"]);
        drop(later);
        assert!(!former.is_held());
        assert_eq!(names(directory.path()), ["clients.3"]);
    }

    /// With a lock of a shared open file description, one client could unlock for all.
    #[test]
    fn a_client_cannot_release_the_mark_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = ClientMarks::make(directory.path()).unwrap();
        let [honest, hostile] = [(); 2].map(|()| first.descriptor(None).unwrap());
        drop(first);
        // An unlock, a read end of its own, bytes in its FIFO, and at last the end of its own mark.
        let _ = flock(&hostile, FlockOperation::Unlock);
        let path = fs::read_link(format!("/proc/self/fd/{}", hostile.as_raw_fd())).unwrap();
        let _reader = open_reader(&path).unwrap();
        rustix::io::write(&hostile, &[1; 60_000]).unwrap();
        drop(hostile);
        let (_second, former) = ClientMarks::make(directory.path()).unwrap();
        assert!(former.is_held());
        drop(honest);
        assert!(!former.is_held());
    }

    #[test]
    fn marks_that_ended_are_removed_while_the_server_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (tether, _) = ClientMarks::make(directory.path()).unwrap();
        let kept = tether.descriptor(None).unwrap();
        for _ in 0..3 * SWEEP_INTERVAL {
            drop(tether.descriptor(None).unwrap());
        }
        assert!(names(&tether.directory).len() <= 2 + usize::try_from(SWEEP_INTERVAL).unwrap());
        drop(tether);
        let (_next, former) = ClientMarks::make(directory.path()).unwrap();
        assert!(former.is_held());
        drop(kept);
        assert!(!former.is_held());
    }

    #[test]
    fn the_holder_of_a_mark_is_killed_and_no_other_process() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = ClientMarks::make(directory.path()).unwrap();
        let mut of_before = holder(&first);
        drop(first);
        let (second, former) = ClientMarks::make(directory.path()).unwrap();
        let mut of_now = holder(&second);
        assert_eq!(
            [&of_before, &of_now].map(|child| former.is_held_by(pid_of(child))),
            [Some(true), Some(false)]
        );
        assert!(!former.ends(false));
        assert!(of_before.try_wait().unwrap().is_none(), "it may live");
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

    #[test]
    fn a_process_that_got_the_number_of_a_holder_is_not_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let now = Process::of(pid_of(&child)).unwrap();
        assert!(!kill(Process { identity: now.identity + 1, ..now }));
        assert!(child.try_wait().unwrap().is_none());
        assert!(kill(now));
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(start_time(getpid().as_raw_nonzero().get()).is_some());
    }

    #[test]
    fn the_lock_file_of_an_older_version_is_respected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients.7");
        let lock = File::create(&path).unwrap();
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let refused = ClientMarks::make(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("clients.7: held by a client of an older rfs-server"), "{refused}");
        drop(lock);
        let (tether, former) = ClientMarks::make(directory.path()).unwrap();
        assert!(!former.is_held());
        assert_eq!(names(directory.path()), ["clients.8"]);
        drop(tether);
    }
}
