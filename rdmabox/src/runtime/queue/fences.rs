//! Decides which steps of an ordered list need a fence.
//!
//! A responder executes requests in order, but a READ or an atomic may return its data later. A
//! later request that changes the same bytes can then take effect first. The specification lists
//! three such pairs in its table of operation ordering: READ before WRITE, READ before atomic,
//! and atomic before WRITE. The later request of such a pair is fenced. Lists without such a pair
//! pay nothing.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use smallvec::SmallVec;

use crate::{
    batch::ranges_overlap,
    verbs::{RemoteAddr, SendOp},
};

/// The remote ranges that earlier, unfenced steps of a list fetch.
#[derive(Debug, Default)]
pub(crate) struct FenceTracker {
    ranges: SmallVec<[(RemoteAddr, u64, bool); 4]>,
}

impl FenceTracker {
    /// Adds the next step of a list. Returns true if the step needs a fence.
    pub(crate) fn step(&mut self, op: &SendOp, len: u64) -> bool {
        let (remote, len, changes, atomic) = match *op {
            SendOp::Read { remote } => (remote, len, false, false),
            SendOp::Write { remote, .. } => (remote, len, true, false),
            SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::FetchOp { remote, .. } => (remote, 8, true, true),
            SendOp::Send { .. } => return false,
        };
        let conflict = changes
            && self.ranges.iter().any(|&(other, other_len, other_atomic)| {
                // Atomics are ordered among themselves.
                !(atomic && other_atomic) && ranges_overlap((remote, len), (other, other_len))
            });
        if conflict {
            // The fence completes all earlier steps before this step starts.
            self.ranges.clear();
        }
        if atomic || !changes {
            self.ranges.push((remote, len, atomic));
        }
        conflict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: 1 }
    }

    fn read(addr: u64) -> SendOp {
        SendOp::Read { remote: at(addr) }
    }

    fn write(addr: u64) -> SendOp {
        SendOp::Write { remote: at(addr), imm: None }
    }

    fn swap(addr: u64) -> SendOp {
        SendOp::CompareSwap { remote: at(addr), compare: 0, swap: 1 }
    }

    fn fences(steps: &[(SendOp, u64)]) -> Vec<bool> {
        let mut fetched = FenceTracker::default();
        steps.iter().map(|(op, len)| fetched.step(op, *len)).collect()
    }

    #[test]
    fn only_a_change_of_fetched_bytes_is_fenced() {
        assert_eq!(fences(&[(read(0), 64), (write(63), 1)]), [false, true]);
        assert_eq!(fences(&[(read(0), 64), (write(64), 1)]), [false, false]);
        assert_eq!(fences(&[(read(0), 64), (write(0), 0)]), [false, false]);
        assert_eq!(fences(&[(read(0), 64), (swap(56), 8)]), [false, true]);
        assert_eq!(fences(&[(swap(8), 8), (write(0), 9)]), [false, true]);
        assert_eq!(fences(&[(swap(8), 8), (swap(8), 8)]), [false, false]);
        assert_eq!(fences(&[(write(0), 64), (read(0), 64), (read(0), 64)]), [false, false, false]);
    }

    #[test]
    fn a_fence_covers_everything_before_it() {
        assert_eq!(
            fences(&[(read(0), 8), (read(8), 8), (write(0), 8), (write(8), 8)]),
            [false, false, true, false]
        );
        assert_eq!(fences(&[(read(0), 8), (swap(0), 8), (write(0), 8)]), [false, true, true]);
    }
}
