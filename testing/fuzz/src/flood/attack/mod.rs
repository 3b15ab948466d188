//! Attacks by a peer that has a key.
//!
//! An attack takes every resource that the server gives it, and releases none. During the attack,
//! clients with another key must be served, and the server's memory must stay below a limit. After
//! the attack the server must release all resources of the attack.
//!
//! # Concurrency
//! One thread runs the attack, and one thread runs the clients with the other key.

mod answers;
mod attack_run;
mod dead_mount;
mod descriptors;
mod joins;
mod kind;
mod sessions;

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rdmabox::{ProviderKind, Session};
use rfs_client::AttachOptions;
use rfs_proto::ROOT_INO;

use super::{
    failure::Failure,
    members,
    target::{Flood, GRACE},
};
use crate::{driver::MAX_GROWTH, usage::Usage};
use attack_run::{AttackRun, Steps};
pub use kind::{ATTACKS, Attack};

/// Time between two clients with the other key.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// The result of an attack that the server withstood.
#[derive(Clone, Copy, Debug)]
pub struct Withstood {
    /// Attack that was made.
    pub attack: Attack,
    /// Number of steps that the server accepted: sessions, streams, calls or messages with
    /// descriptors.
    pub taken: u64,
    /// Number of steps that the server refused.
    pub refused: u64,
    /// Number of clients with the other key. All of them were served.
    pub clients: u64,
    /// Longest time that such a client needed to connect, attach and make a call.
    pub slowest: Duration,
    /// Memory of the server before the attack and at its peak, in bytes.
    pub memory: [u64; 2],
}

fn carry_out(attack: Attack, run: &AttackRun<'_>) -> Result<Steps, Failure> {
    match attack {
        Attack::SessionsHeld => sessions::hold(run),
        Attack::SessionsUnmade => Ok(sessions::leave_unmade(run)),
        Attack::JoinsStalled => joins::stall(run),
        Attack::AnswersUnread => answers::leave_unread(run),
        Attack::Descriptors => descriptors::send(run),
    }
}

impl Flood {
    /// Attacks the server for `time`.
    ///
    /// # Errors
    /// Returns the first failure.
    pub fn attack(&self, attack: Attack, time: Duration) -> Result<Withstood, Failure> {
        // The first clients make the server allocate its long-lived resources.
        members::warm_up(self)?;
        (0..4).try_for_each(|_| self.probe().map(drop))?;
        let before = self.settled(None)?;
        // Writing 5 resets the peak that the kernel records.
        fs::write(format!("/proc/{}/clear_refs", self.watched()), "5")?;
        let over = AtomicBool::new(false);
        let attack_run = AttackRun {
            flood: self,
            address: &self.address,
            key: self.keys[0].as_ref(),
            begun: AtomicBool::new(false),
            over: &over,
        };
        let (steps, probes) = thread::scope(|scope| {
            let attacker = scope.spawn(|| carry_out(attack, &attack_run));
            let probes = self.probe_for(time, &attack_run.begun);
            over.store(true, Ordering::Relaxed);
            (attacker.join().expect("no panic"), probes)
        });
        let (clients, slowest) = probes.map_err(|e| e.during(attack))?;
        let Steps { taken, refused } = steps?;
        let peak = Usage::peak(&self.watched())?;
        if peak > before.memory + MAX_GROWTH {
            return Err(Failure::Grown { before: before.memory, peak }.during(attack));
        }
        self.settled(Some(before)).map_err(|e| e.during(attack))?;
        Ok(Withstood { attack, taken, refused, clients, slowest, memory: [before.memory, peak] })
    }

    /// Runs clients with the other key, one after another, until the attack has run for `time`.
    /// Returns the number of clients and the longest time of a client.
    fn probe_for(&self, time: Duration, is_begun: &AtomicBool) -> Result<(u64, Duration), Failure> {
        let (first, mut begun) = (Instant::now(), None::<Instant>);
        let (mut clients, mut slowest) = (0, Duration::ZERO);
        while begun.is_none_or(|begun| begun.elapsed() < time) && first.elapsed() < time + GRACE {
            if is_begun.load(Ordering::Relaxed) {
                begun.get_or_insert_with(Instant::now);
            }
            slowest = slowest.max(self.probe()?);
            clients += 1;
            thread::sleep(PROBE_EVERY);
        }
        Ok((clients, slowest))
    }

    /// Connects a client with the other key, attaches it and makes a call. Returns the time taken.
    fn probe(&self) -> Result<Duration, Failure> {
        let begun = Instant::now();
        let options = Session::builder()
            .provider(ProviderKind::Tcp)
            .queue_pairs(2)
            .key(self.keys[1].clone())
            .into_options();
        let attach = AttachOptions { export: self.exports[1].clone(), ..AttachOptions::default() };
        let client = rfs_client::Client::connect(&self.address, &options, &attach)
            .map_err(|e| Failure::Good(format!("after {:?}: {e}", begun.elapsed())))?;
        client.attributes.getattr(ROOT_INO).map_err(|e| Failure::Good(format!("getattr: {e}")))?;
        Ok(begun.elapsed())
    }
}
