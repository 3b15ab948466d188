//! The bytes of a data entry.
//!
//! An entry has a head word, lengths, key, value and a tail word. Key and value never change while
//! an index slot can refer to the entry. The head word has the entry's life, which grows with every
//! reuse, and the mark of a client that removed the reference. The last byte has a valid flag of 7
//! bits and the watermark.

use std::sync::Arc;

use super::error::DecodeError;

/// Format of entries, which every entry names.
const FORMAT: u16 = 1;
/// Format of an entry that stands for no value.
const TOMBSTONE: u16 = 0x8001;
const VALUE_LEN: usize = 8;
const KEY_LEN: usize = 12;
const FORMAT_AT: usize = 14;
const KEY: usize = 16;
/// Length of the tail word in bytes.
pub(crate) const TAIL: usize = 8;

const WATERMARK: u8 = 1;
const VALID: u8 = 0x7f << 1;

/// Returns the bytes of an entry for keys and values up to these lengths: a multiple of 8.
pub(crate) fn stride(max_key: usize, max_value: usize) -> usize {
    (KEY + max_key + max_value).next_multiple_of(8) + TAIL
}

/// Returns the head word of an entry in this life.
pub(crate) fn head(life: u64, is_released: bool) -> u64 {
    life << 1 | u64::from(is_released)
}

/// Returns the life that a head word names, and whether the reference was removed.
pub(crate) fn split_head(head: u64) -> (u64, bool) {
    (head >> 1, head & 1 == 1)
}

/// Returns the tail word, whose last byte has the flags.
pub(crate) fn tail(is_valid: bool) -> u64 {
    let flags = if is_valid { VALID | WATERMARK } else { WATERMARK };
    u64::from_le_bytes([0, 0, 0, 0, 0, 0, 0, flags])
}

/// A data entry as it was read, or as it is to be stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    bytes: Arc<[u8]>,
    key_len: usize,
    value_len: usize,
    is_valid: bool,
}

impl Entry {
    /// Returns an entry that is to be stored.
    ///
    /// # Panics
    /// If the key exceeds 64 KiB or the value 4 GiB.
    pub(crate) fn new(key: &[u8], value: &[u8]) -> Entry {
        Entry::with_format(FORMAT, key, value)
    }

    /// Returns an entry that says that the key has no value.
    ///
    /// # Panics
    /// If the key exceeds 64 KiB.
    pub(crate) fn tombstone(key: &[u8]) -> Entry {
        Entry::with_format(TOMBSTONE, key, b"")
    }

    fn with_format(format: u16, key: &[u8], value: &[u8]) -> Entry {
        let mut bytes = Vec::with_capacity(KEY + key.len() + value.len());
        bytes.extend_from_slice(&[0; VALUE_LEN]);
        bytes.extend_from_slice(&u32::try_from(value.len()).expect("checked length").to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(key.len()).expect("checked length").to_le_bytes());
        bytes.extend_from_slice(&format.to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        Entry { bytes: bytes.into(), key_len: key.len(), value_len: value.len(), is_valid: false }
    }

    /// Reads the bytes of a whole entry.
    ///
    /// # Errors
    /// [`DecodeError::Format`] and [`DecodeError::Lengths`].
    pub(crate) fn decode(bytes: Arc<[u8]>) -> Result<Entry, DecodeError> {
        let Some(room) = bytes.len().checked_sub(KEY + TAIL) else {
            return Err(DecodeError::Lengths { key: 0, value: 0, room: 0 });
        };
        let found = u16::from_le_bytes([bytes[FORMAT_AT], bytes[FORMAT_AT + 1]]);
        if found != FORMAT && found != TOMBSTONE {
            return Err(DecodeError::Format { expected: FORMAT, found });
        }
        let value_len = u32::from_le_bytes(bytes[VALUE_LEN..KEY_LEN].try_into().expect("4 bytes")) as usize;
        let key_len = usize::from(u16::from_le_bytes([bytes[KEY_LEN], bytes[KEY_LEN + 1]]));
        if value_len > room || key_len > room - value_len {
            return Err(DecodeError::Lengths { key: key_len, value: value_len, room });
        }
        let is_valid = bytes[bytes.len() - 1] & VALID == VALID;
        Ok(Entry { bytes, key_len, value_len, is_valid })
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[KEY..KEY + self.key_len]
    }

    pub(crate) fn value(&self) -> &[u8] {
        &self.bytes[KEY + self.key_len..KEY + self.key_len + self.value_len]
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.bytes[FORMAT_AT..KEY] == TOMBSTONE.to_le_bytes()
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.is_valid
    }

    pub(crate) fn life(&self) -> u64 {
        let head = self.bytes[..8].try_into().expect("8 bytes");
        split_head(u64::from_le_bytes(head)).0
    }

    /// Returns the bytes behind the head word, up to the end of the value.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[VALUE_LEN..KEY + self.key_len + self.value_len]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the bytes of a data table's entry that holds `entry`.
    pub(crate) fn stored(entry: &Entry, stride: usize, life: u64, is_valid: bool) -> Arc<[u8]> {
        let mut bytes = vec![0xee; stride];
        bytes[..8].copy_from_slice(&head(life, false).to_le_bytes());
        bytes[8..8 + entry.body().len()].copy_from_slice(entry.body());
        bytes[stride - TAIL..].copy_from_slice(&tail(is_valid).to_le_bytes());
        bytes.into()
    }

    proptest! {
        #[test]
        fn an_entry_round_trips(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..200),
            room in 0usize..30,
            life in 0u64..1 << 60,
            is_valid: bool,
        ) {
            let entry = Entry::new(&key, &value);
            let stride = stride(key.len() + room, value.len());
            prop_assert_eq!(stride % 8, 0);
            let read = Entry::decode(stored(&entry, stride, life, is_valid)).expect("a whole entry");
            prop_assert_eq!((read.key(), read.value()), (&key[..], &value[..]));
            prop_assert_eq!((read.life(), read.is_valid()), (life, is_valid));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(entry) = Entry::decode(bytes.into()) {
                let _ = (entry.key(), entry.value(), entry.life(), entry.body());
            }
        }
    }

    #[test]
    fn the_valid_flag_has_seven_bits_beside_the_watermark() {
        assert_eq!(tail(false).to_le_bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(tail(true).to_le_bytes(), [0, 0, 0, 0, 0, 0, 0, 0xff]);
        assert_eq!(split_head(head(7, true)), (7, true));
    }

    #[test]
    fn lengths_beyond_the_entry_are_rejected() {
        let mut bytes = stored(&Entry::new(b"k", b"v"), stride(1, 1), 1, true).to_vec();
        bytes[KEY_LEN] = 200;
        assert!(matches!(Entry::decode(bytes.into()), Err(DecodeError::Lengths { key: 200, .. })));
        assert!(matches!(Entry::decode(vec![0; 23].into()), Err(DecodeError::Lengths { .. })));
    }
}
