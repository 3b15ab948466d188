//! Calls to a store, and their encoding.
//!
//! The owner of the pool sends orders: prepare, discard and mark chunks, end a client's access. A
//! client introduces itself, then asks where chunks are. Both are calls of rdmabox. Reads and
//! writes are no calls: they run no code of the store.
//!
//! # Concurrency
//! Plain values.

mod order;

use rdmabox::RemoteMr;
use serde::{Deserialize, Serialize};

pub use order::{Order, OrderError, Outcome};

use crate::{
    ids::{ClientId, Incarnation, StoreId},
    wire::Message,
};

/// Prefix of calls to a store.
const MAGIC: [u8; 8] = *b"rfspool3";
/// Most chunks in one message, so that a reply fits into a call of rdmabox.
pub(crate) const MAX_CHUNKS: usize = 2048;

/// A call to a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreRequest {
    /// The caller owns the pool: it knows the number that the store gave to the owner alone.
    Lead(Incarnation),
    /// A client says its name before it asks for chunks.
    Introduce(Introduction),
    /// Asks for the addresses of chunks, for this session.
    Locate(Vec<u32>),
    /// An order of the owner.
    Order(Order),
    /// Asks for the numbers of the store.
    Report,
    /// The caller owns the pool: it has the key of the pool. A higher epoch than before begins
    /// anew: all chunks are discarded, and the access of all clients ends.
    Own {
        /// Epoch of the owner. A store refuses a lower epoch than the highest that it has seen.
        epoch: u64,
    },
}

/// A client's introduction to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The store that the client means. Another store at the same address refuses it.
    pub store: StoreId,
    /// The client.
    pub client: ClientId,
    /// The client's epoch. A store refuses an epoch that a [`Order::Fence`] has ended.
    pub epoch: u32,
}

/// Numbers of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Chunks that the store has prepared and not discarded.
    pub chunks: u32,
    /// Registrations since the start. It stays the same when a chunk is used again.
    pub registrations: u64,
    /// Clients that have introduced themselves and are connected.
    pub clients: u32,
}

/// The reply of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreAnswer {
    /// A `Lead` or an `Introduce` was accepted.
    Welcome,
    /// The epoch has ended, or the store is another one.
    Refused(String),
    /// The bytes of a [`RemoteMr`] for each chunk, in the order of the request.
    Located(Vec<[u8; RemoteMr::ENCODED_LEN]>),
    /// The store has no chunk of this number.
    NoChunk(u32),
    /// The effect of an order.
    Outcome(Outcome),
    /// Numbers of the store.
    Report(StoreReport),
    /// An `Own` was accepted.
    Owned {
        /// The number of this run of the store.
        incarnation: Incarnation,
        /// Most bytes that the store lends.
        capacity: u64,
    },
}

impl Message for StoreRequest {
    const MAGIC: [u8; 8] = MAGIC;
}

impl Message for StoreAnswer {
    const MAGIC: [u8; 8] = MAGIC;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_round_trip() {
        let introduction = Introduction { store: StoreId(3), client: ClientId(9), epoch: 2 };
        let requests = [
            StoreRequest::Lead(Incarnation(7)),
            StoreRequest::Introduce(introduction),
            StoreRequest::Locate(vec![0, 70_000]),
            StoreRequest::Order(Order::Prepare { count: 4, bytes: 1 << 26 }),
            StoreRequest::Order(Order::Fence { client: ClientId(1), epoch: 0 }),
        ];
        for request in requests {
            let mut bytes = request.to_bytes();
            assert_eq!(StoreRequest::decode(&bytes), Some(request));
            bytes.push(0);
            assert_eq!(StoreRequest::decode(&bytes), None, "a longer message");
        }
    }

    #[test]
    fn a_full_reply_fits_into_a_call() {
        let located = StoreAnswer::Located(vec![[0xff; RemoteMr::ENCODED_LEN]; MAX_CHUNKS]);
        let listed = StoreAnswer::Outcome(Outcome::Chunks(vec![u32::MAX; MAX_CHUNKS]));
        for full in [located, listed] {
            let len = full.to_bytes().len();
            assert!(len <= rdmabox::MAX_CALL, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let with_magic = [&MAGIC[..], &bytes].concat();
            let _ = (StoreRequest::decode(&with_magic), StoreAnswer::decode(&with_magic));
            let _ = StoreRequest::decode(&bytes);
        }
    }
}
