//! The threads of a pool of stores, one file each: [`watcher`] (`rfs-stores`), [`fencer`]
//! (`rfs-fencer`), [`drainer`] (`rfs-drain`) and [`newcomers`] (`rfs-newcomers`).
//!
//! # Concurrency
//! See the modules.

mod drainer;
mod fencer;
mod newcomers;
mod store_thread;
mod watcher;

pub(in crate::server) use drainer::start_drainer;
pub(in crate::server) use fencer::start_fencer;
pub(in crate::server) use newcomers::start_newcomers;
pub(in crate::server) use store_thread::StoreThread;
pub(in crate::server) use watcher::start_watcher;
