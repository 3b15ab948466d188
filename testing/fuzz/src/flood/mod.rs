//! Floods a running server with bad input, and checks that it still serves a good client.
//!
//! Unauthenticated peers are connections to the server's TCP port that never authenticate. They
//! send mutated handshakes. Members are sessions that have attached to one export. They send
//! mutated messages. About half of these messages decode and reach the file system. A message that
//! does not decode ends its session, and the member connects again. The good client uses another
//! export of the same server and checks every byte.
//!
//! # Concurrency
//! One thread makes the strangers, one thread runs the good client, and each member has a thread.

mod attack;
mod failure;
mod good;
mod members;
mod target;
mod unauthenticated_peers;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{driver::MAX_GROWTH, usage::Usage};
pub use attack::{ATTACKS, Attack, Withstood};
pub use failure::Failure;
pub use good::Good;
pub use members::{AT_A_TIME, Members};
pub use target::Flood;
pub use unauthenticated_peers::UnauthenticatedPeers;

/// Pause of the good client between two rounds. Without it, the client takes a third of the
/// processors' time from the flood.
const PAUSE: Duration = Duration::from_millis(1);

/// The result of a flood that the server withstood.
#[derive(Clone, Debug)]
pub struct Report {
    /// Counts of the strangers.
    pub strangers: UnauthenticatedPeers,
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

impl Flood {
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
            let strangers = scope.spawn(|| unauthenticated_peers::run(self));
            let members = scope.spawn(|| members::run(self));
            let good = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    good.round()?;
                    thread::sleep(PAUSE);
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
        if peak > before.memory + MAX_GROWTH {
            return Err(Failure::Grown { before: before.memory, peak });
        }
        Ok(Report { strangers, members, good, usage: [before, after], peak, took: begun.elapsed() })
    }
}
