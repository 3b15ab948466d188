//! The size of the own memory, which changes while the server runs.
//!
//! The arena has the address space of the largest size. Memory beyond the current size is
//! withdrawn: no file gets it, and the system has its pages.
//!
//! # Concurrency
//! Any thread. The lock `resizing` is taken before the lock of the allocator. It is held while
//! memory is reserved, populated or returned, so that no page comes back behind a shrinking.

use rdmabox::MemoryError;

use super::Space;
use crate::space::alloc::range::Range;

/// The own memory cannot be as small as that now. Nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall {
    /// The least size that is possible now, in bytes.
    pub least: u64,
    /// Bytes among them that are free, but that sessions or a snapshot can still reach.
    pub quarantined: u64,
}

impl Space {
    /// Returns the size of the own memory.
    pub fn own_len(&self) -> u64 {
        self.account.lock().arena.own_len()
    }

    /// Changes the size of the own memory. `len` is at most the length of the arena. `reserve` gets
    /// the ranges that files will have in addition. Returns the old size.
    ///
    /// Waits until enough free space is zeroed. Space that is no longer used goes back to the
    /// system.
    ///
    /// # Errors
    /// [`TooSmall`], or the error of `reserve`. The size is unchanged.
    pub fn resize<E: From<TooSmall>>(
        &self,
        len: u64,
        reserve: impl FnOnce(&[Range]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let _resizing = self.resizing.lock();
        let old = self.own_len();
        if len <= old {
            self.release(&self.withdraw(len)?);
            return Ok(old);
        }
        let more = self.account.lock().arena.lowest_withdrawn(len - old);
        let more = more.ok_or(TooSmall { least: old, quarantined: 0 })?;
        if let Err(e) = reserve(&more) {
            self.release(&more);
            return Err(e);
        }
        self.change_account(|account| account.arena.give_back(&more));
        self.clean.notify_all();
        Ok(old)
    }

    /// Withdraws clean space down to a size.
    fn withdraw(&self, len: u64) -> Result<Vec<Range>, TooSmall> {
        loop {
            let withdrawn = self.change_account(|account| {
                let own = account.arena.own_space();
                let excess = own.len.saturating_sub(len);
                let ranges = account.arena.withdraw(excess);
                let may_suffice = excess <= own.clean + own.dirty || own.zeroing > 0;
                let least = own.len - own.clean - own.dirty;
                let too_small = TooSmall { least, quarantined: own.quarantined };
                if ranges.is_some() || may_suffice { Ok(ranges) } else { Err(too_small) }
            });
            match withdrawn? {
                Some(ranges) => return Ok(ranges),
                None => self.gain_clean(),
            }
        }
    }

    /// Gives the memory of withdrawn ranges back to the system.
    fn release(&self, ranges: &[Range]) {
        for range in ranges {
            if let Err(e) = self.bytes.memory().discard(range.start as usize, range.len as usize) {
                log::warn!("the system does not take {} bytes of memory back: {e}", range.len);
            }
        }
    }

    /// Reserves the memory of all space that is not withdrawn.
    ///
    /// # Errors
    /// The system or the file system has too little.
    pub fn reserve(&self) -> Result<(), MemoryError> {
        let _resizing = self.resizing.lock();
        let given = self.given(Range { start: 0, len: self.bytes.len() });
        given.into_iter().try_for_each(|range| self.reserve_range(range))
    }

    /// Reserves the memory of a range.
    ///
    /// # Errors
    /// The system or the file system has too little.
    pub fn reserve_range(&self, range: Range) -> Result<(), MemoryError> {
        // The arena is mapped, so its places fit in `usize`.
        self.bytes.memory().reserve_range(range.start as usize, range.len as usize)
    }

    /// Maps the pages of a range of the arena before their use, unless they are withdrawn.
    pub fn populate(&self, range: Range) {
        let _resizing = self.resizing.lock();
        for part in self.given(range) {
            self.bytes.memory().populate(part.start as usize, part.len as usize);
        }
    }

    fn given(&self, range: Range) -> Vec<Range> {
        self.account.lock().arena.given(range)
    }
}
