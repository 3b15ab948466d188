//! The status of a server as tables for people. No I/O, no locks, no clock.

use std::fmt::Write;

use rfs_status::{
    latency::HEADS,
    text::{Table, duration, percent, printable, rate, yes_no},
};

use super::{EvictionStatus, ExportStatus, ServerStatus, SessionState, SessionStatus};

/// Kinds of requests that a status lists, the most frequent first.
const MAX_KINDS: usize = 8;

impl ServerStatus {
    /// Renders the status. Rates are those since `before`, an earlier status of the same server, or
    /// means since the start.
    pub fn render(&self, before: Option<&ServerStatus>) -> String {
        // Another server may answer on the same socket.
        let before = before.filter(|before| before.process.pid == self.process.pid);
        let mut text = self.head();
        let mut part = |title: &str, table: Table| {
            if !table.is_empty() {
                // Writing to a string cannot fail.
                let _ = write!(text, "\n{title}\n{table}");
            }
        };
        part("Exports", self.exports_table());
        if let Some(pool) = &self.pool {
            part("Stores", pool.table());
        }
        part("Sessions", self.sessions_table(before));
        part(&format!("Requests ({})", interval(self, before)), self.requests_table(before));
        part("Latencies of requests since the start", self.latencies_table());
        part("Sessions that others wait for", self.recalls_table());
        part("Lock requests that wait", self.locks_table());
        part("Snapshots and scrubs", self.copies_table());
        part("Eviction", self.eviction_table());
        text
    }

    fn head(&self) -> String {
        let process = &self.process;
        let mut text = format!(
            "rfs-server {}, protocol {}, process {}, user {}, up {}\n",
            self.version,
            self.protocol,
            process.pid,
            process.user,
            duration(process.uptime_seconds)
        );
        let _ = writeln!(text, "listening on {}", self.addresses.join(", "));
        let _ = writeln!(
            text,
            "memory {} resident, {} of it shared; {} threads, {} descriptors, {} of processor time",
            byte_size::show(process.resident_bytes),
            byte_size::show(process.shared_bytes),
            process.threads,
            process.descriptors,
            duration(process.cpu_seconds)
        );
        let _ =
            writeln!(text, "{} errors and {} warnings since the start", self.log.errors, self.log.warnings);
        if let Some(error) = &self.log.last_error {
            let _ =
                writeln!(text, "last error, {} ago: {}", duration(error.age_seconds), printable(&error.text));
        }
        text
    }

    fn exports_table(&self) -> Table {
        let mut table = Table::new(&[
            "export",
            ">size",
            ">used",
            ">fill",
            ">quarantined",
            ">inodes",
            ">used",
            ">fill",
            ">sessions",
            ">locks",
        ]);
        for export in &self.exports {
            let used = export.size_bytes.saturating_sub(export.free_bytes);
            let inodes = export.inodes.saturating_sub(export.free_inodes);
            table.row([
                export.name.clone(),
                byte_size::show(export.size_bytes),
                byte_size::show(used),
                percent(used, export.size_bytes),
                byte_size::show(export.quarantined_bytes),
                export.inodes.to_string(),
                inodes.to_string(),
                percent(inodes, export.inodes),
                export.sessions.to_string(),
                export.locks.to_string(),
            ]);
        }
        table
    }

    fn sessions_table(&self, before: Option<&ServerStatus>) -> Table {
        let mut table = Table::new(&[
            ">session",
            "export",
            "host",
            ">pid",
            ">user",
            "mount point",
            "provider",
            "cache",
            "ro",
            "key",
            "state",
            ">requests/s",
        ]);
        let seconds = seconds(self, before);
        for session in &self.sessions {
            let number = |number: Option<u32>| number.map_or_else(|| "-".into(), |number| number.to_string());
            let or_dash = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".into());
            let earlier = before.and_then(|before| {
                before.sessions.iter().find(|s| (s.session, &s.export) == (session.session, &session.export))
            });
            let requests = session.requests.saturating_sub(earlier.map_or(0, |earlier| earlier.requests));
            table.row([
                session.session.to_string(),
                session.export.clone(),
                session.host.clone(),
                number(session.pid),
                number(session.user),
                or_dash(session.mount_point.as_ref()),
                session.provider.clone(),
                session.cache.clone(),
                yes_no(session.read_only),
                or_dash(session.key.as_ref()),
                state(session),
                rate(requests as f64 / seconds),
            ]);
        }
        table
    }

