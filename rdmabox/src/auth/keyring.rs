//! The keys that a host accepts, their rights, and the host's limits.
//!
//! # Concurrency
//! The threads of new connections query a keyring concurrently. A query must not block for long.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::key::{Key, KeyId, Secret};

/// A protection domain of a host. Its sessions can access only its exports, regardless of the
/// rkeys in their requests. [`Host::domain`](crate::Host::domain) creates a domain. Sessions
/// without a key are in the default domain. [Keys](crate::guide#keys) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Domain(pub(crate) usize);

/// The rights of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The secret that clients with the key prove.
    pub secret: Secret,
    /// The domain of their sessions.
    pub domain: Domain,
}

impl Grant {
    /// Returns the rights of a key with this secret, in this domain.
    pub fn new(secret: Secret, domain: Domain) -> Grant {
        Grant { secret, domain }
    }

    /// Returns a keyring of these keys. The sessions of all of them are in this domain.
    pub fn keyring(keys: &[Key], domain: Domain) -> Arc<dyn Keyring> {
        let grant = |key: &Key| (key.id, Grant::new(key.secret.clone(), domain));
        Arc::new(keys.iter().map(grant).collect::<HashMap<_, _>>())
    }
}

/// The keys of a host ([`Host::keys`](crate::Host::keys)). A `HashMap<KeyId, Grant>` is one;
/// [Keys](crate::guide#keys) has an example.
///
/// A program may implement it. Methods that a later version adds have a default.
pub trait Keyring: Send + Sync + 'static {
    /// Returns the rights of a key, `None` for an unknown key. Called once for each requested
    /// session.
    fn grant(&self, id: &KeyId) -> Option<Grant>;
}

impl Keyring for HashMap<KeyId, Grant> {
    fn grant(&self, id: &KeyId) -> Option<Grant> {
        self.get(id).cloned()
    }
}

/// Limits on the resources that a host spends on clients ([`Host::limits`](crate::Host::limits)).
/// [`Host::listen`](crate::Host::listen) refuses values outside of the given ranges.
///
/// ```
/// use rdmabox::{Host, Limits};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut limits = Limits::default();
/// limits.sessions = 20;
/// let host = Host::new()?.limits(limits);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of connections that belong to no session yet, at least 2. Each takes a
    /// thread and reads at most 160 bytes. With TLS it also reads a handshake, with at most 64 KiB
    /// kept. At the limit, a new connection evicts the oldest unauthenticated one of the source
    /// with the most connections. Default: 256.
    pub pending_connections: usize,
    /// Time limit for a connection to send its preamble and to prove its key, from 1 ms to a day.
    /// Default: 5 s.
    pub introduction_timeout: Duration,
    /// Maximum number of sessions per kind of device, including sessions in the making, from 1 to
    /// 10,000. An RDMA device with small completion queues has fewer. Default: 1000.
    pub sessions: usize,
    /// Maximum number of sessions per key, at least 1. Each can use up to 5 MiB of the host's
    /// memory. Default: 250.
    pub sessions_per_key: usize,
    /// Maximum number of data queue pairs of a session, from 1 to 16. A client that asks for more
    /// is refused. Default: 16.
    pub queue_pairs: usize,
    /// Number of threads that serve the calls of all sessions, per kind of device: from 1 to 64.
    /// `None`: the number of processors, from 2 to 4. Default: `None`.
    pub call_threads: Option<usize>,
    /// Minimum time for which a thread polls the call memory of a session after its last call, up
    /// to a day. It applies if the client fetches replies
    /// ([`CallsBy::Fetch`](crate::CallsBy::Fetch)). The thread takes all of a processor meanwhile.
    /// A client that calls at longer intervals has to send a message with each call, which the host
    /// answers by message. `None`: as long as polling has found calls lately, at most 0.1 ms.
    /// Default: `None`.
    pub call_poll: Option<Duration>,
}

/// A limit that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limit {name} is out of its range: {range}")]
#[non_exhaustive]
pub struct LimitsError {
    /// Name of the field of [`Limits`].
    pub name: &'static str,
    /// The allowed values.
    pub range: &'static str,
}

impl Limits {
    /// Largest value of `queue_pairs`.
    pub(crate) const MAX_QUEUE_PAIRS: usize = 16;

    /// Checks that each value is in its range.
    pub(crate) fn check(&self) -> Result<(), LimitsError> {
        let day = Duration::from_secs(24 * 60 * 60);
        let timeout = Duration::from_millis(1)..=day;
        let checks = [
            (self.pending_connections >= 2, "pending_connections", "at least 2"),
            (timeout.contains(&self.introduction_timeout), "introduction_timeout", "1 ms to a day"),
            ((1..=10_000).contains(&self.sessions), "sessions", "1 to 10,000"),
            (self.sessions_per_key >= 1, "sessions_per_key", "at least 1"),
            ((1..=Self::MAX_QUEUE_PAIRS).contains(&self.queue_pairs), "queue_pairs", "1 to 16"),
            (self.call_threads.is_none_or(|n| (1..=64).contains(&n)), "call_threads", "1 to 64"),
            (self.call_poll.is_none_or(|time| time <= day), "call_poll", "up to a day"),
        ];
        match checks.into_iter().find(|(valid, ..)| !valid) {
            Some((_, name, range)) => Err(LimitsError { name, range }),
            None => Ok(()),
        }
    }

    /// Returns the maximum number of sessions in the making. It is below `pending_connections`, so
    /// that the streams of these sessions can still be accepted.
    pub(crate) fn in_making(&self) -> usize {
        self.pending_connections.div_ceil(2)
    }

    /// Returns the maximum number of sessions in the making per key, so that one key leaves room
    /// for others.
    pub(crate) fn in_making_per_key(&self) -> usize {
        self.in_making().div_ceil(4)
    }

    /// Returns the number of threads that serve calls. One may poll requests in mapped memory while
    /// others take messages.
    pub(crate) fn call_threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(2, 4);
        self.call_threads.unwrap_or_else(processors)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pending_connections: 256,
            introduction_timeout: Duration::from_secs(5),
            sessions: 1000,
            sessions_per_key: 250,
            queue_pairs: Self::MAX_QUEUE_PAIRS,
            call_threads: None,
            call_poll: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_outside_of_their_range_are_refused_by_name() {
        let good = Limits::default();
        assert_eq!(good.check(), Ok(()));
        let day = Duration::from_secs(24 * 60 * 60);
        let bad = [
            ("pending_connections", Limits { pending_connections: 1, ..good }),
            ("introduction_timeout", Limits { introduction_timeout: Duration::ZERO, ..good }),
            ("introduction_timeout", Limits { introduction_timeout: 2 * day, ..good }),
            ("sessions", Limits { sessions: 0, ..good }),
            ("sessions", Limits { sessions: 10_001, ..good }),
            ("sessions_per_key", Limits { sessions_per_key: 0, ..good }),
            ("queue_pairs", Limits { queue_pairs: 0, ..good }),
            ("queue_pairs", Limits { queue_pairs: 17, ..good }),
            ("call_threads", Limits { call_threads: Some(0), ..good }),
            ("call_threads", Limits { call_threads: Some(65), ..good }),
            ("call_poll", Limits { call_poll: Some(2 * day), ..good }),
        ];
        for (name, limits) in bad {
            assert_eq!(limits.check().map_err(|e| e.name), Err(name), "{limits:?}");
        }
        let least =
            Limits { pending_connections: 2, sessions: 1, queue_pairs: 1, call_threads: Some(1), ..good };
        assert_eq!((least.check(), least.in_making(), least.in_making_per_key()), (Ok(()), 1, 1));
    }
}
