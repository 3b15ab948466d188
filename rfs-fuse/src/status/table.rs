//! The status of a mount as text for people. No I/O, no locks, no clock.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write};

use rfs_status::{
    latency::HEADS,
    text::{Table, byte_rate, duration, printable, rate},
};

use super::{MountStatus, SessionState, SessionStatus};

/// Kinds of requests that a status lists, the most frequent first.
const MAX_KINDS: usize = 10;

impl MountStatus {
    /// Renders the status. Rates are those since `before`, an earlier status of the same mount, or
    /// means since the start.
    pub(crate) fn render(&self, before: Option<&MountStatus>) -> String {
        if let Some(error) = &self.error {
            return format!("{}: {}\n", printable(&self.mount_point), printable(error));
        }
        // Another mount may have the device number now.
        let before = before.filter(|before| before.process.pid == self.process.pid && before.error.is_none());
        let mut text = self.head();
        let mut part = |title: &str, table: Table| {
            if !table.is_empty() {
                // Writing to a string cannot fail.
                let _ = write!(text, "\n{title}\n{table}");
            }
        };
        let (interval, counted) = match before {
            Some(_) => {
                let last = format!("in the last {}", duration(self.seconds_since(before)));
                (last.clone(), last)
            }
            None => ("mean since the start".into(), "since the start".into()),
        };
        part(&format!("Requests of the kernel ({interval})"), self.requests_table(before));
        part(&format!("Caches of the mount ({counted})"), self.caches_table(before));
        part(&format!("Session ({interval})"), self.session_table(before));
        part("Latencies since the session began", self.latencies_table());
        part("Lock requests that wait", self.locks_table());
        text
    }

    fn head(&self) -> String {
        let process = &self.process;
        let mut text = format!(
            "{} on {}: rfs-fuse {}, protocol {}, process {}, user {}, up {}\n",
            printable(&self.source),
            printable(&self.mount_point),
            self.version,
            self.protocol,
            process.pid,
            process.user,
            duration(process.uptime_seconds)
        );
        let session = self.session.as_ref().map_or_else(|| "no session: own memory".into(), describe);
        let _ = writeln!(text, "{session}");
        let _ = writeln!(
            text,
            "{}, cache {}, requests over {}{}, {} inodes known to the kernel",
            if self.read_only { "read-only" } else { "read-write" },
            self.cache,
            if self.io_uring { "io_uring" } else { "/dev/fuse" },
            self.waiting_requests.map_or_else(String::new, |count| format!(", {count} without a reply")),
            self.known_inodes
        );
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

    /// Returns the seconds that rates cover.
    fn seconds_since(&self, before: Option<&MountStatus>) -> f64 {
        let begin = before.map_or(0.0, |before| before.process.uptime_seconds);
        (self.process.uptime_seconds - begin).max(0.001)
    }

    fn requests_table(&self, before: Option<&MountStatus>) -> Table {
        let mut table = Table::new(&[">all/s", "most frequent, per second"]);
        let seconds = self.seconds_since(before);
        let mut kinds = since(&self.requests, before.map(|before| &before.requests));
        kinds.retain(|(_, count)| *count > 0);
        kinds.sort_by_key(|(_, count)| Reverse(*count));
        let all: u64 = kinds.iter().map(|(_, count)| count).sum();
        let kind = |(name, count): &(&str, u64)| format!("{name} {}", rate(*count as f64 / seconds));
        let kinds: Vec<String> = kinds.iter().take(MAX_KINDS).map(kind).collect();
        if !self.requests.is_empty() {
            table.row([rate(all as f64 / seconds), kinds.join(", ")]);
        }
        table
    }

    fn caches_table(&self, before: Option<&MountStatus>) -> Table {
        let mut table = Table::new(&["cache", ">hits", ">misses", ">ratio"]);
        for (name, now) in &self.caches {
            let earlier = before.and_then(|before| before.caches.get(name)).copied().unwrap_or_default();
            let hits = now.hits.saturating_sub(earlier.hits);
            let misses = now.misses.saturating_sub(earlier.misses);
            let all = hits + misses;
            if all > 0 {
                let ratio = format!("{:.0} %", 100.0 * hits as f64 / all as f64);
                table.row([name.clone(), hits.to_string(), misses.to_string(), ratio]);
            }
        }
        table
    }

    fn session_table(&self, before: Option<&MountStatus>) -> Table {
        let mut table = Table::new(&[
            ">READ/s",
            ">read",
            ">WRITE/s",
            ">written",
            ">atomics/s",
            ">calls/s",
            ">merged/s",
            ">errors",
        ]);
        let Some(session) = &self.session else { return table };
        let seconds = self.seconds_since(before);
        let earlier = before.and_then(|before| before.session.as_ref());
        let counted = since(&session.counters, earlier.map(|session| &session.counters));
        let per_second = |name: &str| {
            let count = counted.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count);
            count as f64 / seconds
        };
        table.row([
            rate(per_second("read_requests")),
            byte_rate(per_second("bytes_read")),
            rate(per_second("write_requests")),
            byte_rate(per_second("bytes_written")),
            rate(per_second("atomic_requests")),
            rate(per_second("calls") + per_second("calls_started")),
            rate(per_second("merged")),
            session.counters.get("errors").copied().unwrap_or(0).to_string(),
        ]);
        table
    }

