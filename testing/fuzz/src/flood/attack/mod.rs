//! Attacks by a peer that has a key.
//!
//! An attack takes every resource that the server gives it, and releases none. During the attack,
//! clients with another key must be served, and the server's memory must stay below a limit. After
//! the attack the server must release all resources of the attack.
//!
//! # Concurrency
//! One thread runs the attack, and one thread runs the clients with the other key.

mod answers;
mod dead_mount;
mod descriptors;
mod joins;
mod sessions;

use std::{
    fmt, fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rdmabox::{Address, Key, ProviderKind, SessionOptions};
use rfs_client::AttachOptions;
use rfs_proto::ROOT_INO;

use super::{Failure, Flood, GRACE};
use crate::{drive::MOST_GROWTH, usage::Usage};

/// Time between two clients with the other key.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// An attack by one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Opens sessions with all queue pairs until the server refuses more, makes the server use all
    /// memory of each session, and holds them.
    SessionsHeld,
    /// Opens sessions and joins none of their queue pairs.
    SessionsUnmade,
    /// Joins streams to its sessions, and never completes their handshakes.
    JoinsStalled,
    /// Sends calls with long replies, and READs, and reads no reply.
    AnswersUnread,
    /// Sends descriptors of a file in a hung FUSE mount to a Unix socket.
    Descriptors,
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attack::SessionsHeld => "sessions-held",
            Attack::SessionsUnmade => "sessions-unmade",
            Attack::JoinsStalled => "joins-stalled",
            Attack::AnswersUnread => "answers-unread",
            Attack::Descriptors => "descriptors",
        })
    }
}

/// The attacks, in the order in which `rfs-flood` runs them.
pub const ATTACKS: [Attack; 5] = [
    Attack::SessionsHeld,
    Attack::SessionsUnmade,
    Attack::JoinsStalled,
    Attack::AnswersUnread,
    Attack::Descriptors,
];

/// The result of an attack that the server withstood.
#[derive(Clone, Copy, Debug)]
pub struct Withstood {
    /// The attack.
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

/// The target and the state of a running attack.
struct AttackRun<'a> {
    flood: &'a Flood,
    address: &'a Address,
    key: Option<&'a Key>,
    begun: AtomicBool,
    over: &'a AtomicBool,
}

/// Number of steps that the server accepted and refused.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    taken: u64,
    refused: u64,
}

impl Steps {
    fn count<T, E>(&mut self, outcome: Result<T, E>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.taken += 1;
                Some(value)
            }
            Err(_) => {
                self.refused += 1;
                None
            }
        }
    }
}

impl AttackRun<'_> {
    /// Returns false when the attack is over. The time of the attack begins with the first call.
    fn is_running(&self) -> bool {
        self.begun.store(true, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed)
    }

    fn run(&self, attack: Attack) -> Result<Steps, Failure> {
        match attack {
            Attack::SessionsHeld => sessions::hold(self),
            Attack::SessionsUnmade => Ok(sessions::leave_unmade(self)),
            Attack::JoinsStalled => joins::stall(self),
            Attack::AnswersUnread => answers::leave_unread(self),
            Attack::Descriptors => descriptors::send(self),
        }
    }
}

impl Flood {
    /// Attacks the server for `time`.
    ///
    /// # Errors
    /// Returns the first failure.
    pub fn attack(&self, attack: Attack, time: Duration) -> Result<Withstood, Failure> {
        // The first clients make the server allocate its long-lived resources.
        super::members::warm_up(self)?;
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
            let attacker = scope.spawn(|| attack_run.run(attack));
            let probes = self.probe_for(time, &attack_run.begun);
            over.store(true, Ordering::Relaxed);
            (attacker.join().expect("no panic"), probes)
        });
        let (clients, slowest) = probes.map_err(|e| e.during(attack))?;
        let Steps { taken, refused } = steps?;
        let peak = Usage::peak(&self.watched())?;
        if peak > before.memory + MOST_GROWTH {
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
        let options = SessionOptions {
            provider: Some(ProviderKind::Tcp),
            queue_pairs: 2,
            key: self.keys[1].clone(),
            ..SessionOptions::default()
        };
        let attach = AttachOptions { export: self.exports[1].clone(), ..AttachOptions::default() };
        let client = rfs_client::Client::connect(&self.address, &options, &attach)
            .map_err(|e| Failure::Good(format!("after {:?}: {e}", begun.elapsed())))?;
        client.getattr(ROOT_INO).map_err(|e| Failure::Good(format!("getattr: {e}")))?;
        Ok(begun.elapsed())
    }
}
