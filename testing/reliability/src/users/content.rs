//! File content that depends on its position, so that misplaced bytes are detected.

/// Fills `bytes` with the content of a stream, beginning at `offset`. Every stream has different
/// content.
pub(crate) fn fill(stream: u64, offset: u64, bytes: &mut [u8]) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte = byte_at(stream, at);
    }
}

/// Returns the position of the first byte that differs from the stream.
pub(crate) fn first_wrong(stream: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    (offset..).zip(bytes).find(|(at, byte)| **byte != byte_at(stream, *at)).map(|(at, _)| at)
}

/// Returns the position of the first byte that differs from the stream and is not zero as in a
/// hole.
pub(crate) fn first_foreign(stream: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut all = (offset..).zip(bytes);
    all.find(|(at, byte)| **byte != 0 && **byte != byte_at(stream, *at)).map(|(at, _)| at)
}

/// Returns the number of bytes that differ from the stream.
pub(crate) fn wrong(stream: u64, offset: u64, bytes: &[u8]) -> u64 {
    (offset..).zip(bytes).filter(|(at, byte)| **byte != byte_at(stream, *at)).count() as u64
}

/// Returns the byte at a position. It is never 0, because holes read as zeros.
fn byte_at(stream: u64, at: u64) -> u8 {
    let word = (at ^ stream.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 56) as u8 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_another_position_or_stream_are_found() {
        let mut bytes = [0; 4096];
        fill(7, 100, &mut bytes);
        assert_eq!(first_wrong(7, 100, &bytes), None);
        assert_eq!(first_wrong(7, 164, &bytes[64..]), None);
        assert!(first_wrong(7, 101, &bytes).is_some() && first_wrong(8, 100, &bytes).is_some());
        bytes[77] = 0;
        assert_eq!(first_wrong(7, 100, &bytes), Some(177));
        assert_eq!(wrong(7, 100, &bytes), 1);
        assert_eq!(first_foreign(7, 100, &bytes), None);
        assert!(first_foreign(8, 100, &bytes).is_some());
    }
}
