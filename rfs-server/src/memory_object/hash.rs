//! The hash over records of the header and the log.
//!
//! # Concurrency
//! Pure functions.

/// Returns an FNV-1a hash over 64-bit words that folds the upper half in after each word. It
/// detects incomplete writes, not tampering.
pub(super) fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

/// Splits bytes into little-endian words; pads the last word with zeroes.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}
