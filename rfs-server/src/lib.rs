//! rfs-server: serves memory of this machine as a remote file system.
//!
//! The server keeps names, attributes and the extents of files. Clients access file data in the
//! arena one-sidedly. Reads, writes and `stat` of open files run no code of the server. Start with
//! [`Server::start`]; the program `rfs-server` wraps it.
//!
//! - Space and files: [`alloc`] is the allocator of the arena, [`space`] zeroes released space,
//!   [`bytes`] verifies checksums, and [`prefault`] allocates memory ahead of use. [`files`] maps
//!   files to extents, [`namespace`] has names and inodes, and [`table`] publishes attributes for
//!   one-sided reads.
//! - Sessions: [`sessions`] has the attached sessions, [`leases`] their open files, [`replies`]
//!   their stored replies, and [`squash`] the mapping of their users. [`mounts`] tracks mounts that
//!   reconnect, and [`absences`] removes the mounts that do not. [`keys`] decides which client may
//!   attach to which export, and [`rights`] what it may do there.
//! - Coherence and locks: [`locks`] has advisory locks and their waiters, and [`grants`] the grants
//!   to deliver. [`keepers`] has the cache holders, [`recalls`] the recalls to deliver, and
//!   [`waits`] the replies that wait for acknowledgements. [`patience`] ends sessions that miss the
//!   recall timeout, by a clock that stops while the server is stopped.
//! - Persistence: [`durable`] keeps a file system in files that outlive the server, [`upkeep`]
//!   compacts the log, and [`persist`] keeps snapshots on a disk.
//! - Requests: [`service`] receives requests from rdmabox, [`dispatch`] executes them, and
//!   [`server`] builds all parts.
#![forbid(unsafe_code)]

pub mod absences;
pub mod alloc;
pub(crate) mod awake;
pub mod bytes;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod durable;
pub mod export;
pub mod files;
pub mod grants;
pub mod keepers;
pub mod keys;
pub mod leases;
pub mod locks;
pub mod mounts;
pub mod namespace;
pub mod numbers;
pub mod orphans;
pub mod ownership;
pub mod patience;
pub mod persist;
pub mod prefault;
pub mod recalls;
pub mod replies;
pub mod rights;
pub mod run;
pub mod server;
pub mod service;
pub mod sessions;
pub mod space;
pub mod squash;
pub mod stats;
pub mod system;
pub mod table;
pub mod upkeep;
pub mod waits;

pub use config::Config;
pub use export::ExportConfig;
pub use prefault::Prefault;
pub use server::{Server, StartError};
