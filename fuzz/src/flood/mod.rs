//! Bad input on the wire, for a server that lives: strangers that say anything, members that send any message, and beside them a
//! client that is served as if nothing were.
//!
//! Strangers come to the server's TCP port. Members are sessions that have attached to one file system; what they send are messages
//! with mutations. About half of those that are sent can be decoded, so that they get to the file system. One that cannot be ends its session, and the
//! member comes again. The good client has another file system of the same server, and checks every byte.
//!
//! Threading: a thread for each kind, and for each member.

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

/// Time for what is left of a flood to go.
const GRACE: Duration = Duration::from_secs(40);

/// What to do.
#[derive(Clone, Debug)]
pub struct Flood {
    /// The server's TCP port.
    pub address: Address,
    /// The server's Unix socket, if it has one.
    pub unix: Option<Address>,
    /// Its process; this one if it is `None`.
    pub process: Option<u32>,
    /// The file system of the members, and that of the good client.
    pub exports: [String; 2],
    /// What opens them, if the server takes nobody without a key.
    pub keys: [Option<Key>; 2],
    /// Connections of strangers.
    pub connections: u64,
    /// Messages of members.
    pub messages: u64,
    /// Makes other ones. Below 2^48.
    pub seed: u64,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the strangers did.
    pub strangers: Strangers,
    /// What the members did.
    pub members: Members,
    /// What the good client did meanwhile.
    pub good: Good,
    /// What the server's process had taken before and after.
    pub usage: [Usage; 2],
    /// The most memory that it had in use at a time until then.
    pub peak: u64,
    /// In this time.
    pub took: Duration,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The good client was not served.
    #[error("the good client: {0}")]
    Good(String),
    /// Nobody can connect any more.
    #[error("{who}: {source}")]
    Connect {
        /// Who it was.
        who: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A member was not answered as it should be.
    #[error("a member: {0}")]
    Member(String),
    /// The server keeps what it should give back.
    #[error("the server's process had {before:?} before and has {after:?}")]
    Left {
        /// Before the flood.
        before: Usage,
        /// Some time after it.
        after: Usage,
    },
    /// The server takes more memory meanwhile than it may.
    #[error("the server's process had {before} bytes of memory before and {peak} meanwhile")]
    Grown {
        /// Before the flood.
        before: u64,
        /// The most of it, until its end.
        peak: u64,
    },
    /// The server does not withstand an attack.
    #[error("during the attack {attack}: {failure}")]
    Attack {
        /// The attack.
        attack: Attack,
        /// What went wrong.
        failure: Box<Failure>,
    },
    /// The server's process is gone, or cannot be looked at.
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

    /// Does it all.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn run(&self) -> Result<Report, Failure> {
        let begun = Instant::now();
        // What a server makes once is there then.
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
        // The kernel keeps count of it, so that no moment is missed.
        let peak = Usage::peak(&self.watched())?;
        if peak > before.memory + MOST_GROWTH {
            return Err(Failure::Grown { before: before.memory, peak });
        }
        Ok(Report { strangers, members, good, usage: [before, after], peak, took: begun.elapsed() })
    }

    /// What is taken when it does not change any more, or is no more than before.
    fn settled(&self, before: Option<Usage>) -> Result<Usage, Failure> {
        let give_up = Instant::now() + GRACE;
        let mut last = self.usage()?;
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = self.usage()?;
            let calm = match before {
                None => (now.descriptors, now.threads) == (last.descriptors, last.threads),
                // The good client has gone meanwhile.
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
