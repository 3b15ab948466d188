//! Errors of the start, of a change of an export's size, and of the shutdown of a server.

use std::{fmt, io, path::PathBuf, time::Duration};

use rdmabox::{Address, HostError, KeyFileError, MemoryError, memory::MemoryBound, tls::TlsError};

use super::{export_config::MIN_MEMORY, stores::StoresError};
use crate::{
    dispatch::Damage,
    memory_object::{object::ObjectError, ownership::OwnershipError},
    snapshots::{directory::PersistError, restore::RestoreError, snapshotter::LastSnapshotError},
    space::account::TooSmall,
};

/// Reason why a server did not start. Everything is undone.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An export is smaller than the minimum.
    #[error("cannot lend {}: the least is {}", byte_size::show(*.asked), byte_size::show(MIN_MEMORY))]
    TooLittle {
        /// Requested size in bytes.
        asked: u64,
    },
    /// An export has no inode for its root directory.
    #[error("a file system needs at least one inode")]
    NoInodes,
    /// Two exports have the same name.
    #[error("the export {name:?} is given twice")]
    ExportTwice {
        /// The name.
        name: String,
    },
    /// The largest size of an export is below its size.
    #[error("export {name:?}: max is {}, which is below its size: give a larger max, or none", byte_size::show(*.max))]
    MaxBelowSize {
        /// Name of the export.
        name: String,
        /// The largest size.
        max: u64,
    },
    /// An RDMA device pins all memory that it registers.
    #[error(
        "export {name:?} cannot grow with the address {address}: an RDMA device pins the memory of the largest size. \
         Give the size without max (--max-memory, max= of --export), or no rdma: address"
    )]
    GrowthOverRdma {
        /// Name of the export.
        name: String,
        /// The address.
        address: Address,
    },
    /// The files of a memory object or a snapshot do not fit in the size of the export.
    #[error(
        "export {name:?}: its files do not fit in {}: give at least {} (--memory, or the size of --export), or remove \
         files first{}", exact(*.asked), exact(*.least), of_quarantine(*.quarantined)
    )]
    TooSmall {
        /// Name of the export.
        name: String,
        /// Size that the options ask for, in bytes.
        asked: u64,
        /// The least size that is possible now.
        least: u64,
        /// Bytes of it that are free, but that clients can still reach.
        quarantined: u64,
    },
    /// The recall timeout is not less than the lease, so that sessions would end by the lease
    /// first.
    #[error("--recall-timeout {timeout:?} has to be less than --lease {lease:?}")]
    RecallTimeout {
        /// The recall timeout.
        timeout: Duration,
        /// The lease.
        lease: Duration,
    },
    /// There is no address to listen on.
    #[error("no address to listen on")]
    NoListener,
    /// The same address twice.
    #[error("{address} is given twice")]
    ListenTwice {
        /// The address.
        address: Address,
    },
    /// The server would accept every program that connects to an address.
    #[error(
        "{address}: without keys any program that connects could read and write every file: give keys (--keys FILE; \
         --new-key NAME makes one), or say --allow-without-keys if that is intended"
    )]
    Open {
        /// The address.
        address: Address,
    },
    /// The key file is missing, invalid, or accessible to other users.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// TLS cannot protect an RDMA address.
    #[error(
        "{address}: with --tls-cert there can be no address for RDMA: what its devices carry cannot be encrypted by TLS"
    )]
    TlsRdma {
        /// The address.
        address: Address,
    },
    /// TLS is configured without a TCP address.
    #[error("--tls-cert is for addresses of TCP, and there is none: give --listen tcp:HOST:PORT")]
    TlsNowhere,
    /// Certificates are missing or do not match.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    /// The machine has too little memory or space.
    #[error("cannot lend {}: only {} of {} is available", byte_size::show(*.asked), byte_size::show(.bound.bytes), .bound.what)]
    NotEnough {
        /// Bytes needed.
        asked: u64,
        /// The exhausted resource.
        bound: MemoryBound,
    },
    /// The space of the memory object cannot be reserved.
    #[error("--memory-dir {path}: {source}: {}", reserve_step(source), path = .path.display())]
    Reserve {
        /// The directory of the export.
        path: PathBuf,
        /// The reason.
        source: MemoryError,
    },
    /// An export is not in a directory, which has another export that is not asked for.
    #[error(
        "{option} {path}: no export {missing:?} is there, but {}: correct the name (--name, --export), serve all that \
         are there, or move {} away to start empty",
        list(.there), .path.join(.there.first().map_or("", String::as_str)).display(), path = .path.display()
    )]
    OtherNames {
        /// The option that names the directory.
        option: &'static str,
        /// The directory.
        path: PathBuf,
        /// The export that is not there.
        missing: String,
        /// Exports that are there, and that no option names.
        there: Vec<String>,
    },
    /// A memory object cannot be used.
    #[error("--memory-dir {0}")]
    Object(#[from] ObjectError),
    /// A memory object has no valid file system.
    #[error("--memory-dir {path}: {source}", path = .path.display())]
    Damage {
        /// The directory of the export.
        path: PathBuf,
        /// The damage.
        source: Damage,
    },
    /// A pool of stores cannot have an option.
    #[error(
        "{option} cannot be used with --store-at, --pool or --registry: a pool of stores does not support it"
    )]
    NotWithStores {
        /// The option.
        option: &'static str,
    },
    /// Files cannot be cut at multiples of this number.
    #[error("--stripe-unit {unit}: give a multiple of 4096")]
    StripeUnit {
        /// The number.
        unit: u64,
    },
    /// The same store twice.
    #[error("--store-at: {address} is given twice")]
    StoreTwice {
        /// The address.
        address: Address,
    },
    /// The stores cannot be used.
    #[error(transparent)]
    Stores(#[from] StoresError),
    /// Memory objects and snapshots have the same directory.
    #[error("--memory-dir and --persist need a directory each")]
    SameDirectory,
    /// The snapshots cannot be used, or no snapshot is complete.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// The newest snapshot cannot be restored.
    #[error("cannot restore {path}: {source}", path = .path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: RestoreError,
    },
    /// The kernel refused memory.
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
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// No random numbers are available.
    #[error("getrandom failed: {0}")]
    Random(io::Error),
    /// An address in use, or another network error.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Reason why an export keeps its size.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// There is no such export.
    #[error("no export {name:?} is there, but {}", list(.there))]
    NoExport {
        /// The name.
        name: String,
        /// The exports that are there.
        there: Vec<String>,
    },
    /// The size is smaller than the minimum.
    #[error("{} is too small: the least size of an export is {}", exact(*.asked), exact(MIN_MEMORY))]
    TooLittle {
        /// Requested size in bytes.
        asked: u64,
    },
    /// The size is larger than the address space of the export.
    #[error(
        "{} is too much: the largest size is {}. A start with a larger one (--max-memory, max= of --export) raises \
         it; a --memory-dir keeps the one that it was made with", exact(*.asked), exact(*.max)
    )]
    BeyondMax {
        /// Requested size in bytes.
        asked: u64,
        /// The largest size.
        max: u64,
    },
    /// More is in use.
    #[error(
        "it has files that need more: the least size is {} now{}", exact(.why.least), of_quarantine(.why.quarantined)
    )]
    TooSmall {
        /// The least size.
        why: TooSmall,
    },
    /// The machine has too little memory or space.
    #[error(
        "{} more are needed, but only {} of {} is available", byte_size::show(*.asked),
        byte_size::show(.bound.bytes), .bound.what
    )]
    NotEnough {
        /// Bytes needed in addition.
        asked: u64,
        /// The exhausted resource.
        bound: MemoryBound,
    },
    /// The memory cannot be reserved.
    #[error("{source}: {}", reserve_step(.source))]
    Reserve {
        /// The reason.
        source: MemoryError,
    },
    /// An RDMA device has pinned the memory.
    #[error(
        "the server listens on an rdma: address, and the RDMA device has pinned the memory of the export"
    )]
    Pinned,
}