    fn requests_table(&self, before: Option<&ServerStatus>) -> Table {
        let mut table = Table::new(&["export", ">all/s", "most frequent, per second"]);
        let seconds = seconds(self, before);
        for export in &self.exports {
            let earlier = before.and_then(|before| before.exports.iter().find(|e| e.name == export.name));
            let mut kinds = requests_since(export, earlier);
            kinds.retain(|(_, count)| *count > 0);
            let all: u64 = kinds.iter().map(|(_, count)| count).sum();
            let kind = |(name, count): &(&str, u64)| format!("{name} {}", rate(*count as f64 / seconds));
            let kinds: Vec<String> = kinds.iter().take(MAX_KINDS).map(kind).collect();
            table.row([export.name.clone(), rate(all as f64 / seconds), kinds.join(", ")]);
        }
        table
    }

    fn latencies_table(&self) -> Table {
        let mut table = Table::new(&[&["export", "reply"][..], &HEADS].concat());
        let rows = self.exports.iter().flat_map(|e| e.latencies.iter().map(|row| (&e.name, row)));
        for (export, (reply, latency)) in rows.filter(|(_, (_, latency))| latency.count > 0) {
            table.row([export.clone(), reply.replace('_', " ")].into_iter().chain(latency.cells()));
        }
        table
    }

    fn recalls_table(&self) -> Table {
        let mut table = Table::new(&[
            ">session",
            "host",
            ">pid",
            "mount point",
            ">recalls",
            ">oldest",
            ">requests that wait",
            ">silent",
        ]);
        for session in self.sessions.iter().filter(|session| session.recalls > 0) {
            let age = |seconds: Option<f64>| seconds.map_or_else(|| "-".into(), duration);
            table.row([
                session.session.to_string(),
                session.host.clone(),
                session.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
                session.mount_point.clone().unwrap_or_else(|| "-".into()),
                session.recalls.to_string(),
                age(session.oldest_recall_seconds),
                session.holds_back.to_string(),
                age(session.silent_seconds),
            ]);
        }
        table
    }

    fn locks_table(&self) -> Table {
        let mut table = Table::new(&[
            "export",
            ">inode",
            "class",
            "kind",
            ">session",
            ">pid",
            ">held by session",
            ">pid",
        ]);
        for wait in &self.lock_waits {
            let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |number| number.to_string());
            table.row([
                wait.export.clone(),
                wait.inode.to_string(),
                wait.class.clone(),
                if wait.exclusive { "exclusive".into() } else { "shared".into() },
                wait.session.to_string(),
                wait.pid.to_string(),
                number(wait.holder_session),
                number(wait.holder_pid.map(u64::from)),
            ]);
        }
        table
    }

    fn copies_table(&self) -> Table {
        let mut table = Table::new(&["export", "newest snapshot", "last scrub"]);
        for export in
            self.exports.iter().filter(|export| export.snapshots.is_some() || export.scrub.is_some())
        {
            table.row([export.name.clone(), snapshot(export), scrub(export)]);
        }
        table
    }

    fn eviction_table(&self) -> Table {
        let columns = [
            "export", "rules", ">evicted", ">bytes", ">expired", ">waits", ">failed", ">last", ">may go",
            ">bytes",
        ];
        let mut table = Table::new(&columns);
        for export in &self.exports {
            let Some(eviction) = &export.eviction else { continue };
            table.row([
                export.name.clone(),
                rules(eviction),
                eviction.evicted_files.to_string(),
                byte_size::show(eviction.evicted_bytes),
                eviction.expired_files.to_string(),
                eviction.waits.to_string(),
                eviction.failures.to_string(),
                eviction.last_seconds.map_or_else(|| "-".into(), duration),
                eviction.candidate_files.to_string(),
                byte_size::show(eviction.candidate_bytes),
            ]);
        }
        table
    }
}

