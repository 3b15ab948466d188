//! The state of one page, and its transitions.
//!
//! A page is absent or resident. Its bytes may have a copy in the memory of lenders ("stored").
//! Invariants: a resident page that is not protected is dirty; a page that is neither resident nor
//! stored nor lost reads as zero.
//!
//! # Concurrency
//! Plain values.

/// State of a page: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page(u8);

/// The bytes are in local memory.
const RESIDENT: u8 = 1;
/// A store faults, so that the pager sees it before it happens.
const PROTECTED: u8 = 2;
/// The local bytes may differ from the stored copy.
const DIRTY: u8 = 4;
/// The page faulted since the hand of the clock visited it.
const REFERENCED: u8 = 8;
/// A write-out is under way.
const WRITING: u8 = 16;
/// Lenders hold a copy. It is current unless the page is dirty.
const STORED: u8 = 32;
/// All copies are gone. A load or store raises SIGBUS.
const LOST: u8 = 64;

/// How to resolve a fault on a page that the kernel reports as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingFault {
    /// An earlier fault has brought the page: wake the thread.
    Present,
    /// Map a page of zeros.
    Zero,
    /// Read the page from a lender.
    Load,
    /// The bytes are gone: raise SIGBUS.
    Lost,
}

/// How to resolve a store to a page that the kernel reports as write-protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// An earlier fault has lifted the protection: wake the thread.
    Writable,
    /// Lift the protection. The page did not have to come from a lender.
    Unprotect,
    /// The page left after the fault: wake the thread, which faults again.
    Absent,
}

/// The action of the clock's hand on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Nothing: absent, or a write-out is under way.
    Pass,
    /// A second chance. `protect` asks for protection, so that the next store is a reference.
    Age {
        /// The page is not protected yet.
        protect: bool,
    },
    /// The stored copy is current: drop the page.
    Drop,
    /// The page has to be written out first.
    Clean {
        /// The page is not protected yet.
        protect: bool,
    },
}

/// The action on a page whose write-out ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The copy is current: drop the page.
    Drop,
    /// A store came in between, or no lender took the bytes: the page stays, and is dirty.
    Keep,
}

impl Page {
    pub(crate) fn is_resident(self) -> bool {
        self.has(RESIDENT)
    }

    pub(crate) fn is_protected(self) -> bool {
        self.has(PROTECTED)
    }

    pub(crate) fn is_writing(self) -> bool {
        self.has(WRITING)
    }

    pub(crate) fn is_lost(self) -> bool {
        self.has(LOST)
    }

    /// Returns true if servers have a copy, current or not.
    pub(crate) fn is_stored(self) -> bool {
        self.has(STORED)
    }

    /// Returns true if a lender's chunk must keep the page's slot.
    pub(crate) fn uses_slot(self) -> bool {
        self.has(STORED) || self.has(WRITING)
    }

    /// Returns true if the page is in lenders' memory only.
    pub(crate) fn is_remote(self) -> bool {
        self.has(STORED) && !self.has(RESIDENT)
    }

    /// Returns true if servers have the only copy, or a copy that lets the page be dropped.
    pub(crate) fn needs_copy(self) -> bool {
        self.has(STORED) && !(self.has(RESIDENT) && self.has(DIRTY))
    }

