//! Sessions, queue pairs and threads of a node. No I/O, no locks, no clock.
//!
//! A client has a session to each store that it reaches. [`pool::queue_pairs`] has the queue pairs
//! of a session, and the client needs up to one thread for each of them. The other numbers are
//! constants of the programs, which options give.

use clap::Args;
use pool::queue_pairs;

/// The needs of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct PerSession {
    /// Data queue pairs of a session, at each of its ends: --queue-pairs of rfs-fuse
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub queue_pairs: u16,
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
    /// Threads for sessions, at most.
    pub threads: u64,
}

/// Returns the most of a client and of a store, given the stores that each client reaches.
pub fn most(reached: &[Vec<u16>], stores: u16, each: PerSession) -> (Most, Most) {
    let pairs = |number: usize| queue_pairs(each.queue_pairs.into(), number) as u64;
    let (mut sessions, mut at_store) = (vec![0; usize::from(stores)], vec![0; usize::from(stores)]);
    let mut client = Most::default();
    for stores in reached {
        let mut own = 0;
        // The first is the session to the server. It counts for no store.
        for (n, store) in stores.iter().enumerate() {
            own += pairs(n.max(1));
            sessions[usize::from(*store)] += 1;
            at_store[usize::from(*store)] += pairs(n.max(1));
        }
        if own >= client.queue_pairs {
            // A thread waits for each queue pair that has started requests.
            client = Most { sessions: stores.len() as u64, queue_pairs: own, threads: own };
        }
    }
    let most = sessions.into_iter().zip(at_store).max_by_key(|(_, pairs)| *pairs).unwrap_or_default();
    let (sessions, pairs) = most;
    (client, Most { sessions, queue_pairs: pairs, threads: sessions * each.store_threads })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a store that is counted once for each client, and not for each session.
    #[test]
    fn the_busiest_nodes_are_counted() {
        let each = PerSession { queue_pairs: 2, store_threads: 3 };
        let (client, store) = most(&[vec![0, 1, 2], vec![0]], 3, each);
        assert_eq!(client, Most { sessions: 3, queue_pairs: 6, threads: 6 });
        assert_eq!(store, Most { sessions: 2, queue_pairs: 4, threads: 6 });
        assert_eq!(most(&[], 1, each), Default::default());
    }
}
