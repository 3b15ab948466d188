//! Counts the requests of the kernel by kind, for the status of a mount.
//!
//! # Concurrency
//! Session threads count. Any thread reads the sums.

use rfs_client::StripedCounts;

/// Kinds of requests: name, and number of `enum fuse_opcode`.
const KINDS: [(&str, u32); 38] = [
    ("lookup", 1),
    ("forget", 2),
    ("getattr", 3),
    ("setattr", 4),
    ("readlink", 5),
    ("symlink", 6),
    ("mknod", 8),
    ("mkdir", 9),
    ("unlink", 10),
    ("rmdir", 11),
    ("rename", 12),
    ("link", 13),
    ("open", 14),
    ("read", 15),
    ("write", 16),
    ("statfs", 17),
    ("release", 18),
    ("fsync", 20),
    ("setxattr", 21),
    ("getxattr", 22),
    ("listxattr", 23),
    ("removexattr", 24),
    ("flush", 25),
    ("opendir", 27),
    ("readdir", 28),
    ("releasedir", 29),
    ("fsyncdir", 30),
    ("getlk", 31),
    ("setlk", 32),
    ("create", 35),
    ("interrupt", 36),
    ("fallocate", 43),
    ("readdirplus", 44),
    ("lseek", 46),
    ("copy_file_range", 47),
    ("tmpfile", 51),
    ("statx", 52),
    ("other", 0),
];
const OTHER: usize = KINDS.len() - 1;

/// Numbers of requests that have their own entry in [`BY_OPCODE`].
const OPCODES: usize = 64;

/// The kind of each number.
const BY_OPCODE: [u8; OPCODES] = by_opcode();

const fn by_opcode() -> [u8; OPCODES] {
    let mut table = [OTHER as u8; OPCODES];
    let mut at = 0;
    while at < OTHER {
        table[KINDS[at].1 as usize] = at as u8;
        at += 1;
    }
    // rename with flags, a lock request that blocks, and several forgets in one.
    table[45] = table[12];
    table[33] = table[32];
    table[42] = table[2];
    table
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKind(usize);

impl RequestKind {
    /// Returns the kind of a handler. Evaluate it in a constant: an unknown name panics.
    pub(crate) const fn named(name: &str) -> RequestKind {
        let mut at = 0;
        while at < KINDS.len() {
            if is_equal(KINDS[at].0.as_bytes(), name.as_bytes()) {
                return RequestKind(at);
            }
            at += 1;
        }
        panic!("no such kind of request")
    }

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        KINDS[self.0].0
    }

    /// Returns the kind of a number of `enum fuse_opcode`.
    pub(crate) fn of_opcode(opcode: u32) -> RequestKind {
        RequestKind(BY_OPCODE.get(opcode as usize).map_or(OTHER, |kind| usize::from(*kind)))
    }
}

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Requests of the kernel by kind.
#[derive(Debug, Default)]
pub struct RequestCounts(StripedCounts<{ KINDS.len() }>);

impl RequestCounts {
    /// Counts a request.
    pub(crate) fn count(&self, RequestKind(kind): RequestKind) {
        self.0.count(kind);
    }

    /// Returns the number of requests of each kind, without kinds that the kernel has not sent.
    pub fn sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS
            .iter()
            .enumerate()
            .map(move |(at, (name, _))| (*name, self.0.sum(at)))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: u64 = 32;

    #[test]
    fn requests_count_by_name_and_by_number() {
        let counts = RequestCounts::default();
        counts.count(const { RequestKind::named("read") });
        counts.count(RequestKind::of_opcode(15));
        counts.count(RequestKind::of_opcode(33));
        counts.count(RequestKind::of_opcode(32));
        for opcode in [0, 38, 63, 64, u32::MAX] {
            counts.count(RequestKind::of_opcode(opcode));
        }
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| counts.count(const { RequestKind::named("lookup") }));
            }
        });
        let sums: Vec<_> = counts.sums().collect();
        assert_eq!(sums, [("lookup", THREADS), ("read", 2), ("setlk", 2), ("other", 5)]);
    }
}
