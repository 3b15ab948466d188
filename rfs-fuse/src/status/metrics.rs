//! The status of a mount as metrics for Prometheus. No I/O, no locks, no clock.
//!
//! Labels are kinds of requests, and names of caches and of the runtime's counters, which are
//! constants.

use rfs_status::metrics::Exposition;

use super::{CacheStatus, MountStatus, SessionState, SessionStatus};

/// A counter of each cache: name, help, and its value.
type CacheCounter = (&'static str, &'static str, fn(&CacheStatus) -> u64);

const CACHE_COUNTERS: [CacheCounter; 2] = [
    ("cache_hits_total", "Times that a cache of the mount answered.", |used| used.hits),
    ("cache_misses_total", "Times that a cache of the mount could not answer.", |used| used.misses),
];

impl MountStatus {
    /// Returns the metrics in the text format of Prometheus.
    pub(crate) fn metrics(&self) -> String {
        let mut metrics = Exposition::new("rfs_mount");
        metrics.program(&self.version, &self.process, &self.log);
        let labels = vec![self.mount_point.as_str(), self.source.as_str(), self.cache.as_str()];
        let help = "Where and what is mounted.";
        metrics.gauges("mount_info", help, &["mount_point", "source", "cache"], [(labels, 1.0)]);
        let rows = self.requests.iter().map(|(kind, count)| (vec![kind.as_str()], *count as f64));
        metrics.counters("requests_total", "Requests of the kernel by kind.", &["kind"], rows);
        for (name, help, count) in CACHE_COUNTERS {
            let rows = self.caches.iter().map(|(cache, used)| (vec![cache.as_str()], count(used) as f64));
            metrics.counters(name, help, &["cache"], rows);
        }
        let waiting = self.waiting_requests.map(|waiting| (Vec::new(), waiting as f64));
        metrics.gauges("waiting_requests", "Requests of the kernel without a reply.", &[], waiting);
        metrics.gauge("known_inodes", "Inodes that the kernel knows.", self.known_inodes as f64);
        metrics.gauge("waiting_locks", "Lock requests that wait.", self.lock_waits.len() as f64);
        if let Some(session) = &self.session {
            add_session(&mut metrics, session);
        }
        metrics.encode()
    }
}

fn add_session(metrics: &mut Exposition, session: &SessionStatus) {
    let is_connected = session.state == SessionState::Connected;
    metrics.gauge("session_connected", "1 with a session, 0 without.", f64::from(u8::from(is_connected)));
    metrics.gauge(
        "session_mapped",
        "1 if the server's memory is mapped.",
        f64::from(u8::from(session.mapped)),
    );
    metrics.counter("reconnects_total", "New sessions after a loss.", session.reconnects as f64);
    let help = "Losses of this mount's state by the server.";
    metrics.counter("state_losses_total", help, session.losses as f64);
    let count = |name: &str| session.counters.get(name).copied().unwrap_or(0) as f64;
    metrics.counter("read_bytes_total", "Bytes of READs that completed.", count("bytes_read"));
    metrics.counter("written_bytes_total", "Bytes of WRITEs that completed.", count("bytes_written"));
    let rows = session.counters.iter().map(|(name, count)| (vec![name.as_str()], *count as f64));
    let help = "Counters of the runtime's session, as rdmabox::StatsSnapshot names them.";
    metrics.counters("runtime_total", help, &["counter"], rows);
    let rows = session.latencies.iter().map(|(kind, latency)| (vec![kind.as_str()], *latency));
    let help = "Time from the submission of a request to the server to its completion.";
    metrics.histograms("request_duration_seconds", help, &["kind"], rows);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rfs_status::latency::Latency;

    use super::*;

    #[test]
    fn metrics_have_the_figures_of_the_status() {
        let session = SessionStatus {
            reconnects: 2,
            counters: BTreeMap::from([("bytes_read".into(), 4096)]),
            latencies: BTreeMap::from([("call".into(), Latency { count: 3, ..Latency::default() })]),
            ..SessionStatus::default()
        };
        let status = MountStatus {
            requests: BTreeMap::from([("read".into(), 9)]),
            caches: BTreeMap::from([("names".into(), CacheStatus { hits: 5, misses: 4 })]),
            session: Some(session),
            ..MountStatus::default()
        };
        let text = status.metrics();
        for line in [
            "rfs_mount_requests_total{kind=\"read\"} 9\n",
            "rfs_mount_cache_hits_total{cache=\"names\"} 5\n",
            "rfs_mount_cache_misses_total{cache=\"names\"} 4\n",
            "rfs_mount_session_connected 1\n",
            "rfs_mount_reconnects_total 2\n",
            "rfs_mount_read_bytes_total 4096\n",
            "rfs_mount_runtime_total{counter=\"bytes_read\"} 4096\n",
            "rfs_mount_request_duration_seconds_count{kind=\"call\"} 3\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        // The kernel does not tell everywhere how many requests wait.
        assert!(!text.contains("waiting_requests"), "{text}");
    }

    /// The alerts and the dashboard name metrics that exist.
    #[test]
    fn alerts_and_dashboard_have_no_other_names() {
        let session = SessionStatus {
            latencies: BTreeMap::from([("call".into(), Latency::default())]),
            ..SessionStatus::default()
        };
        let status = MountStatus {
            requests: BTreeMap::from([("read".into(), 9)]),
            waiting_requests: Some(1),
            session: Some(session),
            ..MountStatus::default()
        };
        let text = status.metrics();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../rfs-server/monitoring");
        for file in ["alerts.yml", "dashboard.json"] {
            let file = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
            let names: Vec<&str> = rfs_status::metrics::names(&file, "rfs_mount_").collect();
            assert!(names.len() > 2, "{names:?}");
            for name in names {
                assert!(rfs_status::metrics::has(&text, name), "{name} is not exported");
            }
        }
    }
}
