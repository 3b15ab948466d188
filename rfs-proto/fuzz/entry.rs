//! The entry point of the fuzz target and of the test over its seeds. A peer may send any bytes, as
//! a message or in a record.

use rfs_proto::{
    decode_reply, decode_reply_with, decode_request, encode_reply, encode_reply_with, encode_request, record,
};

/// Decodes `bytes` as each kind of input from a peer. A decoded value must survive encoding and
/// decoding.
pub(crate) fn check(bytes: &[u8]) {
    let mut encoded = Vec::new();
    if let Ok(request) = decode_request(bytes) {
        encode_request(&request, &mut encoded);
        assert_eq!(decode_request(&encoded), Ok(request));
        // A peer may pad its varints. This crate does not.
        assert!(encoded.len() <= bytes.len());
    }
    if let Ok(reply) = decode_reply(bytes) {
        encode_reply(&reply, &mut encoded);
        assert_eq!(decode_reply(&encoded), Ok(reply));
        assert!(encoded.len() <= bytes.len());
    }
    if let Ok((reply, Some(directory))) = decode_reply_with(bytes) {
        encode_reply_with(&reply, &directory, &mut encoded);
        assert_eq!(decode_reply_with(&encoded), Ok((reply, Some(directory))));
        assert!(encoded.len() <= bytes.len());
    }
    if let Some(raw) = bytes.first_chunk::<{ record::LEN }>() {
        let mut ino = [0; 8];
        ino.copy_from_slice(&raw[record::INO..record::INO + 8]);
        let _ = record::decode(raw, u64::from_le_bytes(ino), 0);
    }
}
