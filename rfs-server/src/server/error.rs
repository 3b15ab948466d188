//! Why a server does not start, or does not end well.

use std::{fmt, io, path::PathBuf, time::Duration};

use rdmabox::{Address, HostError, KeyFileError, MemoryError, size, tls::TlsError};

use crate::{
    config::MIN_MEMORY,
    dispatch::Damage,
    durable::ObjectError,
    ownership::OwnershipError,
    persist::{PersistError, keeper::LastSnapshotError, restore::RestoreError},
    system::Bound,
};

/// Why a server did not start. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Not worth a file system.
    #[error("cannot lend {}: the least is {}", size::show(*.asked), size::show(MIN_MEMORY))]
    TooLittle {
        /// Bytes asked for.
        asked: u64,
    },
    /// The root directory needs one.
    #[error("a file system needs at least one inode")]
    NoInodes,
    /// One name twice.
    #[error("the export {name:?} is given twice")]
    ExportTwice {
        /// The name.
        name: String,
    },
    /// Clients would lose their sessions for other reasons first.
    #[error("--recall-timeout {patience:?} has to be less than --lease {lease:?}")]
    Patience {
        /// How long a client may take to say that it keeps something no longer.
        patience: Duration,
        /// How long a client that is not heard of keeps its session.
        lease: Duration,
    },
    /// Nobody could ever connect.
    #[error("no address to listen on")]
    NoListener,
    /// One address twice.
    #[error("{address} is given twice")]
    ListenTwice {
        /// The address.
        address: Address,
    },
    /// A listener at which every program would be a client.
    #[error(
        "{address}: without keys any program that connects could read and write every file: give keys (--keys FILE; \
         --new-key NAME makes one), or say --allow-without-keys if that is intended"
    )]
    Open {
        /// The address.
        address: Address,
    },
    /// The file with keys is missing, or says nothing that makes sense, or others may read it.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// TLS would not be what carries the data.
    #[error(
        "{address}: with --tls-cert there can be no address for RDMA: what its devices carry cannot be encrypted by TLS"
    )]
    TlsRdma {
        /// The address.
        address: Address,
    },
    /// Nobody would speak it.
    #[error("--tls-cert is for addresses of TCP, and there is none: give --listen tcp:HOST:PORT")]
    TlsNowhere,
    /// Certificates that are missing, or do not fit together.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    /// More than there is.
    #[error("cannot lend {}: only {} of {} is available", size::show(*.asked), size::show(.bound.bytes), .bound.what)]
    NotEnough {
        /// Bytes needed.
        asked: u64,
        /// What stands in the way.
        bound: Bound,
    },
    /// The space of the files that have the memory cannot be had.
    #[error("--memory-dir {path}: {source}: {}", reserve_step(source), path = .path.display())]
    Reserve {
        /// The directory of the export.
        path: PathBuf,
        /// The reason.
        source: MemoryError,
    },
    /// The files that have the memory cannot be used.
    #[error("--memory-dir {0}")]
    Object(#[from] ObjectError),
    /// What is kept there is no file system.
    #[error("--memory-dir {path}: {source}", path = .path.display())]
    Damage {
        /// The directory of the export.
        path: PathBuf,
        /// What is wrong.
        source: Damage,
    },
    /// Two things in one place.
    #[error("--memory-dir and --persist need a directory each")]
    SameDirectory,
    /// Snapshots cannot be used, or there is none to begin with.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// The snapshot to begin with cannot be restored.
    #[error("cannot restore {path}: {source}", path = .path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RestoreError,
    },
    /// The system refused the memory.
    #[error("cannot lend memory: {0}")]
    Memory(#[from] MemoryError),
    /// The directory of a Unix socket cannot be created, or other users can change it.
    #[error("cannot listen in {path}: {source}", path = .path.display())]
    SocketDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: OwnershipError,
    },
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// No random numbers.
    #[error("getrandom failed: {0}")]
    Random(io::Error),
    /// An address in use, or another network error.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The next step after a reservation that failed.
fn reserve_step(error: &MemoryError) -> &'static str {
    match error {
        MemoryError::Os { source, .. } if source.kind() == io::ErrorKind::Unsupported => {
            "this file system cannot reserve space, use a tmpfs such as /dev/shm"
        }
        _ => "lend less (--memory, --inodes), or make room there",
    }
}

/// A server that has ended without all of its last snapshots.
#[derive(Debug)]
pub struct ShutdownError {
    /// The exports whose last snapshot failed.
    pub failed: Vec<LastSnapshotError>,
    /// The directory of the memory, if files outlive the server there.
    pub kept: Option<PathBuf>,
}

impl std::error::Error for ShutdownError {}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failed in &self.failed {
            write!(f, "{failed}; ")?;
        }
        match &self.kept {
            Some(directory) => write!(
                f,
                "--memory-dir {} has the files until this machine ends: start the server again with it",
                directory.display()
            ),
            None => write!(f, "those changes are lost"),
        }
    }
}
