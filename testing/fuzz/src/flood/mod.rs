//! Floods a running server with bad input, and checks that it still serves a good client.
//!
//! Strangers are connections to the server's TCP port that never authenticate. They send mutated
//! handshakes. Members are sessions that have attached to one export. They send mutated messages.
//! About half of these messages decode and reach the file system. A message that does not decode
//! ends its session, and the member connects again. The good client uses another export of the
//! same server and checks every byte.
//!
//! # Concurrency
//! One thread makes the strangers, one thread runs the good client, and each member has a thread.

mod attack;
mod good;
mod members;
mod strangers;

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, Key};

use crate::{drive::MOST_GROWTH, usage::Usage};
pub use attack::{ATTACKS, Attack, Withstood};
pub use good::Good;
pub use members::{AT_A_TIME, Members};
pub use strangers::Strangers;

/// Time for the server to release the resources of a flood.
const GRACE: Duration = Duration::from_secs(40);

/// Target and extent of a flood.
#[derive(Clone, Debug)]
pub struct Flood {
    /// The server's TCP port.
    pub address: Address,
    /// The server's Unix socket, if it has one.
    pub unix: Option<Address>,
    /// The server's process ID. `None` is this process.
    pub process: Option<u32>,
    /// The export of the members, and the export of the good client.
    pub exports: [String; 2],
    /// The keys of the two exports. `None` where the server needs no key.
    pub keys: [Option<Key>; 2],
    /// Number of connections of strangers.
    pub connections: u64,
    /// Number of messages of members.
    pub messages: u64,
    /// Seed of the mutations, below 2^48.
    pub seed: u64,
}

/// The result of a flood that the server withstood.
#[derive(Clone, Debug)]
pub struct Report {
    /// Counts of the strangers.
    pub strangers: Strangers,
    /// Counts of the members.
    pub members: Members,
    /// Counts of the good client.
    pub good: Good,
    /// Resource usage of the server's process before and after the flood.
    pub usage: [Usage; 2],
    /// Peak memory of the server's process since its start, in bytes.
    pub peak: u64,
    /// Duration of the flood.
    pub took: Duration,
}

/// The first failure of a flood or of an attack.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An operation of the good client failed, or read wrong data.
    #[error("the good client: {0}")]
    Good(String),
    /// A connection could not be made.
    #[error("cannot connect {client}: {source}")]
    Connect {
        /// The kind of client.
        client: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The server gave a member no reply or a wrong reply.
    #[error("a member: {0}")]
    Member(String),
    /// The server did not release resources within `GRACE`.
    #[error("the server's process used {before:?} before the flood and uses {after:?} now")]
    Left {
        /// Usage before the flood.
        before: Usage,
        /// Usage after the flood.
        after: Usage,
    },
    /// The server used more memory during the flood than the limit.
    #[error("the server's process used {before} bytes of memory before the flood and {peak} at its peak")]
    Grown {
        /// Memory before the flood, in bytes.
        before: u64,
        /// Peak memory during the flood, in bytes.
        peak: u64,
    },
    /// The server did not withstand an attack.
    #[error("during the attack {attack}: {failure}")]
    Attack {
        /// The attack.
        attack: Attack,
        /// The failure.
        failure: Box<Failure>,
    },
    /// The usage of the server's process cannot be read.
    #[error("the server's process: {0}")]
    Gone(#[from] io::Error),
}

impl Failure {
    fn during(self, attack: Attack) -> Failure {
        Failure::Attack { attack, failure: Box::new(self) }
    }
}

impl Flood {
    fn watched(&self) -> String {
        self.process.map_or_else(|| "self".into(), |process| process.to_string())
    }

    fn usage(&self) -> io::Result<Usage> {
        Usage::of(&self.watched())
    }

    /// Floods the server, and checks the good client and the resource usage of the server.
    ///
    /// # Errors
    /// Returns the first failure.
    pub fn run(&self) -> Result<Report, Failure> {
        let begun = Instant::now();
        // The first operations make the server allocate its long-lived resources.
        let mut good = good::Client::connect(self)?;
        (0..20).try_for_each(|_| good.round())?;
        members::warm_up(self)?;
        let before = self.settled(None)?;
        let over = AtomicBool::new(false);
        let (strangers, members, good) = thread::scope(|scope| {
            let strangers = scope.spawn(|| strangers::run(self));
            let members = scope.spawn(|| members::run(self));
            let good = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    good.round()?;
                }
                good.finish()
            });
            let ended = (strangers.join(), members.join());
            over.store(true, Ordering::Relaxed);
            (ended.0, ended.1, good.join())
        });
        let unpanicked = "no panic";
        let (strangers, members) = (strangers.expect(unpanicked)?, members.expect(unpanicked)?);
        let good = good.expect(unpanicked)?;
        let after = self.settled(Some(before))?;
        // The kernel records the peak, so no sample can miss it.
        let peak = Usage::peak(&self.watched())?;
        if peak > before.memory + MOST_GROWTH {
            return Err(Failure::Grown { before: before.memory, peak });
        }
        Ok(Report { strangers, members, good, usage: [before, after], peak, took: begun.elapsed() })
    }

    /// Waits up to `GRACE` until usage is stable or, if `before` is given, no higher than `before`.
    /// Returns the usage.
    ///
    /// # Errors
    /// Returns `Left` if usage is still higher than `before` after `GRACE`.
    fn settled(&self, before: Option<Usage>) -> Result<Usage, Failure> {
        let give_up = Instant::now() + GRACE;
        let mut last = self.usage()?;
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = self.usage()?;
            let calm = match before {
                None => (now.descriptors, now.threads) == (last.descriptors, last.threads),
                // The good client has disconnected since `before`, so usage may be lower.
                Some(before) => {
                    now.descriptors <= before.descriptors
                        && now.threads <= before.threads
                        && now.memory <= before.memory + MOST_GROWTH
                }
            };
            match before {
                _ if calm => return Ok(now),
                Some(before) if Instant::now() >= give_up => {
                    return Err(Failure::Left { before, after: now });
                }
                _ if Instant::now() >= give_up => return Ok(now),
                _ => last = now,
            }
        }
    }
}
