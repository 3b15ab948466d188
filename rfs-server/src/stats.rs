//! Counters of the file code: how often each request was handled.
//!
//! Threading: relaxed atomics, any thread. The counts of one moment need not fit together. Nothing is counted here
//! that happens without the file code, which is the point of them.

use std::sync::atomic::{AtomicU64, Ordering};

use rfs_proto::{Request, ServerStats};

/// Names of the requests, in the order of the protocol.
const NAMES: [&str; 34] = [
    "attach",
    "lookup",
    "getattr",
    "setattr",
    "mknod",
    "create",
    "mkdir",
    "symlink",
    "readlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "open",
    "close",
    "layout",
    "allocate",
    "readdir",
    "statfs",
    "stats",
    "getxattr",
    "setxattr",
    "xattrpart",
    "listxattr",
    "removexattr",
    "fallocate",
    "copy",
    "lock",
    "stopwaiting",
    "testlock",
    "lookupahead",
    "recalls",
    "grants",
    "insist",
];

/// The counters.
#[derive(Debug)]
pub struct Counters {
    calls: [AtomicU64; NAMES.len()],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { calls: [const { AtomicU64::new(0) }; NAMES.len()] }
    }
}

impl Counters {
    /// Counts a request.
    pub fn count(&self, request: &Request<'_>) {
        self.calls[index(request)].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests handled, by name.
    pub fn calls(&self) -> Vec<(String, u64)> {
        NAMES
            .iter()
            .zip(&self.calls)
            .map(|(name, count)| ((*name).to_owned(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// The counters of several exports together.
pub fn sum(exports: impl IntoIterator<Item = ServerStats>) -> ServerStats {
    let together = |mut sum: ServerStats, next: ServerStats| {
        // All have the same names in the same order.
        sum.calls.iter_mut().zip(next.calls).for_each(|((_, calls), (_, more))| *calls += more);
        sum.sessions += next.sessions;
        sum
    };
    exports.into_iter().reduce(together).unwrap_or_default()
}

/// The name under which a request is counted.
pub fn request_name(request: &Request<'_>) -> &'static str {
    NAMES[index(request)]
}

fn index(request: &Request<'_>) -> usize {
    match request {
        Request::Attach { .. } => 0,
        Request::Lookup { .. } => 1,
        Request::GetAttr { .. } => 2,
        Request::SetAttr { .. } => 3,
        Request::Mknod { .. } => 4,
        Request::Create { .. } => 5,
        Request::Mkdir { .. } => 6,
        Request::Symlink { .. } => 7,
        Request::Readlink { .. } => 8,
        Request::Link { .. } => 9,
        Request::Unlink { .. } => 10,
        Request::Rmdir { .. } => 11,
        Request::Rename { .. } => 12,
        Request::Open { .. } => 13,
        Request::Close { .. } => 14,
        Request::Layout { .. } => 15,
        Request::Allocate { .. } => 16,
        Request::ReadDir { .. } => 17,
        Request::StatFs => 18,
        Request::Stats => 19,
        Request::GetXattr { .. } => 20,
        Request::SetXattr { .. } => 21,
        Request::XattrPart { .. } => 22,
        Request::ListXattr { .. } => 23,
        Request::RemoveXattr { .. } => 24,
        Request::Fallocate { .. } => 25,
        Request::Copy { .. } => 26,
        Request::Lock { .. } => 27,
        Request::StopWaiting { .. } => 28,
        Request::TestLock { .. } => 29,
        Request::LookupAhead { .. } => 30,
        Request::Recalls { .. } => 31,
        Request::Grants => 32,
        Request::Insist { .. } => 33,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let stats = |calls: &[u64], sessions| {
            let calls = NAMES.iter().zip(calls).map(|(name, count)| ((*name).to_owned(), *count)).collect();
            ServerStats { calls, sessions, uptime_secs: 9 }
        };
        assert_eq!(sum([stats(&[1, 2], 3), stats(&[10, 20], 30)]), stats(&[11, 22], 33));
    }

    #[test]
    fn counts_by_name() {
        let counters = Counters::default();
        counters.count(&Request::Stats);
        counters.count(&Request::Open { ino: 1, write: true });
        counters.count(&Request::Open { ino: 2, write: true });
        let calls = counters.calls();
        let get = |name: &str| calls.iter().find(|(n, _)| n == name).map(|(_, count)| *count);
        assert_eq!((get("stats"), get("open"), get("close")), (Some(1), Some(2), Some(0)));
        assert_eq!(calls.len(), NAMES.len());
        assert_eq!(request_name(&Request::Close { ino: 1 }), "close");
        assert_eq!(request_name(&Request::Stats), "stats");
        assert_eq!(request_name(&Request::RemoveXattr { ino: 1, name: b"" }), "removexattr");
    }
}
