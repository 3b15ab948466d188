//! The 64-bit word of an index slot.
//!
//! A word has 15 bits for the data table, 32 for the offset, 16 for the version and one watermark,
//! from the highest bit on. [`Fields`] says how the 15 bits divide into filter and table number.
//! Offset zero is an empty slot. A slot that was cleared keeps the name of a removed entry, with
//! the highest bit of the offset set. So no word of a slot returns until that entry is used again.

use super::error::DecodeError;

const TABLE_BITS: u32 = 15;
const OFFSET_SHIFT: u32 = 17;
const TABLE_SHIFT: u32 = 49;
/// Bit of the offset that marks a cleared slot.
const CLEARED: u32 = 1 << 31;
const WATERMARK: u64 = 1;

/// Largest offset of a data entry.
pub(crate) const MAX_OFFSET: u32 = CLEARED - 1;

/// Names a data entry: the table of a node, and the number of the entry from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntryRef {
    pub(crate) table: u16,
    pub(crate) offset: u32,
}

/// Division of a word's bits that a deployment has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fields {
    /// Bits of the table number, at most 15. The remaining ones of 15 filter keys.
    table_bits: u32,
    filter_bits: u32,
    version_bits: u32,
    names_cleared: bool,
}

impl Fields {
    /// Reserves table numbers below `tables`, and up to `max_filter_bits` filter bits.
    pub(crate) fn new(tables: u32, max_filter_bits: u32) -> Fields {
        let table_bits = (u32::BITS - tables.saturating_sub(1).leading_zeros()).min(TABLE_BITS);
        let filter_bits = (TABLE_BITS - table_bits).min(max_filter_bits);
        Fields { table_bits, filter_bits, version_bits: 16, names_cleared: true }
    }

    /// Makes versions narrower, for models in which they wrap soon.
    #[cfg(test)]
    pub(crate) fn with_version_bits(self, version_bits: u32) -> Fields {
        Fields { version_bits, ..self }
    }

    /// Lets cleared words name no entry, as in the paper.
    #[cfg(test)]
    pub(crate) fn with_anonymous_clears(self) -> Fields {
        Fields { names_cleared: false, ..self }
    }

    #[cfg(test)]
    pub(crate) fn filter_bits(self) -> u32 {
        self.filter_bits
    }

    /// Returns the filter of a key with this hash: its trailing bits.
    pub(crate) fn filter(self, hash: u64) -> u16 {
        (hash & ((1 << self.filter_bits) - 1)) as u16
    }
}

/// The state of a slot, by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Empty,
    Entry { entry: EntryRef, filter: u16 },
}

/// The word of an index slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Word(u64);

impl Word {
    /// The word of a slot that was never used.
    pub(crate) const UNUSED: Word = Word(0);

    pub(crate) fn from_bits(bits: u64) -> Word {
        Word(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn version(self) -> u16 {
        (self.0 >> 1) as u16
    }

    fn offset(self) -> u32 {
        (self.0 >> OFFSET_SHIFT) as u32
    }

    /// Returns the content of the slot.
    ///
    /// # Errors
    /// [`DecodeError::Watermark`] if no client has written such a word.
    pub(crate) fn content(self, fields: Fields) -> Result<Content, DecodeError> {
        if self == Word::UNUSED {
            return Ok(Content::Empty);
        }
        if self.0 & WATERMARK == 0 {
            return Err(DecodeError::Watermark { word: self.0 });
        }
        let offset = self.offset();
        if offset == 0 || offset & CLEARED != 0 {
            return Ok(Content::Empty);
        }
        let field = (self.0 >> TABLE_SHIFT) as u16;
        let table = field & ((1 << fields.table_bits) - 1);
        Ok(Content::Entry { entry: EntryRef { table, offset }, filter: field >> fields.table_bits })
    }

    fn next_version(self, fields: Fields) -> u64 {
        let version = self.version().wrapping_add(1);
        u64::from(version) & ((1 << fields.version_bits) - 1)
    }

    fn compose(self, fields: Fields, field: u16, offset: u32) -> Word {
        let version = self.next_version(fields) << 1;
        Word(u64::from(field) << TABLE_SHIFT | u64::from(offset) << OFFSET_SHIFT | version | WATERMARK)
    }

    /// Returns the word that replaces this one and refers to `entry`.
    pub(crate) fn replace(self, fields: Fields, entry: EntryRef, filter: u16) -> Word {
        debug_assert!((1..=MAX_OFFSET).contains(&entry.offset), "{entry:?}");
        self.compose(fields, filter << fields.table_bits | entry.table, entry.offset)
    }

    /// Returns the word that replaces this one and is empty. `named` is an entry that no other
    /// client names in this slot: the removed entry, or the copy that a migration made of it.
    pub(crate) fn clear(self, fields: Fields, named: EntryRef) -> Word {
        if fields.names_cleared {
            self.compose(fields, named.table, named.offset | CLEARED)
        } else {
            self.compose(fields, 0, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table_numbers_leave_the_other_bits_to_the_filter() {
        for (tables, filter) in
            [(1, 15), (2, 14), (3, 13), (4, 13), (5, 12), (64, 9), (1 << 15, 0), (1 << 20, 0)]
        {
            assert_eq!(Fields::new(tables, 15).filter_bits(), filter, "{tables}");
        }
        assert_eq!(Fields::new(4, 7).filter_bits(), 7);
    }

    #[test]
    fn the_paper_s_bits_are_where_it_puts_them() {
        let fields = Fields::new(1 << 15, 0);
        let word = Word::UNUSED.replace(fields, EntryRef { table: 0x7fff, offset: 1 }, 0);
        assert_eq!(word.bits(), 0xfffe_0000_0000_0000 | 1 << 17 | 1 << 1 | 1);
    }

    #[test]
    fn a_word_without_watermark_is_rejected() {
        let fields = Fields::new(4, 15);
        assert_eq!(Word::from_bits(2).content(fields), Err(DecodeError::Watermark { word: 2 }));
    }

    #[test]
    fn versions_wrap() {
        let fields = Fields::new(4, 15);
        let entry = EntryRef { table: 1, offset: 9 };
        let mut word = Word::UNUSED;
        for _ in 0..1 << 16 {
            word = word.replace(fields, entry, 3);
        }
        assert_eq!(word.version(), 0);
    }

    proptest! {
        #[test]
        fn content_round_trips(tables in 1u32..1 << 15, hash: u64, table: u16, offset in 1..=MAX_OFFSET, old: u64) {
            let fields = Fields::new(tables, 15);
            let entry = EntryRef { table: table % tables as u16, offset };
            let filter = fields.filter(hash);
            let old = Word::from_bits(old);
            let word = old.replace(fields, entry, filter);
            prop_assert_eq!(word.content(fields), Ok(Content::Entry { entry, filter }));
            prop_assert_eq!(word.version(), old.version().wrapping_add(1));
            let cleared = word.clear(fields, entry);
            prop_assert_eq!(cleared.content(fields), Ok(Content::Empty));
            prop_assert_ne!(cleared, word);
            prop_assert_ne!(cleared, Word::UNUSED);
        }

        #[test]
        fn any_bits_decode_or_fail(bits: u64, tables in 1u32..1 << 15) {
            let _ = Word::from_bits(bits).content(Fields::new(tables, 15));
        }
    }
}