    fn latencies_table(&self) -> Table {
        let mut table = Table::new(&[&["kind"][..], &HEADS].concat());
        let latencies = self.session.iter().flat_map(|session| &session.latencies);
        for (kind, latency) in latencies.filter(|(_, latency)| latency.count > 0) {
            table.row([kind.clone()].into_iter().chain(latency.cells()));
        }
        table
    }

    fn locks_table(&self) -> Table {
        let mut table = Table::new(&[">inode", ">pid", "class", "kind", ">waits for"]);
        for wait in &self.lock_waits {
            table.row([
                wait.inode.to_string(),
                wait.pid.to_string(),
                wait.class.clone(),
                if wait.exclusive { "exclusive".into() } else { "shared".into() },
                duration(wait.age_seconds),
            ]);
        }
        table
    }
}

fn describe(session: &SessionStatus) -> String {
    let state = match (session.state, session.lost_seconds) {
        (SessionState::Connected, _) => "connected".into(),
        (SessionState::Reconnecting, lost) => format!("RECONNECTING for {}", duration(lost.unwrap_or(0.0))),
        (SessionState::Ended, _) => match &session.final_loss {
            Some(reason) => format!("SESSION LOST, every operation fails, because {}", printable(reason)),
            None => "SESSION LOST: every operation fails".into(),
        },
    };
    let mut text = format!("{state}: {}", printable(&session.transport));
    if session.checksums {
        text.push_str(", with checksums");
    }
    if session.reconnects > 0 {
        let _ = write!(text, "; {} reconnects", session.reconnects);
    }
    if session.losses > 0 {
        let _ = write!(text, ", {} times without the state of this mount", session.losses);
    }
    text
}

