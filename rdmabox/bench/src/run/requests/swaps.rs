//! Compare-and-swaps that block.

use rdmabox::{Op, RequestError};

use super::{NOWHERE, Requests, Target};
use crate::run::record::Record;

/// Compare-and-swaps that increment a word unless it has changed meanwhile. Several form an ordered
/// list.
#[derive(Debug)]
pub struct Swaps<'a> {
    targets: &'a [Target],
    ops: Vec<Op<'a>>,
    /// Last observed value of each word of each peer.
    seen: Vec<Vec<u64>>,
    stride: u64,
}

impl<'a> Swaps<'a> {
    /// Takes one slot for an old value per outstanding request. Each peer has `words` words,
    /// `stride` bytes apart.
    pub fn new(targets: &'a [Target], olds: &'a mut [u64], words: u64, stride: u64) -> Self {
        let ops = olds
            .iter_mut()
            .map(|old| Op::CompareSwap { remote: NOWHERE, compare: 0, swap: 0, old })
            .collect();
        Swaps { targets, ops, seen: vec![vec![0; words as usize]; targets.len()], stride }
    }
}

impl Requests for Swaps<'_> {
    fn takes(&self) -> usize {
        self.ops.len()
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let (target, seen) = (&self.targets[peer], &mut self.seen[peer]);
        let word = |offset: u64| (offset / self.stride) as usize;
        let ops = &mut self.ops[..offsets.len()];
        for (op, offset) in ops.iter_mut().zip(offsets) {
            if let Op::CompareSwap { remote, compare, swap, .. } = op {
                *remote = target.at(*offset);
                *compare = seen[word(*offset)];
                *swap = compare.wrapping_add(1);
            }
        }
        let began = record.now();
        target.session.execute(ops)?;
        record.completed(offsets.len() as u64, began, record.now());
        for (op, offset) in ops.iter().zip(offsets) {
            if let Op::CompareSwap { compare, swap, old, .. } = op {
                let won = **old == *compare;
                record.swapped += u64::from(won);
                seen[word(*offset)] = if won { *swap } else { **old };
            }
        }
        Ok(())
    }
}
