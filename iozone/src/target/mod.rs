//! What is measured: something that gives a directory for a while.
//!
//! A [`Target`] is a description that can be started; what it starts is a [`Running`] that stops on drop at
//! the latest. Peers (other file systems) become measurable by one more implementation.

mod gluster;
mod moosefs;
mod mounted;
mod peer;
mod rfs;
mod sshfs;
mod tmpfs;

use std::path::{Path, PathBuf};

pub use gluster::Gluster;
pub use moosefs::Moosefs;
pub use rfs::{Provider, Rfs};
pub use sshfs::Sshfs;
pub use tmpfs::Tmpfs;

use crate::{
    Error, Result,
    cli::{Bench, Switches, TargetKind},
    interrupt::Interrupt,
    places::Places,
    process::Guarded,
    size,
};

/// Something that can be measured.
pub trait Target {
    /// Short name: of a table row, of a bar, of a JSON entry.
    fn name(&self) -> &str;

    /// What it is, in a few words.
    fn title(&self) -> &str;

    /// Whether it stands beside the others only as a bound.
    fn is_ceiling(&self) -> bool;

    /// Why it cannot be started on this machine, if that is known beforehand.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Starts it. The directory is empty and usable when this returns.
    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>>;
}

/// A program of a target, by its process number. What it starts belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// It is behind the mount.
    Client(u32),
    /// It is behind the client.
    Server(u32),
}

impl Process {
    /// The number.
    pub fn id(self) -> u32 {
        match self {
            Process::Client(id) | Process::Server(id) => id,
        }
    }
}

/// A started target.
pub trait Running {
    /// The directory to measure in.
    fn mountpoint(&self) -> &Path;

    /// All its directories, where it is mounted more than once on the same files.
    fn mountpoints(&self) -> Vec<&Path> {
        vec![self.mountpoint()]
    }

    /// Command lines that started it.
    fn commands(&self) -> Vec<String>;

    /// Its programs. None where the kernel does it all.
    fn processes(&self) -> Vec<Process> {
        Vec::new()
    }

    /// Mounts it anew, so that nothing is cached but what the server has. False if it has no mount to end without its
    /// files: nothing has changed then.
    fn remount(&mut self, interrupt: &Interrupt) -> Result<bool> {
        let _ = interrupt;
        Ok(false)
    }

    /// The address of a server of rfs behind it.
    fn server(&self) -> Option<&str> {
        None
    }

    /// Adds to an error what the target itself has to say, such as the end of one of its programs.
    fn explain(&mut self, error: Error) -> Error;

    /// Ends it, and returns what it printed about itself. Fails if a process, a mount or a file stays.
    fn stop(self: Box<Self>) -> Result<String>;
}

/// Adds to an error how those of a target's programs have failed that have ended.
fn with_dead<'a>(error: Error, programs: impl IntoIterator<Item = &'a mut Guarded>) -> Error {
    let ended = |program: &mut Guarded| {
        matches!(program.ended(), Ok(Some(_))).then(|| format!("\n  {}", program.failure("ended")))
    };
    let dead: String = programs.into_iter().filter_map(ended).collect();
    match dead.is_empty() {
        true => error,
        false => Error::Child { program: "the run".into(), what: format!("{error}{dead}") },
    }
}

/// What the targets of one run have in common.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Directory of `rfs-server` and `rfs-fuse`.
    pub bin_dir: PathBuf,
    /// Switches for the mounts.
    pub switches: Switches,
    /// Memory for the server.
    pub server_memory: u64,
    /// How many files, directories and links the server can have [default: its own].
    pub inodes: Option<u64>,
    /// Mounts on one server; without a server, each is a file system of its own.
    pub mounts: u32,
    /// A directory on a tmpfs.
    pub tmpfs_dir: PathBuf,
    /// Bytes of files that a target must hold.
    pub files: u64,
    /// Addresses of servers elsewhere. None: they are started here.
    pub connect: Vec<String>,
}

impl Setup {
    /// From the options.
    pub fn new(bench: &Bench, file_size: u64) -> Result<Self> {
        Ok(Self {
            switches: bench.switches.clone(),
            server_memory: size::server_memory(file_size, bench.threads),
            files: file_size.saturating_mul(u64::from(bench.threads)),
            connect: bench.connect.clone(),
            ..Self::at(&bench.places)?
        })
    }

    /// For nothing yet, where these things are: what is asked for is to be put in.
    pub fn at(places: &Places) -> Result<Self> {
        Ok(Self {
            bin_dir: places.bin_dir()?,
            switches: Switches::default(),
            server_memory: 0,
            inodes: None,
            mounts: 1,
            tmpfs_dir: places.tmpfs_dir.clone(),
            files: 0,
            connect: Vec::new(),
        })
    }
}

/// The targets that were asked for, once each. With servers elsewhere, each of rfs needs one.
pub fn targets(kinds: &[TargetKind], setup: &Setup) -> Result<Vec<Box<dyn Target>>> {
    let rfs = |provider| -> Result<Box<dyn Target>> { Ok(Box::new(Rfs::new(provider, setup.clone())?)) };
    let mut seen = Vec::new();
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    for &kind in kinds {
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        targets.push(match kind {
            TargetKind::Shm => rfs(Provider::Shm)?,
            TargetKind::Tcp => rfs(Provider::Tcp)?,
            TargetKind::Rdma => rfs(Provider::Rdma)?,
            TargetKind::Null => rfs(Provider::Null)?,
            TargetKind::Tmpfs => Box::new(Tmpfs::new(setup.files, setup.tmpfs_dir.clone())),
        });
    }
    Ok(targets)
}
