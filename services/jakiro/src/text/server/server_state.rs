//! State that the threads of a text server share, and the report of `stats`.
//!
//! # Concurrency
//! Atomic numbers. The report takes the lock of each partition, one after the other.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use super::room::Room;
use crate::{store::Store, text::plan::Report};

#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) store: Arc<Store>,
    pub(super) room: Room,
    workers: usize,
    max_connections: usize,
    connections: AtomicUsize,
    stops: AtomicBool,
    started: Instant,
    accepted: AtomicU64,
    rejected: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl ServerState {
    pub(super) fn new(store: Arc<Store>, workers: usize, max_connections: usize) -> ServerState {
        ServerState {
            store,
            room: Room::new(),
            workers,
            max_connections,
            connections: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
            started: Instant::now(),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }
    }

    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::SeqCst);
    }

    pub(super) fn stops(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }

    /// Counts a new connection. Returns false if there are too many; then it does not count.
    pub(super) fn admit(&self) -> bool {
        let more = |count| (count < self.max_connections).then_some(count + 1);
        let is_admitted = self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        let counter = if is_admitted { &self.accepted } else { &self.rejected };
        counter.fetch_add(1, Ordering::Relaxed);
        is_admitted
    }

    /// Counts the end of a connection.
    pub(super) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts the bytes of an exchange.
    pub(super) fn count(&self, read: usize, written: usize) {
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        self.bytes_written.fetch_add(written as u64, Ordering::Relaxed);
    }

    /// Removes all items that are stored before a time of the store's clock.
    pub(super) fn flush(&self, at: u64) {
        for index in 0..self.store.partitions() {
            self.store.with_partition(index, |partition, now| partition.flush(at.max(now), now));
        }
    }

    /// Returns the answer to `stats`.
    pub(super) fn report(&self, report: Report) -> String {
        match report {
            Report::Unknown => "CLIENT_ERROR there are no such statistics here\r\n".into(),
            Report::Reset => {
                self.reset();
                "RESET\r\n".into()
            }
            Report::Counters => {
                let mut text = String::new();
                for (name, value) in self.values() {
                    write!(text, "STAT {name} {value}\r\n").expect("memory");
                }
                text + concat!("STAT version ", env!("CARGO_PKG_VERSION"), "\r\nEND\r\n")
            }
        }
    }

    fn reset(&self) {
        for counter in [&self.accepted, &self.rejected, &self.bytes_read, &self.bytes_written] {
            counter.store(0, Ordering::Relaxed);
        }
        for index in 0..self.store.partitions() {
            self.store.with_partition(index, |partition, _| partition.reset_counters());
        }
    }

    /// Returns counters with the names that memcached has for them.
    fn values(&self) -> [(&'static str, u64); 36] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let store = self.store.counters();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        [
            ("pid", std::process::id().into()),
            ("uptime", self.started.elapsed().as_secs()),
            ("time", time),
            ("pointer_size", usize::BITS.into()),
            ("threads", self.workers as u64),
            ("max_connections", self.max_connections as u64),
            ("curr_connections", self.connections.load(Ordering::Relaxed) as u64),
            ("total_connections", get(&self.accepted)),
            ("rejected_connections", get(&self.rejected)),
            ("bytes_read", get(&self.bytes_read)),
            ("bytes_written", get(&self.bytes_written)),
            ("cmd_get", store.gets()),
            ("cmd_set", store.stores),
            ("cmd_flush", store.flushes / self.store.partitions() as u64),
            ("cmd_touch", store.touch_hits + store.touch_misses),
            ("get_hits", store.get_hits),
            ("get_misses", store.get_misses),
            ("get_expired", store.get_expired),
            ("get_flushed", store.get_flushed),
            ("delete_hits", store.delete_hits),
            ("delete_misses", store.delete_misses),
            ("incr_hits", store.incr_hits),
            ("incr_misses", store.incr_misses),
            ("decr_hits", store.decr_hits),
            ("decr_misses", store.decr_misses),
            ("cas_hits", store.cas_hits),
            ("cas_misses", store.cas_misses),
            ("cas_badval", store.cas_mismatches),
            ("touch_hits", store.touch_hits),
            ("touch_misses", store.touch_misses),
            ("curr_items", store.items),
            ("total_items", store.total_items),
            ("bytes", store.used_bytes),
            ("limit_maxbytes", store.total_bytes),
            ("evictions", store.evictions),
            ("expirations", store.expirations),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    fn shared(max_connections: usize) -> ServerState {
        let store = Store::new(&StoreOptions::new(16 << 20).partitions(2)).expect("a store");
        ServerState::new(Arc::new(store), 1, max_connections)
    }

    #[test]
    fn a_reset_begins_the_counters_at_zero() {
        let shared = shared(5);
        shared.count(7, 9);
        shared.flush(0);
        for _ in 0..3 {
            assert!(
                shared.store.with_key(b"key", |partition, key, now| partition.get(key, now).is_none())
                    == Ok(true)
            );
        }
        let text = shared.report(Report::Counters);
        for line in ["STAT cmd_get 3\r\n", "STAT bytes_written 9\r\n", "STAT cmd_flush 1\r\n"] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(shared.report(Report::Reset), "RESET\r\n");
        let text = shared.report(Report::Counters);
        assert!(text.contains("STAT cmd_get 0\r\n") && text.contains("STAT bytes_written 0\r\n"), "{text}");
        assert!(text.ends_with("END\r\n"), "{text}");
    }

    #[test]
    fn connections_have_a_limit() {
        let shared = shared(2);
        assert!(shared.admit() && shared.admit() && !shared.admit());
        shared.leave();
        assert!(shared.admit());
    }
}
