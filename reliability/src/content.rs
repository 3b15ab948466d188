//! Bytes that tell where they belong.

/// The bytes of a stream from an offset on; another stream has others.
pub(crate) fn fill(stream: u64, offset: u64, bytes: &mut [u8]) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte = byte_at(stream, at);
    }
}

/// The first place at which bytes are not those of a stream from an offset on.
pub(crate) fn first_wrong(stream: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    (offset..).zip(bytes).find(|(at, byte)| **byte != byte_at(stream, *at)).map(|(at, _)| at)
}

/// The first place at which bytes are neither those of a stream from an offset on nor a hole's.
pub(crate) fn first_foreign(stream: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut all = (offset..).zip(bytes);
    all.find(|(at, byte)| **byte != 0 && **byte != byte_at(stream, *at)).map(|(at, _)| at)
}

/// How many bytes are not those of a stream from an offset on.
pub(crate) fn wrong(stream: u64, offset: u64, bytes: &[u8]) -> u64 {
    (offset..).zip(bytes).filter(|(at, byte)| **byte != byte_at(stream, *at)).count() as u64
}

/// Never 0, which is what a hole reads as.
fn byte_at(stream: u64, at: u64) -> u8 {
    let word = (at ^ stream.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 56) as u8 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_another_place_or_stream_is_found() {
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
