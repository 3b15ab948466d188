//! Encoding of calls: a magic number with a version, then postcard.
//!
//! Another service, or another version, is told by its first message. A decoder accepts a message
//! with no bytes left over, and never panics.
//!
//! # Concurrency
//! Plain values.

use serde::{Serialize, de::DeserializeOwned};

/// A call or a reply.
pub trait Message: Serialize + DeserializeOwned {
    /// Prefix of every message of the service. The last byte is the version.
    const MAGIC: [u8; 8];

    /// Appends the encoded message to `out`.
    ///
    /// # Panics
    /// If the message has a value that postcard cannot encode, such as a sequence of unknown
    /// length.
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&Self::MAGIC);
        let bytes = std::mem::take(out);
        *out = postcard::to_extend(self, bytes).expect("postcard encodes plain values");
    }

    /// Returns the encoded message.
    ///
    /// # Panics
    /// As for [`encode`](Self::encode).
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// Decodes a message; `None` if the bytes are no message of this service and version.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (message, rest) = postcard::take_from_bytes(bytes.strip_prefix(&Self::MAGIC)?).ok()?;
        rest.is_empty().then_some(message)
    }
}
