//! Finds entries to which no slot refers, although their owner got no notice.
//!
//! A client that dies between its CAS and its notice leaves such an entry. Each entry is in one
//! slot once in its life, so one reading of all slots proves that an entry is in none.

use std::collections::HashMap;

use rdmabox::Op;

use super::Driver;
use crate::{
    error::{NessieError, failed},
    logic::{
        placement::Placement,
        word::{Content, Word},
    },
    node::stats::Counters,
};

/// Words of a list: the most steps that a list takes.
const BATCH: u32 = 64;

impl Driver {
    /// Reads all index words, and releases the entries of this node that none of them names.
    ///
    /// # Errors
    /// [`NessieError::Unreachable`]: nothing was released.
    pub(in crate::node) fn sweep(&self, slots: u32) -> Result<usize, NessieError> {
        // With their lives: an entry that is used again meanwhile is another one.
        let mut unnamed: HashMap<u32, u64> = self.table.used().into_iter().collect();
        for peer in self.peers[..self.listed].iter().filter(|peer| !peer.is_lost()) {
            let link = peer.link().ok_or_else(|| peer.unreachable())?;
            for first in (0..slots).step_by(BATCH as usize) {
                let count = BATCH.min(slots - first);
                let mut words = [[0u8; 8]; BATCH as usize];
                let mut steps: Vec<Op<'_>> = (first..first + count)
                    .zip(&mut words)
                    .map(|(number, out)| Op::Read { remote: link.slot(number), out })
                    .collect();
                link.session.execute(&mut steps).map_err(|e| failed(peer.node, &e))?;
                for word in &words[..count as usize] {
                    let word = Word::from_bits(u64::from_ne_bytes(*word));
                    if let Content::Entry { entry, .. } = word.content(self.placement.fields())?
                        && entry.table == self.node
                    {
                        unnamed.remove(&entry.offset);
                    }
                }
            }
        }
        unnamed.retain(|offset, life| self.table.release_life(*offset, *life));
        unnamed.iter().for_each(|_| Counters::add(&self.counters.swept));
        Ok(unnamed.len())
    }
}