    /// Returns true if the page may be dropped: its copy is current, and no store came since.
    pub(crate) fn is_clean(self) -> bool {
        let needed = RESIDENT | PROTECTED | STORED;
        self.0 & (needed | DIRTY | WRITING) == needed
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    fn set(&mut self, bits: u8) {
        self.0 |= bits;
    }

    fn clear(&mut self, bits: u8) {
        self.0 &= !bits;
    }

    /// Returns how to resolve a fault on a missing page. The state changes when the page is
    /// [filled](Self::fill).
    pub(crate) fn missing_fault(self) -> MissingFault {
        if self.has(RESIDENT) {
            MissingFault::Present
        } else if self.has(LOST) {
            MissingFault::Lost
        } else if self.has(STORED) {
            MissingFault::Load
        } else {
            MissingFault::Zero
        }
    }

    /// Marks the page resident. Zeros and pages for a store are unprotected and dirty; a page for
    /// a load is protected and clean.
    pub(crate) fn fill(&mut self, protected: bool, referenced: bool) {
        debug_assert!(!self.has(RESIDENT | LOST), "{self:?}");
        self.set(RESIDENT | if protected { PROTECTED } else { DIRTY });
        if referenced || !protected {
            self.set(REFERENCED);
        }
    }

    /// Handles a store to a protected page.
    pub(crate) fn store_fault(&mut self) -> StoreFault {
        if !self.has(RESIDENT) {
            StoreFault::Absent
        } else if !self.has(PROTECTED) {
            StoreFault::Writable
        } else {
            self.clear(PROTECTED);
            self.set(DIRTY | REFERENCED);
            StoreFault::Unprotect
        }
    }

    /// Handles the visit of the clock's hand. The caller protects the page if asked to.
    pub(crate) fn visit(&mut self) -> Visit {
        if !self.has(RESIDENT) || self.has(WRITING) {
            return Visit::Pass;
        }
        let protect = !self.has(PROTECTED);
        if self.has(REFERENCED) {
            self.clear(REFERENCED);
            self.set(PROTECTED);
            Visit::Age { protect }
        } else if self.has(DIRTY) {
            self.set(PROTECTED);
            Visit::Clean { protect }
        } else {
            Visit::Drop
        }
    }

    /// Marks the beginning of a write-out. The caller has copied the bytes after the protection.
    pub(crate) fn begin_write(&mut self) {
        debug_assert!(self.has(RESIDENT) && self.has(PROTECTED) && !self.has(WRITING), "{self:?}");
        self.set(WRITING);
    }

    /// Marks the end of a write-out; `stored` says if all copies that count are there.
    pub(crate) fn end_write(&mut self, stored: bool) -> Written {
        debug_assert!(self.has(RESIDENT) && self.has(WRITING), "{self:?}");
        self.clear(WRITING);
        if stored {
            self.set(STORED);
        }
        if stored && self.has(PROTECTED) {
            self.clear(DIRTY);
            Written::Drop
        } else {
            Written::Keep
        }
    }

    /// Marks a clean page absent. The stored copy remains.
    pub(crate) fn drop_clean(&mut self) {
        debug_assert!(self.is_clean(), "{self:?}");
        self.clear(RESIDENT | PROTECTED | REFERENCED);
    }

    /// Marks a page of zeros absent. A stored copy is void.
    pub(crate) fn drop_zero(&mut self) {
        debug_assert!(self.has(RESIDENT) && self.has(PROTECTED) && !self.has(WRITING), "{self:?}");
        *self = Page::default();
    }

    /// Handles the loss of all stored copies. Returns true if the bytes are lost with them.
    pub(crate) fn lose_copies(&mut self) -> bool {
        if !self.has(STORED) {
            return false;
        }
        self.clear(STORED);
        if self.has(RESIDENT) {
            self.set(DIRTY);
            false
        } else {
            self.set(LOST);
            true
        }
    }

    /// Marks the page lost without a fault of its lender, for example if the kernel refuses it.
    pub(crate) fn lose(&mut self) {
        debug_assert!(!self.has(RESIDENT), "{self:?}");
        *self = Page(LOST);
    }

    /// Forgets everything: the page reads as zero.
    pub(crate) fn discard(&mut self) {
        debug_assert!(!self.has(WRITING), "{self:?}");
        *self = Page::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> Page {
        let mut page = Page(STORED);
        page.fill(true, true);
        page
    }

    #[test]
    fn a_new_page_is_zero_and_leaves_after_a_second_chance_and_a_write_out() {
        let mut page = Page::default();
        assert_eq!(page.missing_fault(), MissingFault::Zero);
        page.fill(false, true);
        assert_eq!(page.missing_fault(), MissingFault::Present);
        assert_eq!(page.visit(), Visit::Age { protect: true });
        assert_eq!(page.visit(), Visit::Clean { protect: false });
        page.begin_write();
        assert_eq!(page.visit(), Visit::Pass);
        assert_eq!(page.end_write(true), Written::Drop);
        page.drop_clean();
        assert_eq!(page.missing_fault(), MissingFault::Load);
    }

    #[test]
    fn a_store_during_the_write_out_keeps_the_page() {
        let mut page = loaded();
        assert_eq!(page.store_fault(), StoreFault::Unprotect);
        assert_eq!(page.store_fault(), StoreFault::Writable);
        page.visit();
        page.visit();
        page.begin_write();
        assert_eq!(page.store_fault(), StoreFault::Unprotect);
        assert_eq!(page.end_write(true), Written::Keep);
        assert_eq!(page.visit(), Visit::Age { protect: true });
        assert_eq!(page.visit(), Visit::Clean { protect: false });
    }

    #[test]
    fn a_clean_page_is_dropped_without_a_write_out() {
        let mut page = loaded();
        assert_eq!(page.visit(), Visit::Age { protect: false });
        assert_eq!(page.visit(), Visit::Drop);
        page.drop_clean();
        assert_eq!(page.store_fault(), StoreFault::Absent);
    }

    #[test]
    fn a_loss_between_the_end_of_the_write_out_and_the_drop_keeps_the_page() {
        let mut page = loaded();
        page.store_fault();
        page.visit();
        page.visit();
        page.begin_write();
        assert!(!page.is_clean());
        assert_eq!(page.end_write(true), Written::Drop);
        assert!(page.is_clean());
        assert!(!page.lose_copies());
        assert!(!page.is_clean(), "the only copy is not dropped");
        assert_eq!(page.missing_fault(), MissingFault::Present);
    }

    #[test]
    fn the_loss_of_copies_loses_absent_pages_only() {
        let mut page = loaded();
        assert!(!page.lose_copies());
        assert_eq!(page.visit(), Visit::Age { protect: false });
        assert_eq!(page.visit(), Visit::Clean { protect: false }, "the only copy is not dropped");
        let mut page = loaded();
        page.visit();
        page.visit();
        page.drop_clean();
        assert!(page.lose_copies());
        assert_eq!(page.missing_fault(), MissingFault::Lost);
        page.discard();
        assert_eq!(page.missing_fault(), MissingFault::Zero);
    }
}
