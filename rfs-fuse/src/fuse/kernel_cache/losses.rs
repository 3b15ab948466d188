//! Record of data that the kernel has cached and could not write back.
//!
//! While a mount is in use, the kernel reports such a loss to programs at `fsync` or `close`.
//! During the unmount no program is left to report to. [`Losses`] counts these losses, and the
//! mount's process ends with an error.
//!
//! # Concurrency
//! Any thread. One lock, taken when a write-back fails.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

/// Returns true if this process or another one is unmounting the mount.
type UnmountCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// The record of a mount.
#[derive(Default)]
pub struct Losses {
    is_ending: OnceLock<UnmountCheck>,
    /// True once a loss is in the log.
    logged: AtomicBool,
    unreported: Mutex<Option<UnreportedLosses>>,
}

impl fmt::Debug for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Losses").field("unreported", &self.unreported.lock()).finish_non_exhaustive()
    }
}

/// Losses that no program learns of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes of {} files are lost: they could not be written back at the unmount \
     (inode numbers {}): {error}",
    .inodes.len(),
    .inodes.iter().take(5).map(u64::to_string).collect::<Vec<_>>().join(", ")
)]
pub struct UnreportedLosses {
    bytes: u64,
    inodes: BTreeSet<u64>,
    /// The first error.
    error: String,
}

impl Losses {
    /// Sets `is_ending`, which each later loss calls. Only the first call counts.
    pub fn count_if(&self, is_ending: impl Fn() -> bool + Send + Sync + 'static) {
        // A mount is connected once.
        let _ = self.is_ending.set(Box::new(is_ending));
    }

    /// Adds a range of a file that could not be written back.
    pub(in crate::fuse) fn add(&self, (ino, offset, len): (u64, u64, u32), error: &dyn fmt::Display) {
        let level = match self.logged.swap(true, Ordering::Relaxed) {
            false => log::Level::Warn,
            true => log::Level::Debug,
        };
        log::log!(level, "inode {ino}: cannot write back {len} bytes from {offset} on: {error}");
        if !self.is_ending.get().is_some_and(|is_ending| is_ending()) {
            return;
        }
        let mut unreported = self.unreported.lock();
        let unreported = unreported.get_or_insert_with(|| UnreportedLosses {
            bytes: 0,
            inodes: BTreeSet::new(),
            error: error.to_string(),
        });
        unreported.bytes += u64::from(len);
        unreported.inodes.insert(ino);
    }

    /// Returns the losses during the unmount.
    pub fn unreported(&self) -> Option<UnreportedLosses> {
        self.unreported.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn losses_count_only_during_the_unmount() {
        let losses = Losses::default();
        losses.add((1, 0, 10), &"before there is a mount");
        let ending = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ending);
        losses.count_if(move || asked.load(Ordering::Relaxed));
        losses.add((2, 0, 10), &"in use");
        assert_eq!(losses.unreported(), None);
        ending.store(true, Ordering::Relaxed);
        for (place, error) in [((3, 0, 10), "first"), ((3, 10, 10), "second"), ((4, 0, 5), "third")] {
            losses.add(place, &error);
        }
        assert_eq!(
            losses.unreported().expect("losses").to_string(),
            "25 bytes of 2 files are lost: they could not be written back at the unmount \
             (inode numbers 3, 4): first"
        );
    }
}
