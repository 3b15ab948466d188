//! The control block: the first 4 KiB of a node's memory.
//!
//! It begins with the geometry, which peers compare with their own, and a random number of the
//! process. A word follows with a bit for each node that is given up. Then come the process numbers
//! of all nodes that this node has met. Peers change the latter two by CAS.

use crate::{
    logic::error::DecodeError,
    node::{members::MAX_NODES, options::NodeOptions},
};

/// Bytes of the block.
pub(crate) const CONTROL_LEN: usize = 4096;
/// "nessie", and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"nessie\x00\x02");
/// Words that a peer reads when it connects.
pub(crate) const HEADER_WORDS: usize = 6;
/// Byte offset of the number of the process.
pub(crate) const INCARNATION_AT: usize = 5 * 8;
/// Byte offset of the bits of nodes that are given up.
pub(crate) const CONDEMNED_AT: usize = 6 * 8;

/// Returns the byte offset of the word with the process number of a node.
pub(crate) fn known_at(node: u16) -> usize {
    debug_assert!(usize::from(node) < MAX_NODES);
    512 + usize::from(node) * 8
}

/// The part of the block that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    words: [u64; HEADER_WORDS],
}

impl Header {
    pub(crate) fn new(options: &NodeOptions, incarnation: u64) -> Header {
        let pair = |low: u64, high: u64| low | high << 32;
        let millis = |time: std::time::Duration| time.as_millis() as u64;
        Header {
            words: [
                MAGIC,
                pair(options.id.into(), options.ways as u64) | (options.max_key as u64) << 40,
                pair(options.slots().into(), options.max_value as u64),
                pair(millis(options.reuse_delay), millis(options.lease)),
                pair(
                    options.filter_bits.into(),
                    options.members.count() as u64 | u64::from(options.spare) << 16,
                ),
                incarnation,
            ],
        }
    }

    pub(crate) fn words(&self) -> &[u64; HEADER_WORDS] {
        &self.words
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.words[5]
    }

    /// Reads the block of a peer, and compares it with this node's.
    ///
    /// # Errors
    /// [`DecodeError::Control`] names the difference.
    pub(crate) fn decode(words: [u64; HEADER_WORDS], own: &Header, node: u16) -> Result<Header, DecodeError> {
        let differ = |reason: String| Err(DecodeError::Control(reason));
        if words[0] & 0xffff_ffff_ffff != MAGIC & 0xffff_ffff_ffff {
            return differ("no node of nessie listens there".into());
        }
        if words[0] != MAGIC {
            return differ(format!("layout version {}, here {}", words[0] >> 56, MAGIC >> 56));
        }
        if words[1] as u32 != u32::from(node) {
            return differ(format!("it is node {}: the lists of nodes differ", words[1] as u32));
        }
        let fields: [(&str, usize, u32, u32); 9] = [
            ("ways", 1, 32, 8),
            ("max-key", 1, 40, 24),
            ("index slots", 2, 0, 32),
            ("max-value", 2, 32, 32),
            ("reuse-delay in ms", 3, 0, 32),
            ("lease in ms", 3, 32, 32),
            ("filter-bits", 4, 0, 32),
            ("nodes", 4, 32, 16),
            ("spare nodes", 4, 48, 16),
        ];
        for (name, word, shift, bits) in fields {
            let field = |words: &[u64; HEADER_WORDS]| words[word] >> shift & ((1 << bits) - 1);
            let (theirs, ours) = (field(&words), field(&own.words));
            if theirs != ours {
                return differ(format!("{name} {theirs}, here {ours}"));
            }
        }
        if words[5] == 0 {
            return differ("the node has not started yet".into());
        }
        Ok(Header { words })
    }
}

/// Reads the bytes of a block as those of a peer.
///
/// # Errors
/// As [`Header::decode`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_control_block(bytes: &[u8], options: &NodeOptions) -> Result<(), DecodeError> {
    let mut words = [0; HEADER_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    }
    // With a right beginning, so that inputs reach the other fields.
    words[0] = MAGIC;
    Header::decode(words, &Header::new(options, 1), words[1] as u16).map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::members::Members;

    fn options(id: u16) -> NodeOptions {
        NodeOptions::new(id, Members::parse("0 127.0.0.1:1\n1 127.0.0.1:2").unwrap())
    }

    #[test]
    fn a_fitting_header_is_accepted() {
        let (own, peer) = (Header::new(&options(0), 5), Header::new(&options(1), 6));
        assert_eq!(Header::decode(*peer.words(), &own, 1), Ok(peer));
        assert_eq!(peer.incarnation(), 6);
    }

    #[test]
    fn differences_are_named() {
        let own = Header::new(&options(0), 5);
        let mut other = options(1);
        let reason = |options: &NodeOptions| {
            Header::decode(*Header::new(options, 6).words(), &own, 1).unwrap_err().to_string()
        };
        other.ways = 2;
        assert_eq!(reason(&other), "control block: ways 2, here 3");
        other = options(1);
        other.index_bytes = 80;
        assert_eq!(reason(&other), "control block: index slots 10, here 131072");
        assert_eq!(reason(&options(0)), "control block: it is node 0: the lists of nodes differ");
        let mut words = *Header::new(&options(1), 6).words();
        words[0] ^= 1 << 56;
        let found = Header::decode(words, &own, 1).unwrap_err().to_string();
        assert_eq!(found, "control block: layout version 3, here 2");
    }

    proptest! {
        #[test]
        fn any_words_decode_or_fail(words: [u64; HEADER_WORDS]) {
            let _ = Header::decode(words, &Header::new(&options(0), 5), 1);
        }
    }
}
