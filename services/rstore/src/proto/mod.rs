//! Calls to the master, and their encoding.
//!
//! A call is one [`Request`], and its reply a [`Reply`] with the client's present epoch. All lists
//! in messages are bounded: places of a region come in pages of [`PAGE_CHUNKS`] chunks.
//!
//! # Concurrency
//! Plain values.

mod ids;
mod reply;
mod request;
mod status;

use pool::wire::Message;

pub use ids::{NamespaceId, RegionId};
pub use reply::{Answer, LeaseInfo, RegionInfo, Reply, Welcome};
pub use request::{Request, Resume, StoreCard};
pub use status::{ChunkCounts, Status, StoreStatus};

/// Prefix of calls to the master.
const MAGIC: [u8; 8] = *b"rstorem2";
/// Most chunks in one reply.
pub const PAGE_CHUNKS: usize = 4096;
/// Longest name of a namespace in bytes.
pub const MAX_NAME: usize = 255;

impl Message for Request {
    const MAGIC: [u8; 8] = MAGIC;
}

impl Message for Reply {
    const MAGIC: [u8; 8] = MAGIC;
}

#[cfg(test)]
mod tests {
    use pool::{ChunkId, StoreId};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_of_places_fits_into_a_call() {
        let chunk = ChunkId { store: StoreId(u16::MAX), number: u32::MAX };
        let stores = (0..512).map(|n| (StoreId(n), "unix:/run/rstore/store-000.sock".into())).collect();
        let answer = Answer::Places(vec![chunk; PAGE_CHUNKS], stores);
        let bytes = Reply { epoch: u32::MAX, answer }.to_bytes();
        assert!(bytes.len() <= rdmabox::MAX_CALL, "{} bytes", bytes.len());
        assert!(Reply::decode(&bytes).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let with_magic = [&MAGIC[..], &bytes].concat();
            let _ = (Request::decode(&with_magic), Reply::decode(&with_magic), Request::decode(&bytes));
        }
    }
}
