//! Tells locks of flock(2) from locks of fcntl(2) in requests over `/dev/fuse`.
//!
//! # Concurrency
//! Session threads. Takes no locks.

use std::{fs::File, io, os::unix::fs::FileExt};

use fuser::Request;
use rfs_proto::LockClass;

/// Length of a lock request in bytes: a header of 40 bytes, then the file handle, the owner, the
/// lock, and the flags.
const LK_LEN: usize = 88;
const FLAGS_AT: usize = 80;
const FUSE_LK_FLOCK: u32 = 1;

/// Reads the flag that tells flock from fcntl, which fuser 0.18 receives but does not pass on.
/// The header that fuser lends to a handler lies in front of the rest of the request, in memory
/// of this process. Reading through `/proc/self/mem` cannot be undefined behavior. The flag
/// counts only if all other fields agree with fuser's values.
pub(super) struct LockFlags(Option<File>);

impl std::fmt::Debug for LockFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockFlags")
    }
}

impl LockFlags {
    pub(super) fn new() -> LockFlags {
        let memory = File::open("/proc/self/mem");
        LockFlags(
            memory
                .inspect_err(|e| {
                    log::warn!(
                        "cannot read /proc/self/mem: {e}: locks of flock(2) are taken as locks of fcntl(2), and the \
                         two kinds exclude each other"
                    );
                })
                .ok(),
        )
    }

    /// Returns the class of a lock. Assumes a record lock if the request cannot be read.
    pub(super) fn class(&self, request: &Request, handle: u64, owner: u64) -> LockClass {
        match self.read(request) {
            Ok(raw) if agrees(&raw, request.unique().0, handle, owner) => {
                if u32_at(&raw, FLAGS_AT) & FUSE_LK_FLOCK != 0 { LockClass::Flock } else { LockClass::Record }
            }
            _ => LockClass::Record,
        }
    }

    fn read(&self, request: &Request) -> io::Result<[u8; LK_LEN]> {
        let Some(memory) = &self.0 else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut raw = [0; LK_LEN];
        memory.read_exact_at(&mut raw, std::ptr::from_ref(request).addr() as u64)?;
        Ok(raw)
    }
}

fn agrees(raw: &[u8; LK_LEN], unique: u64, handle: u64, owner: u64) -> bool {
    u32_at(raw, 0) as usize == LK_LEN
        && u64_at(raw, 8) == unique
        && u64_at(raw, 40) == handle
        && u64_at(raw, 48) == owner
}

fn u32_at(raw: &[u8; LK_LEN], at: usize) -> u32 {
    u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; LK_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_agrees_is_believed() {
        let mut raw = [0; LK_LEN];
        raw[0] = LK_LEN as u8;
        for (at, value) in [(8, 11u64), (40, 12), (48, 13)] {
            raw[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        assert!(agrees(&raw, 11, 12, 13));
        assert!(!agrees(&raw, 10, 12, 13) && !agrees(&raw, 11, 0, 13) && !agrees(&raw, 11, 12, 0));
        raw[0] = 80;
        assert!(!agrees(&raw, 11, 12, 13));
    }
}
