//! rfs-server: lends memory as a remote file system.
//!
//! The server keeps names, attributes and the map of who has which part of the arena. File data moves past it:
//! clients read and write the arena one-sidedly, and neither reads, nor writes, nor stats of open files run any code
//! here. [`Server::start`] is the way in; the program `rfs-server` is a thin shell around it.
//!
//! From the bottom up: [`alloc`] keeps the pure account of the arena and [`space`] zeroes what was freed, [`prefault`] takes
//! memory ahead of need; [`files`]
//! maps files to extents; [`namespace`] has names and inodes; [`table`] publishes attributes for one-sided reads;
//! [`leases`] and [`sessions`] know who has what open, [`locks`] who has locked what and waits for what, and [`grants`] what he
//! is to be told of that, [`keepers`] who keeps what he was told;
//! [`durable`] keeps a file system over the end of its server, and [`upkeep`] does what that takes now and then; [`persist`] keeps
//! snapshots of it, over the end of the memory;
//! [`keys`] says which client may attach to which export, and [`rights`] what it may do there;
//! [`mounts`] knows which clients come back and what is theirs, [`replies`] what they were answered, and [`absences`] ends the wait for them;
//! [`recalls`] has what they are to be told, [`waits`] the replies that wait for them, and [`patience`] ends the wait, by a clock
//! that stands still when the server does (`awake`); [`dispatch`] answers requests,
//! [`service`] brings them from rdmabox, and [`server`] puts it all together.
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
