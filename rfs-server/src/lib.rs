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
//! - Sessions: [`sessions`] has the attached sessions, [`open_files`] their open files, [`replies`]
//!   their stored replies, and [`squash`] the mapping of their users. [`mounts`] tracks mounts that
//!   reconnect, and [`session_reaper`] removes the mounts that do not. [`keys`] decides which
//!   client may attach to which export, and [`access_mode`] what it may do there.
//! - Coherence and locks: [`locks`] has advisory locks and their waiters, and [`grants`] the grants
//!   to deliver. [`cache_holders`] has the cache holders, [`recalls`] the recalls to deliver, and
//!   [`held_replies`] the replies that wait for acknowledgements. [`recall_timeout`] ends sessions
//!   that miss the recall timeout, by a clock that stops while the server is stopped.
//! - Persistence: [`durable`] keeps a file system in files that outlive the server,
//!   [`log_compactor`] compacts the log, and [`persist`] keeps snapshots on a disk.
//! - Requests: [`service`] receives requests from rdmabox, [`dispatch`] executes them, and
//!   [`server`] builds all parts.
#![forbid(unsafe_code)]

pub mod access_mode;
pub mod alloc;
pub mod bytes;
pub mod cache_holders;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod durable;
pub mod export;
pub mod files;
pub mod grants;
pub mod held_replies;
pub mod keys;
pub mod locks;
pub mod log_compactor;
pub mod mounts;
pub mod namespace;
pub mod numbers;
pub mod open_files;
pub mod orphans;
pub mod ownership;
pub mod persist;
pub mod prefault;
pub mod recall_timeout;
pub mod recalls;
pub mod replies;
pub mod run;
pub(crate) mod run_clock;
pub mod server;
pub mod service;
pub mod session_reaper;
pub mod sessions;
pub mod space;
pub mod squash;
pub mod stats;
pub mod system;
pub mod table;

pub use config::Config;
pub use export::ExportConfig;
pub use prefault::Prefault;
pub use server::{Server, StartError};
