//! The server that is flooded: where it is, how much it gets, and its resource usage.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, Key};

use super::failure::Failure;
use crate::{driver::MAX_GROWTH, usage::Usage};

/// Time for the server to release the resources of a flood.
pub(super) const GRACE: Duration = Duration::from_secs(40);

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

impl Flood {
    /// Returns the name of the server's process in `/proc`.
    pub(super) fn watched(&self) -> String {
        self.process.map_or_else(|| "self".into(), |process| process.to_string())
    }

    fn usage(&self) -> io::Result<Usage> {
        Usage::of(&self.watched())
    }

    /// Waits up to `GRACE` until usage is stable or, if `before` is given, no higher than `before`.
    /// Returns the usage.
    ///
    /// # Errors
    /// Returns `Left` if usage is still higher than `before` after `GRACE`.
    pub(super) fn settled(&self, before: Option<Usage>) -> Result<Usage, Failure> {
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
                        && now.memory <= before.memory + MAX_GROWTH
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
