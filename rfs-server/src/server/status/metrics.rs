//! The status of a server as metrics for Prometheus. No I/O, no locks, no clock.
//!
//! Labels are names of exports, kinds of requests, states of sessions, and names of the runtime's
//! counters: the configuration bounds their numbers. Sessions have no metrics of their own.

use rfs_status::metrics::Exposition;

use super::{EvictionStatus, ExportStatus, ScrubStatus, ServerStatus, SessionState, SnapshotStatus};

/// Label of the name of an export.
const EXPORT: &[&str] = &["export"];

impl ServerStatus {
    /// Returns the metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut metrics = Exposition::new("rfs_server");
        metrics.program(&self.version, &self.process, &self.log);
        self.add_space(&mut metrics);
        self.add_requests(&mut metrics);
        self.add_sessions(&mut metrics);
        self.add_snapshots(&mut metrics);
        self.add_scrubs(&mut metrics);
        self.add_evictions(&mut metrics);
        if let Some(pool) = &self.pool {
            pool.add_metrics(&mut metrics);
        }
        metrics.encode()
    }

    /// Adds a gauge with a value for each export.
    fn each(&self, metrics: &mut Exposition, name: &str, help: &str, value: impl Fn(&ExportStatus) -> u64) {
        let rows = self.exports.iter().map(|export| (vec![export.name.as_str()], value(export) as f64));
        metrics.gauges(name, help, EXPORT, rows);
    }

    fn add_space(&self, metrics: &mut Exposition) {
        self.each(metrics, "export_size_bytes", "Size for file data.", |e| e.size_bytes);
        let help = "Largest size of the own memory for file data.";
        self.each(metrics, "export_max_bytes", help, |e| e.max_bytes);
        self.each(metrics, "export_free_bytes", "Bytes that files can still get.", |e| e.free_bytes);
        let help = "Freed bytes that a client may still reach.";
        self.each(metrics, "export_quarantined_bytes", help, |e| e.quarantined_bytes);
        self.each(metrics, "export_dirty_bytes", "Freed bytes that are not zero yet.", |e| e.dirty_bytes);
        self.each(metrics, "export_inodes", "Number of inodes.", |e| e.inodes);
        self.each(metrics, "export_free_inodes", "Number of free inodes.", |e| e.free_inodes);
    }

    fn add_requests(&self, metrics: &mut Exposition) {
        let rows = self.exports.iter().flat_map(|export| {
            let kinds = export.requests.iter();
            kinds.map(|(kind, count)| (vec![export.name.as_str(), kind.as_str()], *count as f64))
        });
        let help = "Requests of clients by kind. One-sided operations are none.";
        metrics.counters("requests_total", help, &["export", "kind"], rows);
        let rows = self.exports.iter().flat_map(|export| {
            let latencies = export.latencies.iter();
            latencies.map(|(reply, latency)| (vec![export.name.as_str(), reply.as_str()], *latency))
        });
        let help = "Time from the arrival of a request to its reply. `reply` says whether the reply left at \
                    once, or after acknowledgements of recalls.";
        metrics.histograms("request_duration_seconds", help, &["export", "reply"], rows);
        let rows = self.runtime.iter().map(|(name, count)| (vec![name.as_str()], *count as f64));
        let help = "Counters of the runtime's host, as rdmabox::AnswerCounts names them.";
        metrics.counters("runtime_total", help, &["counter"], rows);
        let help = "Requests whose reply waits for acknowledgements of recalls.";
        self.each(metrics, "waiting_recalls", help, |e| e.waiting_recalls);
        self.each(metrics, "locks", "File locks that are held.", |e| e.locks);
        self.each(metrics, "waiting_locks", "Lock requests that wait.", |e| e.waiting_locks);
    }

    fn add_sessions(&self, metrics: &mut Exposition) {
        let states = [
            ("connected", SessionState::Connected),
            ("disconnected", SessionState::Disconnected),
            ("restored", SessionState::Restored),
        ];
        let count = |export: &ExportStatus, state| {
            self.sessions.iter().filter(|s| s.export == export.name && s.state == state).count() as f64
        };
        let rows = self.exports.iter().flat_map(|export| {
            states.map(|(name, state)| (vec![export.name.as_str(), name], count(export, state)))
        });
        metrics.gauges("sessions", "Attached sessions by state.", &["export", "state"], rows);
        let oldest =
            self.sessions.iter().filter_map(|session| session.oldest_recall_seconds).fold(0.0, f64::max);
        metrics.gauge(
            "oldest_recall_seconds",
            "Age of the oldest recall without an acknowledgement.",
            oldest,
        );
        let silent = self.sessions.iter().filter_map(|session| session.silent_seconds).fold(0.0, f64::max);
        metrics.gauge(
            "most_silent_session_seconds",
            "Longest time since a session renewed its lease.",
            silent,
        );
    }

    /// Adds a gauge with a value for each export that has one.
    fn some<'a, T: 'a>(
        &'a self,
        metrics: &mut Exposition,
        (name, help): (&str, &str),
        part: impl Fn(&'a ExportStatus) -> Option<&'a T>,
        value: impl Fn(&'a T) -> Option<f64>,
    ) {
        let rows = self.exports.iter().filter_map(|export| {
            part(export).and_then(&value).map(|value| (vec![export.name.as_str()], value))
        });
        match name.ends_with("_total") {
            true => metrics.counters(name, help, EXPORT, rows),
            false => metrics.gauges(name, help, EXPORT, rows),
        }
    }

    fn add_snapshots(&self, metrics: &mut Exposition) {
        let mut add = |name, help, value: fn(&SnapshotStatus) -> Option<f64>| {
            self.some(metrics, (name, help), |export| export.snapshots.as_ref(), value);
        };
        add("snapshot_age_seconds", "Age of the newest complete snapshot.", |s| s.age_seconds);
        add("snapshot_duration_seconds", "Time that the newest snapshot took.", |s| Some(s.took_seconds));
        add("snapshot_size_bytes", "Size of the newest snapshot.", |s| Some(s.size_bytes as f64));
        add("snapshots_made_total", "Snapshots made.", |s| Some(s.made as f64));
        add("snapshot_failures_total", "Snapshots that failed.", |s| Some(s.failed as f64));
    }

    fn add_evictions(&self, metrics: &mut Exposition) {
        let mut add = |name, help, value: fn(&EvictionStatus) -> Option<f64>| {
            self.some(metrics, (name, help), |export| export.eviction.as_ref(), value);
        };
        add("evicted_files_total", "Files that went because space or inodes were short.", |e| {
            Some(e.evicted_files as f64)
        });
        add("evicted_bytes_total", "Bytes of these files.", |e| Some(e.evicted_bytes as f64));
        add("expired_files_total", "Files that went because they were too old.", |e| {
            Some(e.expired_files as f64)
        });
        add("expired_bytes_total", "Bytes of these files.", |e| Some(e.expired_bytes as f64));
        add("eviction_waits_total", "Requests that waited for files to go.", |e| Some(e.waits as f64));
        add("eviction_failures_total", "Requests that failed because no more files could go.", |e| {
            Some(e.failures as f64)
        });
        add("last_eviction_seconds", "Time since the last file went.", |e| e.last_seconds);
        add("evictable_files", "Files that may go.", |e| Some(e.candidate_files as f64));
        add("evictable_bytes", "Bytes of these files.", |e| Some(e.candidate_bytes as f64));
    }

    fn add_scrubs(&self, metrics: &mut Exposition) {
        let mut add = |name, help, value: fn(&ScrubStatus) -> Option<f64>| {
            self.some(metrics, (name, help), |export| export.scrub.as_ref(), value);
        };
        add("scrub_age_seconds", "Time since the last part of a scrub.", |s| Some(s.age_seconds));
        add("scrub_compared_bytes", "Bytes that the newest scrub has compared.", |s| {
            Some(s.compared_bytes as f64)
        });
        add("scrub_bad_blocks", "Bad blocks that the newest scrub has found.", |s| Some(s.bad_blocks as f64));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rfs_status::latency::Latency;

    use super::{
        super::pool::{PoolStatus, RegistryState, RegistryStatus, StoreState, StoreStatus},
        *,
    };

    #[test]
    fn each_store_has_metrics() {
        let store = StoreStatus { number: 1, address: "tcp:b:1".into(), ..StoreStatus::default() };
        let down = StoreStatus { number: 2, state: StoreState::Unreachable, ..store.clone() };
        let pool = PoolStatus { stores: vec![store, down], ..PoolStatus::default() };
        let text = ServerStatus { pool: Some(pool), ..ServerStatus::default() }.metrics();
        for line in [
            "rfs_server_store_up{store=\"1\",address=\"tcp:b:1\"} 1\n",
            "rfs_server_store_up{store=\"2\",address=\"tcp:b:1\"} 0\n",
            "rfs_server_store_lost_files{store=\"1\",address=\"tcp:b:1\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!ServerStatus::default().metrics().contains("store_up"));
        let up = |state| {
            let registry = Some(RegistryStatus { state, ..RegistryStatus::default() });
            let pool = PoolStatus { registry, ..PoolStatus::default() };
            ServerStatus { pool: Some(pool), ..ServerStatus::default() }.metrics()
        };
        assert!(up(RegistryState::Up).contains("\nrfs_server_registry_up 1\n"));
        assert!(up(RegistryState::Away).contains("\nrfs_server_registry_up 0\n"));
        assert!(!text.contains("registry_up"), "there is none");
    }

    #[test]
    fn metrics_have_a_row_for_each_export() {
        let export = |name: &str, snapshots| ExportStatus {
            name: name.into(),
            size_bytes: 4096,
            requests: BTreeMap::from([("lookup".into(), 3)]),
            latencies: BTreeMap::from([("at_once".into(), Latency { count: 5, ..Latency::default() })]),
            snapshots,
            ..ExportStatus::default()
        };
        let snapshots =
            SnapshotStatus { newest: Some(1), age_seconds: Some(5.0), ..SnapshotStatus::default() };
        let status = ServerStatus {
            exports: vec![export("a", None), export("b", Some(snapshots))],
            runtime: BTreeMap::from([("answers_in_memory".into(), 9)]),
            ..ServerStatus::default()
        };
        let text = status.metrics();
        for line in [
            "rfs_server_export_size_bytes{export=\"a\"} 4096\n",
            "rfs_server_requests_total{export=\"b\",kind=\"lookup\"} 3\n",
            "rfs_server_request_duration_seconds_count{export=\"b\",reply=\"at_once\"} 5\n",
            "rfs_server_sessions{export=\"a\",state=\"connected\"} 0\n",
            "rfs_server_runtime_total{counter=\"answers_in_memory\"} 9\n",
            "rfs_server_snapshot_age_seconds{export=\"b\"} 5\n",
            "rfs_server_snapshot_failures_total{export=\"b\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("snapshot_age_seconds{export=\"a\"}"), "{text}");
        assert!(!text.contains("scrub") && !text.contains("evict"), "{text}");
    }

    /// The alerts and the dashboard name metrics that exist.
    #[test]
    fn alerts_and_dashboard_have_no_other_names() {
        let export = ExportStatus {
            snapshots: Some(SnapshotStatus { age_seconds: Some(1.0), ..SnapshotStatus::default() }),
            scrub: Some(ScrubStatus::default()),
            eviction: Some(EvictionStatus { last_seconds: Some(1.0), ..EvictionStatus::default() }),
            requests: BTreeMap::from([("lookup".into(), 1)]),
            latencies: BTreeMap::from([("at_once".into(), Latency::default())]),
            ..ExportStatus::default()
        };
        let registry = Some(RegistryStatus::default());
        let pool = PoolStatus { stores: vec![StoreStatus::default()], registry, ..PoolStatus::default() };
        let status = ServerStatus { exports: vec![export], pool: Some(pool), ..ServerStatus::default() };
        let text = status.metrics();
        let files = [
            include_str!("../../../monitoring/alerts.yml"),
            include_str!("../../../monitoring/dashboard.json"),
        ];
        for file in files {
            let names: Vec<&str> = rfs_status::metrics::names(file, "rfs_server_").collect();
            assert!(names.len() > 5, "{names:?}");
            for name in names {
                assert!(rfs_status::metrics::has(&text, name), "{name} is not exported");
            }
        }
    }
}
