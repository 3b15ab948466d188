//! Keeps a file system in files that outlive its server; the next server maps them again.
//!
//! Each export has a directory. `arena` has the bytes of files and `table` the attribute records;
//! clients get descriptors of these. `state` is the server's own: a header, a bitmap of nonzero
//! blocks, and a log of all metadata changes. Stores to a shared mapping survive a killed process,
//! so nothing is flushed. The order of stores matters: the log has a change before its reply is
//! sent, and before released space or records are used again. Formats:
//! docs/design/server/formats.md.
//!
//! Bottom up: [`op`], [`log`], [`replay`] with [`session_replay`] (sessions), [`header`],
//! [`object`], [`tethers`] and [`previous_clients`]. `dispatch::state::journal` writes the
//! operations, `dispatch::persistence::recovery` applies them. [`ownership`] checks the owners of
//! files.
//!
//! # Concurrency
//! See each module. The log and the tethers are for any thread; recovery uses one thread.

mod hash;
pub mod header;
pub mod log;
pub mod object;
pub mod op;
pub mod ownership;
pub mod previous_clients;
pub mod replay;
mod reservation;
pub mod session_replay;
pub mod tethers;

pub use crate::space::NonzeroBitmap;
pub use header::{Header, Shape};
pub use log::Log;
pub use object::{Object, ObjectError, ObjectStore};
pub use previous_clients::PreviousClients;
pub use tethers::Tethers;
