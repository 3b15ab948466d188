//! Orders of a pool's owner to a store, and their effects.
//!
//! # Concurrency
//! Plain values.

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, StoreId};

/// An order of the pool's owner to a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Take the number in the pool.
    Join(StoreId),
    /// List the chunks that the store has, from a number on, in ascending order. A list has at most
    /// 2,048 chunks; an empty list is the end.
    List {
        /// The first number.
        from: u32,
    },
    /// Allocate and register chunks. All or none.
    Prepare {
        /// Number of chunks.
        count: u32,
        /// Length of a chunk in bytes, without its mark.
        bytes: u64,
    },
    /// Return the memory of chunks to the system.
    Discard(Vec<u32>),
    /// Store a value in the mark of each chunk.
    Mark {
        /// The chunks.
        chunks: Vec<u32>,
        /// The value.
        value: u64,
    },
    /// End the access of a client, up to and including an epoch. The answer comes when no request
    /// of the client can reach memory of the store.
    Fence {
        /// The client.
        client: ClientId,
        /// The last epoch that ends.
        epoch: u32,
    },
    /// Zero a range of a chunk.
    Zero {
        /// The chunk.
        chunk: u32,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// The effect of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Chunks of the store, for [`Order::List`] and [`Order::Prepare`].
    Chunks(Vec<u32>),
    /// The order is done.
    Done,
    /// The order had no effect.
    Failed(OrderError),
}

/// Why an order had no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OrderError {
    /// The machine has no memory for the chunks.
    #[error("no memory: {0}")]
    NoMemory(String),
    /// The store lends no more than its capacity.
    #[error("the store lends at most {0} bytes")]
    Capacity(u64),
    /// The store has no chunk of this number.
    #[error("the store has no chunk {0}")]
    NoChunk(u32),
    /// The range is not inside the chunk.
    #[error("the range is not inside the chunk")]
    OutOfBounds,
}
