//! rfs-server: serves memory of this machine as a remote file system.
//!
//! The server keeps names, attributes and the extents of files. Clients access file data in the
//! arena one-sidedly. Reads, writes and `stat` of open files run no code of the server. Start with
//! [`Server::start`]; the program `rfs-server` wraps it.
//!
//! Imports point down. From the top:
//!
//! - [`program`]: options, signals and messages of the program.
//! - [`server`] checks a [`Config`], builds all parts, and runs the threads beside requests.
//! - [`service`] receives requests from rdmabox, and attaches a session to the export of its key.
//! - [`snapshots`] keeps snapshots on a disk.
//! - [`dispatch`] executes requests, and restores a file system for them.
//! - [`memory_object`] keeps a file system in files that outlive the server.
//! - [`session`] has the attached sessions and their rights, open files and stored replies. It also
//!   has the mounts that reconnect.
//! - [`coherence`] has cache holders, recalls, and replies that wait for acknowledgements.
//! - [`locks`] has advisory locks and their waiters.
//! - [`metadata`] has names and inodes, and publishes attributes for one-sided reads.
//! - [`space`] allocates the arena, verifies checksums, and zeroes released space.
#![forbid(unsafe_code)]

pub mod coherence;
pub mod dispatch;
pub mod locks;
pub mod memory_object;
pub mod metadata;
pub mod program;
pub mod server;
pub mod service;
pub mod session;
pub mod snapshots;
pub mod space;

pub use metadata::{clock, namespace};
pub use program::{cli, run};
pub use server::{
    Config, ExportConfig, Prefault, Server, StartError, config, export_config as export,
    stores::{
        Membership, StoresConfig,
        registry::{EtcdUrl, Registration, StoreRecord},
    },
};
pub use service::keys;
pub use session::{access_mode, registry as sessions};
pub use space::{alloc, bytes};
