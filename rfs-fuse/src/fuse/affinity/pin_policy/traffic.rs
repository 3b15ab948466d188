//! The work of session threads in a tick, and the callers that it is for.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use crate::fuse::affinity::overlap::Samples;

/// Work of a session thread in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::fuse::affinity) struct ThreadWork {
    /// Requests, and the bytes that they move, in units of work.
    pub(in crate::fuse::affinity) work: u32,
    /// The thread that made the last request.
    pub(in crate::fuse::affinity) caller: u32,
    /// Work of that thread in a row. May exceed `work`.
    pub(in crate::fuse::affinity) run: u32,
    /// Samples of overlapping reads and writes.
    pub(in crate::fuse::affinity) samples: Samples,
}

/// Returns true if at least half of a tick's samples overlap. Some samples of a blocking caller
/// may overlap, because the kernel's further request can be a FORGET.
pub(super) fn overlaps(observed: &[ThreadWork]) -> bool {
    let sum = |count: fn(&Samples) -> u32| {
        observed.iter().map(|observed| u64::from(count(&observed.samples))).sum::<u64>()
    };
    let (taken, overlapping) = (sum(|samples| samples.taken), sum(|samples| samples.overlapping));
    overlapping > 0 && 2 * overlapping >= taken
}

/// Work of all session threads in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    None,
    /// Work for one caller: the thread, and the amount.
    Sole(u32, u32),
    /// Work for several callers.
    Several(u32),
    /// Much of the work is the kernel's own.
    Mixed,
}

impl Traffic {
    pub(super) fn of(observed: &[ThreadWork]) -> Traffic {
        observed.iter().filter(|thread| thread.work > 0).fold(
            Traffic::None,
            |traffic, thread| match traffic {
                _ if thread.run == 0 => Traffic::Mixed,
                Traffic::None if thread.run >= thread.work => Traffic::Sole(thread.caller, thread.work),
                Traffic::None => Traffic::Several(thread.work),
                Traffic::Sole(caller, work) if caller == thread.caller && thread.run >= thread.work => {
                    Traffic::Sole(caller, work.saturating_add(thread.work))
                }
                Traffic::Sole(_, work) | Traffic::Several(work) => {
                    Traffic::Several(work.saturating_add(thread.work))
                }
                Traffic::Mixed => Traffic::Mixed,
            },
        )
    }
}
