//! The file system's operations: each handler translates a request of the kernel into calls of
//! the client.
//!
//! [`Adapter`] has the state. `filesystem` implements the handlers, with the longer ones in
//! `names`, `attributes`, `data` and `listing`. `open_file` opens files, `owner` makes changes
//! that only a file's owner may make, and `answers` and `write_completion` reply.
//!
//! # Concurrency
//! Session threads run the handlers concurrently. The adapter's members have the locks; no
//! handler holds one while it calls the server.

mod answers;
mod attributes;
mod data;
mod filesystem;
mod labels;
mod listing;
mod names;
mod open_file;
mod owner;
mod retries;
mod write_completion;

use std::{io, sync::Arc};

use self::{answers::FailureLog, labels::Labels, retries::Retries};
use super::{
    kernel::KernelLink,
    kernel_cache::{
        handles::Handles, inherited_inodes::InheritedInodes, lifetimes::Lifetimes, losses::Losses,
        pages::Pages, recalls::Recalls, remote_pages::RemotePages,
    },
    locks::{LockWaits, Locks},
    process,
    session::{Request, RequestCounts},
    settings::Settings,
};
use rfs_client::{Client, Creator};

/// A client as a FUSE file system.
#[derive(Debug)]
pub struct Adapter {
    client: Arc<Client>,
    settings: Settings,
    lifetimes: Lifetimes,
    kernel: KernelLink,
    locks: Locks,
    handles: Arc<Handles>,
    pages: Arc<Pages>,
    labels: Labels,
    retries: Retries,
    failures: Arc<FailureLog>,
    losses: Arc<Losses>,
    recalls: Recalls,
    inherited: InheritedInodes,
    remote_pages: Arc<RemotePages>,
    /// True if the kernel can map files that it reads and writes around its pages. Older kernels
    /// refuse shared mappings of such files, so files of several mounts go through pages there.
    maps_around: bool,
    /// Version of the kernel's FUSE protocol.
    version: (u32, u32),
    counts: Arc<RequestCounts>,
}

impl Adapter {
    /// Creates an adapter. `kernel` is connected once the mount exists. With [`Settings::keeps`]
    /// the client has to be attached with `keeps`. The adapter obeys recalls in any case, because
    /// clients always cache layouts.
    pub fn new(client: Arc<Client>, settings: Settings, kernel: KernelLink) -> io::Result<Adapter> {
        let recalls = Recalls::obey(client.clone(), kernel.clone())?;
        Ok(Adapter {
            locks: Locks::new(client.clone(), kernel.clone()),
            handles: Arc::default(),
            pages: Arc::new(Pages::new(kernel.clone())),
            labels: Labels::here(),
            retries: Retries::default(),
            failures: Arc::new(FailureLog::new(client.clone())),
            losses: Arc::default(),
            remote_pages: Arc::new(RemotePages::new(client.clone())),
            maps_around: false,
            version: (0, 0),
            counts: Arc::default(),
            client,
            lifetimes: Lifetimes::new(&settings),
            settings,
            kernel,
            recalls,
            inherited: InheritedInodes::new(),
        })
    }

    /// Returns the counters of the kernel's requests.
    pub fn request_counts(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.counts)
    }

    /// Returns the source for lists of waiting lock requests.
    pub fn lock_waits(&self) -> LockWaits {
        self.locks.waits()
    }

    /// Returns the record of data that the kernel could not write back.
    pub fn losses(&self) -> Arc<Losses> {
        Arc::clone(&self.losses)
    }
}

/// Returns the caller as the creator of a file.
fn creator(request: &Request, umask: u32) -> Creator {
    Creator { uid: request.uid(), gid: request.gid(), umask }
}

/// Returns true for root. The kernel says no more about a caller's rights.
fn is_privileged(request: &Request) -> bool {
    request.uid() == 0
}

/// Returns true if the caller is in a group.
fn in_group(request: &Request, group: u32) -> bool {
    group == request.gid() || process::has_group(request.pid(), group)
}
