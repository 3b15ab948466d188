//! The interface of targets: descriptions that can be started, and started targets.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cli::{Places, Switches},
    interrupt::Interrupt,
    process::Guarded,
};

/// The role of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// rfs with its defaults, or as the options ask.
    #[default]
    Ours,
    /// rfs with an optimization disabled.
    Variant,
    /// A limit that rfs cannot exceed.
    Ceiling,
    /// Another file system. If it is missing or fails, a comparison continues without it.
    Peer,
}

/// A system that can be measured.
pub trait Target {
    /// Returns a short name for tables, charts and JSON.
    fn name(&self) -> &str;

    /// Returns a short description.
    fn title(&self) -> &str;

    /// Returns its role.
    fn side(&self) -> Side;

    /// Returns the reason why it cannot start on this machine, if that is known in advance.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Starts the target. On return its directory is empty and usable.
    fn start(&self, interrupt: &Interrupt) -> Result<Box<dyn Running>>;
}

/// A process of a target, by its process ID. Its descendants belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// A client process, behind the mount.
    Client(u32),
    /// A server process.
    Server(u32),
}

impl Process {
    /// Returns the process ID.
    pub fn id(self) -> u32 {
        match self {
            Process::Client(id) | Process::Server(id) => id,
        }
    }
}

/// A started target.
pub trait Running {
    /// Returns the directory to measure in.
    fn mountpoint(&self) -> &Path;

    /// Returns all directories, if the files are mounted more than once.
    fn mountpoints(&self) -> Vec<&Path> {
        vec![self.mountpoint()]
    }

    /// Returns the command lines that started the target.
    fn commands(&self) -> Vec<String>;

    /// Returns its processes; none if the kernel does all work.
    fn processes(&self) -> Vec<Process> {
        Vec::new()
    }

    /// Remounts, so that only the server has cached state. Returns false without a change if
    /// remounting would lose the files.
    fn remount(&mut self, interrupt: &Interrupt) -> Result<bool> {
        let _ = interrupt;
        Ok(false)
    }

    /// Returns the address of its rfs server, if it has one.
    fn server(&self) -> Option<&str> {
        None
    }

    /// Adds information of the target to an error, such as the end of one of its processes.
    fn explain(&mut self, error: Error) -> Error;

    /// Stops the target and returns its output. Fails if a process, a mount or a file remains.
    fn stop(self: Box<Self>) -> Result<String>;
}

/// Adds to an error how the ended processes of a target failed.
pub(super) fn with_dead<'a>(error: Error, programs: impl IntoIterator<Item = &'a mut Guarded>) -> Error {
    let ended = |program: &mut Guarded| {
        matches!(program.ended(), Ok(Some(_))).then(|| format!("\n  {}", program.failure("ended")))
    };
    let dead: String = programs.into_iter().filter_map(ended).collect();
    match dead.is_empty() {
        true => error,
        false => Error::Child { program: "the run".into(), what: format!("{error}{dead}") },
    }
}

/// Common options of the targets of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Directory of `rfs-server` and `rfs-fuse`.
    pub bin_dir: PathBuf,
    /// Options of the mounts.
    pub switches: Switches,
    /// Memory for the server.
    pub server_memory: u64,
    /// Number of inodes of the server [default: the server's].
    pub inodes: Option<u64>,
    /// Number of mounts of one server. Without a server, each is a separate file system.
    pub mounts: u32,
    /// A directory on a tmpfs.
    pub tmpfs_dir: PathBuf,
    /// Total bytes of the files that a target must hold.
    pub files: u64,
    /// Addresses of external servers. If empty, servers are started here.
    pub connect: Vec<String>,
}

impl Setup {
    /// Returns a setup with these locations. The caller sets the other fields.
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
