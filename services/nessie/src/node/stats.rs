//! Counters of a node.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the node began.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// Values of a node's counters ([`Node::stats`](crate::Node::stats)).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct NodeStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> NodeStats {
                NodeStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl NodeStats {
            /// Returns the names and the values, for output.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// GETs that returned a value or none.
    gets,
    /// PUTs that stored a value.
    puts,
    /// DELETEs that ended.
    deletes,
    /// READs of index words of this node.
    own_words,
    /// READs of index words of other nodes.
    remote_words,
    /// CAS of index words.
    swaps,
    /// CAS of index words that found another word.
    failed_swaps,
    /// Entries read from this node's data table.
    own_entries,
    /// Entries read from other nodes.
    remote_entries,
    /// Entries found in the cache.
    cache_hits,
    /// Entries stored in this node's data table.
    stores,
    /// Pauses, because another client was at work on the key.
    pauses,
    /// Operations that were given up.
    aborts,
    /// Repairs of operations that were given up.
    repairs,
    /// Entries that a sweep found without a reference.
    swept,
    /// Calls that code of this node answered for others: each asks for the memory's address.
    calls,
    /// Values that this node took over from nodes that leave.
    adopted,
    /// Commands of local programs, which this node executed as a client.
    commands,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