impl From<TooSmall> for ResizeError {
    fn from(why: TooSmall) -> ResizeError {
        ResizeError::TooSmall { why }
    }
}

/// Returns a size that an option takes, without rounding.
pub(super) fn exact(bytes: u64) -> String {
    let unit = |bits: u32| bytes.is_multiple_of(1 << bits) && bytes > 0;
    match () {
        () if unit(30) => format!("{}G", bytes >> 30),
        () if unit(20) => format!("{}M", bytes >> 20),
        () if unit(10) => format!("{}K", bytes >> 10),
        () => bytes.to_string(),
    }
}

/// Returns the part of a message about space that becomes free by itself.
pub(super) fn of_quarantine(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(
            "; {} of it come free when no client and no snapshot can reach them",
            byte_size::show(bytes)
        ),
    }
}

/// Lists names for a message.
fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Returns the advice after a failed reservation.
fn reserve_step(error: &MemoryError) -> &'static str {
    match error {
        MemoryError::Os { source, .. } if source.kind() == io::ErrorKind::Unsupported => {
            "this file system cannot reserve space, use a tmpfs such as /dev/shm"
        }
        _ => "lend less (--memory, --inodes), or make room there",
    }
}

/// Error of a server that stopped without all of its last snapshots.
#[derive(Debug)]
pub struct ShutdownError {
    /// The exports whose last snapshot failed.
    pub failed: Vec<LastSnapshotError>,
    /// The memory directory, if the files outlive the server there.
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
