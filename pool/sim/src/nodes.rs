//! Sessions, queue pairs and threads of a node. No I/O, no locks, no clock.
//!
//! A client has a session to each store that it reaches. The numbers for each session are constants
//! of the programs, which options give.

use clap::Args;

/// What a session needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct PerSession {
    /// Data queue pairs of a session, at each of its ends: --queue-pairs of rfs-fuse
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub queue_pairs: u64,
    /// Threads of a client for each session. Sessions share their threads
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub client_threads: u64,
    /// Threads of a store for each session: rdmabox-session
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub store_threads: u64,
}

/// The node of a kind that has the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most {
    /// Sessions.
    pub sessions: u64,
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Threads for sessions.
    pub threads: u64,
}

/// Returns the most of a client and of a store, given the stores that each client reaches.
pub fn most(reached: &[Vec<u16>], stores: u16, each: PerSession) -> (Most, Most) {
    let mut at_store = vec![0_u64; usize::from(stores)];
    reached.iter().flatten().for_each(|store| at_store[usize::from(*store)] += 1);
    let of = |sessions: u64, threads: u64| Most {
        sessions,
        queue_pairs: sessions * each.queue_pairs,
        threads: sessions * threads,
    };
    let client = reached.iter().map(|stores| stores.len() as u64).max().unwrap_or(0);
    let store = at_store.into_iter().max().unwrap_or(0);
    (of(client, each.client_threads), of(store, each.store_threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a store that is counted once for each client, and not for each session.
    #[test]
    fn the_busiest_nodes_are_counted() {
        let each = PerSession { queue_pairs: 2, client_threads: 3, store_threads: 1 };
        let (client, store) = most(&[vec![0, 1, 2], vec![0]], 3, each);
        assert_eq!(client, Most { sessions: 3, queue_pairs: 6, threads: 9 });
        assert_eq!(store, Most { sessions: 2, queue_pairs: 4, threads: 2 });
        assert_eq!(most(&[], 1, each), Default::default());
    }
}