/// Returns the rules of an eviction, as an export has them.
fn rules(eviction: &EvictionStatus) -> String {
    let lru = Some("evict=lru".to_owned()).filter(|_| eviction.lru);
    let ttl = eviction.ttl_seconds.map(|seconds| format!("ttl={seconds}"));
    lru.into_iter().chain(ttl).collect::<Vec<_>>().join(",")
}

/// Returns the seconds that the rates of a status cover.
fn seconds(now: &ServerStatus, before: Option<&ServerStatus>) -> f64 {
    let begin = before.map_or(0.0, |before| before.process.uptime_seconds);
    (now.process.uptime_seconds - begin).max(0.001)
}

fn interval(now: &ServerStatus, before: Option<&ServerStatus>) -> String {
    match before {
        Some(_) => format!("in the last {}", duration(seconds(now, before))),
        None => "mean since the start".into(),
    }
}

/// Returns the requests of an export since an earlier status, the most frequent first.
fn requests_since<'a>(now: &'a ExportStatus, before: Option<&ExportStatus>) -> Vec<(&'a str, u64)> {
    let earlier = |name: &str| before.and_then(|before| before.requests.get(name)).copied().unwrap_or(0);
    let since = |(name, count): (&'a String, &u64)| (name.as_str(), count.saturating_sub(earlier(name)));
    let mut kinds: Vec<_> = now.requests.iter().map(since).collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    kinds
}

fn state(session: &SessionStatus) -> String {
    let age =
        |seconds: Option<f64>| seconds.map_or_else(String::new, |seconds| format!(" {}", duration(seconds)));
    match session.state {
        // A client renews its lease three times in 20 s by default.
        SessionState::Connected if session.silent_seconds.is_some_and(|silent| silent >= 10.0) => {
            format!("silent{}", age(session.silent_seconds))
        }
        SessionState::Connected => format!("connected{}", age(session.connected_seconds)),
        SessionState::Disconnected => format!("disconnected{}", age(session.disconnected_seconds)),
        SessionState::Restored => "not back yet".into(),
    }
}

fn snapshot(export: &ExportStatus) -> String {
    let Some(snapshots) = &export.snapshots else { return "-".into() };
    let mut text = match (snapshots.newest, snapshots.age_seconds) {
        (Some(number), Some(age)) => format!("{number}, {} old", duration(age)),
        _ => "none".into(),
    };
    if snapshots.size_bytes > 0 {
        let (size, took) = (byte_size::show(snapshots.size_bytes), duration(snapshots.took_seconds));
        let _ = write!(text, ", {size} in {took}");
    }
    if let Some(running) = snapshots.running_seconds {
        let _ = write!(text, "; the next is being made for {}", duration(running));
    }
    if let Some(failure) = &snapshots.failure {
        let _ = write!(text, "; FAILED: {failure}");
    }
    text
}

fn scrub(export: &ExportStatus) -> String {
    let Some(scrub) = &export.scrub else { return "-".into() };
    let (age, compared) = (duration(scrub.age_seconds), byte_size::show(scrub.compared_bytes));
    let result = match scrub.bad_blocks {
        0 => "nothing is bad".into(),
        bad => format!("{bad} bad blocks"),
    };
    let end = if scrub.complete { "" } else { ", not at its end" };
    format!("{age} ago, {compared} in {}: {result}{end}", duration(scrub.took_seconds))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rfs_status::{latency::Latency, logging::LogCounts, process::ProcessStatus};

    use super::{
        super::{LockWaitStatus, ScrubStatus, SnapshotStatus},
        *,
    };

    fn status(uptime_seconds: f64, lookups: u64) -> ServerStatus {
        let export = ExportStatus {
            name: "rfs".into(),
            size_bytes: 4 << 30,
            free_bytes: 1 << 30,
            inodes: 1000,
            free_inodes: 990,
            sessions: 1,
            requests: BTreeMap::from([("lookup".into(), lookups), ("open".into(), 7)]),
            latencies: BTreeMap::from([
                ("after_recalls".into(), Latency::default()),
                ("at_once".into(), Latency { count: 7, p99_seconds: 0.004, ..Latency::default() }),
            ]),
            ..ExportStatus::default()
        };
        let session = SessionStatus {
            export: "rfs".into(),
            session: 3,
            host: "node1".into(),
            pid: Some(77),
            user: Some(1000),
            mount_point: Some("/mnt/\u{1b}x".into()),
            provider: "tcp".into(),
            cache: "auto".into(),
            connected_seconds: Some(60.0),
            silent_seconds: Some(2.0),
            requests: lookups,
            ..SessionStatus::default()
        };
        ServerStatus {
            version: "0.1.0".into(),
            protocol: 14,
            process: ProcessStatus { pid: 5, uptime_seconds, ..ProcessStatus::default() },
            addresses: vec!["unix:/run/rfs/rfs.sock".into()],
            exports: vec![export],
            sessions: vec![session],
            log: LogCounts { errors: 1, ..LogCounts::default() },
            ..ServerStatus::default()
        }
    }

    #[test]
    fn rates_are_means_or_those_of_the_interval() {
        let text = status(100.0, 200).render(None);
        assert!(text.contains("Requests (mean since the start)"), "{text}");
        assert!(text.contains("lookup 2.00, open 0.07"), "{text}");
        let text = status(110.0, 300).render(Some(&status(100.0, 200)));
        assert!(text.contains("Requests (in the last 10 s)"), "{text}");
        assert!(text.contains("lookup 10") && !text.contains("open"), "{text}");
        // Another server answers.
        let mut other = status(100.0, 200);
        other.process.pid = 4;
        assert!(status(110.0, 300).render(Some(&other)).contains("mean since the start"));
    }

    #[test]
    fn a_quiet_server_has_no_tables_of_waiting() {
        let text = status(100.0, 0).render(None);
        assert!(text.contains("rfs     4 GiB  3 GiB  75 %"), "{text}");
        assert!(text.contains("connected 60 s"), "{text}");
        assert!(text.contains("rfs     at once       7") && !text.contains("after recalls"), "{text}");
        assert!(text.contains("/mnt/\\u{1b}x"), "a terminal would obey: {text}");
        for title in ["wait for", "that wait", "Snapshots", "last error", "Eviction"] {
            assert!(!text.contains(title), "{title}: {text}");
        }
    }

    #[test]
    fn waiting_and_failures_are_shown() {
        let mut status = status(100.0, 0);
        let session = &mut status.sessions[0];
        (session.silent_seconds, session.recalls, session.holds_back) = (Some(12.0), 5, 2);
        session.oldest_recall_seconds = Some(3.0);
        status.lock_waits.push(LockWaitStatus {
            export: "rfs".into(),
            inode: 42,
            session: 4,
            pid: 9,
            exclusive: true,
            class: "flock".into(),
            holder_session: Some(3),
            holder_pid: Some(77),
            ..LockWaitStatus::default()
        });
        status.exports[0].snapshots = Some(SnapshotStatus {
            newest: Some(6),
            age_seconds: Some(600.0),
            failure: Some("no space".into()),
            ..SnapshotStatus::default()
        });
        status.exports[0].scrub =
            Some(ScrubStatus { bad_blocks: 3, complete: true, ..ScrubStatus::default() });
        status.exports[0].eviction = Some(EvictionStatus {
            lru: true,
            ttl_seconds: Some(60),
            evicted_files: 1234,
            last_seconds: Some(4.0),
            ..EvictionStatus::default()
        });
        let text = status.render(None);
        for words in [
            "evict=lru,ttl=60",
            "1234",
            "silent 12 s",
            "Sessions that others wait for",
            "flock  exclusive",
            "6, 10 min old; FAILED: no space",
            "3 bad blocks",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    /// A status survives its JSON form, and one of another version with fewer fields can be read.
    #[test]
    fn json_is_read_back() {
        let status = status(1.5, 2);
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<ServerStatus>(&text).unwrap(), status);
        let old: ServerStatus = serde_json::from_str("{\"version\":\"0.0.1\",\"new\":1}").unwrap();
        assert_eq!(old.version, "0.0.1");
        assert!(text.contains("\"state\":\"connected\""), "{text}");
    }
}