/// Returns the increase of each counter. A counter that has begun anew counts from 0.
fn since<'a>(now: &'a BTreeMap<String, u64>, before: Option<&BTreeMap<String, u64>>) -> Vec<(&'a str, u64)> {
    let earlier = |name: &String| before.and_then(|before| before.get(name)).copied().unwrap_or(0);
    let change = |(name, count): (&'a String, &u64)| {
        let change = count.checked_sub(earlier(name)).unwrap_or(*count);
        (name.as_str(), change)
    };
    now.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use rfs_status::{latency::Latency, process::ProcessStatus};

    use super::{
        super::{CacheStatus, LockWaitStatus},
        *,
    };

    fn status(uptime_seconds: f64, reads: u64) -> MountStatus {
        let latency = Latency { count: reads, p50_seconds: 0.000_012, ..Latency::default() };
        let session = SessionStatus {
            transport: "TCP via tcp:h:1".into(),
            counters: BTreeMap::from([("read_requests".into(), reads), ("bytes_read".into(), reads * 4096)]),
            latencies: BTreeMap::from([("read".into(), latency), ("write".into(), Latency::default())]),
            ..SessionStatus::default()
        };
        MountStatus {
            process: ProcessStatus { pid: 5, uptime_seconds, ..ProcessStatus::default() },
            mount_point: "/mnt/\u{1b}".into(),
            source: "h:1".into(),
            cache: "auto".into(),
            requests: BTreeMap::from([("read".into(), reads), ("lookup".into(), 1)]),
            session: Some(session),
            ..MountStatus::default()
        }
    }

    #[test]
    fn rates_are_means_or_those_of_the_interval() {
        let text = status(100.0, 1000).render(None);
        assert!(text.contains("h:1 on /mnt/\\u{1b}: rfs-fuse"), "{text}");
        assert!(text.contains("mean since the start") && text.contains("read 10, lookup 0.01"), "{text}");
        assert!(text.contains("40 KiB/s") && text.contains("12.0 us"), "{text}");
        assert!(!text.contains("write  0") && !text.contains("wait\n"), "{text}");
        let text = status(110.0, 3000).render(Some(&status(100.0, 1000)));
        assert!(text.contains("in the last 10 s") && text.contains("read 200"), "{text}");
        // A reconnect begins the counters of the session anew.
        let text = status(110.0, 500).render(Some(&status(100.0, 1000)));
        assert!(text.contains("read 50"), "{text}");
    }

    #[test]
    fn uses_of_caches_are_those_of_the_interval() {
        let with = |hits, misses| {
            let used = CacheStatus { hits, misses };
            let caches =
                BTreeMap::from([("names".into(), used), ("listings".into(), CacheStatus::default())]);
            MountStatus { caches, ..status(1.0, 1) }
        };
        let text = with(3, 1).render(None);
        assert!(text.contains("names     3       1   75 %") && !text.contains("listings"), "{text}");
        let text = with(3, 2).render(Some(&with(3, 1)));
        assert!(text.contains("names     0       1    0 %"), "{text}");
        assert!(!with(3, 2).render(Some(&with(3, 2))).contains("Caches"), "{text}");
    }

    #[test]
    fn trouble_stands_out() {
        let mut status = status(1.0, 1);
        let session = status.session.as_mut().unwrap();
        (session.state, session.lost_seconds) = (SessionState::Reconnecting, Some(3.0));
        status.lock_waits.push(LockWaitStatus { pid: 7, class: "flock".into(), ..LockWaitStatus::default() });
        let text = status.render(None);
        assert!(
            text.contains("RECONNECTING for 3.0 s") && text.contains("Lock requests that wait"),
            "{text}"
        );
        status.session.as_mut().unwrap().state = SessionState::Ended;
        assert!(status.render(None).contains("SESSION LOST: every operation fails"));
        status.session.as_mut().unwrap().final_loss = Some("the server is another one".into());
        let text = status.render(None);
        assert!(text.contains("every operation fails, because the server is another one"), "{text}");
        let error = Some("process 7 does not answer".to_owned());
        let silent = MountStatus { mount_point: "/mnt".into(), error, ..MountStatus::default() };
        assert_eq!(silent.render(Some(&status)), "/mnt: process 7 does not answer\n");
    }

    #[test]
    fn json_is_read_back() {
        let status = status(1.5, 2);
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<MountStatus>(&text).unwrap(), status);
        assert!(!text.contains("\"error\""), "{text}");
        assert_eq!(serde_json::from_str::<MountStatus>("{\"new\":1}").unwrap(), MountStatus::default());
    }
}
