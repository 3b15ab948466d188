//! Detects sequential faults, and says how many pages to read ahead.
//!
//! A fault is sequential if it is at the page after the previous fault, or after the pages that
//! were read ahead for it. The length doubles with each sequential fault, and falls to one page
//! with any other fault.
//!
//! # Concurrency
//! Plain values.

/// The detector of one region.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    /// Most pages of one block, the faulting page included.
    limit: usize,
    /// Page at which a fault is sequential.
    next: Option<usize>,
    /// Pages of the last block.
    len: usize,
}

impl ReadAhead {
    /// Makes a detector for blocks of up to `limit` pages. A limit of one never reads ahead.
    pub(crate) fn new(limit: usize) -> ReadAhead {
        ReadAhead { limit: limit.max(1), next: None, len: 1 }
    }

    /// Returns the number of pages to read at a fault, from the faulting page on.
    pub(crate) fn fault(&mut self, page: usize) -> usize {
        self.len = if self.next == Some(page) { (self.len * 2).min(self.limit) } else { 1 };
        self.next = Some(page + self.len);
        self.len
    }

    /// Tells the detector that only `pages` pages were read for the last fault at `page`.
    pub(crate) fn limited(&mut self, page: usize, pages: usize) {
        self.next = Some(page + pages.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_faults_double_the_block() {
        let mut detector = ReadAhead::new(32);
        let mut page = 100;
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let len = detector.fault(page);
            lengths.push(len);
            page += len;
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(detector.fault(7), 1, "a fault elsewhere");
        assert_eq!(detector.fault(8), 2);
        detector.limited(8, 1);
        assert_eq!(detector.fault(9), 4, "a shorter block goes on where it ended");
    }

    #[test]
    fn a_limit_of_one_page_reads_nothing_ahead() {
        let mut detector = ReadAhead::new(1);
        assert!((0..100).all(|page| detector.fault(page) == 1));
    }
}
