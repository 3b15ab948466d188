//! Collects the status of a running mount.
//!
//! # Concurrency
//! Any thread. Reads atomics, and takes locks that are held for a moment. Waits neither for the
//! kernel nor for the server.

use std::{io, sync::Arc, time::Instant};

use rfs_client::{CacheUse, Client, Status};
use rfs_proto::{LockClass, VERSION};
use rfs_status::{latency::Latency, logging, process::ProcessStatus};
use rustix::fs::OFlags;

use super::{CacheStatus, LockWaitStatus, MountStatus, SessionState, SessionStatus};
use crate::{
    fuse::{LockWait, LockWaits, RequestCounts},
    mount::connection,
};

/// The facts that do not change while a mount runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountFacts {
    pub(crate) mount_point: String,
    pub(crate) source: String,
    pub(crate) device: String,
    pub(crate) read_only: bool,
    pub(crate) cache: &'static str,
    pub(crate) io_uring: bool,
}

/// The parts of a mount that its status describes, without the null file system's.
#[derive(Clone, Debug)]
pub(crate) struct ObservedMount {
    pub(crate) client: Arc<Client>,
    pub(crate) requests: Arc<RequestCounts>,
    pub(crate) locks: LockWaits,
}

/// Where the status of a mount comes from.
#[derive(Clone, Debug)]
pub(crate) struct StatusSource {
    pub(crate) start: Instant,
    pub(crate) facts: MountFacts,
    pub(crate) observed: Option<ObservedMount>,
    pub(crate) metrics_address: Option<String>,
}

impl StatusSource {
    /// Returns the current status.
    pub(crate) fn status(&self) -> MountStatus {
        let MountFacts { mount_point, source, device, read_only, cache, io_uring } = self.facts.clone();
        let waiting_requests = waiting_requests(&device);
        let mut status = MountStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: VERSION,
            process: ProcessStatus::now(self.start),
            mount_point,
            source,
            device,
            read_only,
            cache: cache.into(),
            io_uring,
            waiting_requests,
            log: logging::counts(),
            metrics_address: self.metrics_address.clone(),
            ..MountStatus::default()
        };
        if let Some(ObservedMount { client, requests, locks }) = &self.observed {
            status.requests = requests.sums().map(|(kind, count)| (kind.to_owned(), count)).collect();
            let used = |CacheUse { hits, misses }| CacheStatus { hits, misses };
            status.caches = client.cache_uses().map(|(name, count)| (name.to_owned(), used(count))).collect();
            status.known_inodes = client.known_inodes() as u64;
            status.session = Some(session(client));
            status.lock_waits = locks.list().into_iter().map(lock_wait).collect();
        }
        status
    }
}

/// Returns the number of requests without a reply, as the kernel counts them.
fn waiting_requests(device: &str) -> Option<u64> {
    let file = connection::open(device, "waiting", OFlags::RDONLY).ok()?;
    let waiting = io::read_to_string(file).ok()?;
    waiting.trim_end().parse().ok()
}

fn session(client: &Client) -> SessionStatus {
    let Status { is_connected, lost_since, final_loss, transport, counters, latencies } = client.status();
    let state = match (is_connected, lost_since) {
        (false, _) => SessionState::Ended,
        (true, Some(_)) => SessionState::Reconnecting,
        (true, None) => SessionState::Connected,
    };
    let count = |name: &str| counters.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count);
    let reconnects = count("returns");
    SessionStatus {
        state,
        final_loss,
        lost_seconds: lost_since.map(|since| since.elapsed().as_secs_f64()),
        transport,
        mapped: client.is_mapped(),
        checksums: client.has_checksums(),
        reconnects,
        losses: client.state_losses(),
        counters: counters
            .into_iter()
            .filter(|(name, _)| *name != "returns")
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
        latencies: latencies.iter().map(|(kind, times)| ((*kind).to_owned(), Latency::from(times))).collect(),
    }
}

fn lock_wait(LockWait { ino, pid, class, is_exclusive, age }: LockWait) -> LockWaitStatus {
    let class = match class {
        LockClass::Record => "record",
        LockClass::Flock => "flock",
    };
    LockWaitStatus {
        inode: ino,
        pid,
        class: class.into(),
        exclusive: is_exclusive,
        age_seconds: age.as_secs_f64(),
    }
}
