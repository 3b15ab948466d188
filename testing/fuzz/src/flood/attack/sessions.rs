//! The attacks with sessions that are held, and with sessions whose queue pairs never join.

use std::{collections::VecDeque, io, thread, time::Duration};

use rdmabox::fuzzing::{Intruder, RawStream, call_frame, write_frame};
use rfs_proto::{ROOT_INO, Request, VERSION, encode_request};

use super::attack_run::{AttackRun, Steps};
use crate::flood::failure::Failure;

/// Number of data queue pairs of a session: the maximum that a host accepts.
pub(super) const QUEUE_PAIRS: u32 = 16;
/// Number of calls of a session that can be outstanding.
pub(super) const SLOTS: u16 = 16;
/// Length of a name that makes a call nearly as long as a message can be, in bytes.
const LONG: usize = 60_000;
/// Length of one WRITE to the memory for calls, in bytes.
const PIECE: usize = 256 << 10;
/// Time between two attempts while the server refuses sessions.
const PAUSE: Duration = Duration::from_millis(2);

/// A session with all its queue pairs. Nothing reads from its streams after the handshakes.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) session: Intruder,
    /// The streams of the queue pairs: for calls, then for data, then for remote fetching.
    pub(super) streams: Vec<RawStream>,
}

impl Held {
    /// Opens a session and attaches it.
    pub(super) fn open(run: &AttackRun<'_>) -> io::Result<Held> {
        let mut session = Intruder::open(run.address, run.key, QUEUE_PAIRS)?;
        let streams = session.complete(QUEUE_PAIRS)?;
        let mut held = Held { session, streams };
        let (client, export) = ("attacker", run.flood.exports[0].as_str());
        let attach =
            Request::Attach { version: VERSION, client, export, keeps: false, alone: false, mount: None };
        held.call(0, 0, &attach)?;
        Ok(held)
    }

    /// Sends a call without waiting for its reply.
    pub(super) fn call(&mut self, slot: u16, number: u32, request: &Request<'_>) -> io::Result<()> {
        let mut message = Vec::new();
        encode_request(request, &mut message);
        self.streams[0].send(&call_frame(slot, number, &message))
    }

    /// Makes the server use all memory that it reserves for the session.
    fn fill(&mut self) -> io::Result<()> {
        if let (Some((memory, bytes)), Some(stream)) = (self.session.call_memory(), self.streams.last_mut()) {
            let piece = vec![0xa5; PIECE];
            for (number, offset) in (0..bytes).step_by(PIECE).enumerate() {
                let to = rdmabox::RemoteAddr { addr: memory.addr + offset as u64, ..memory };
                stream.send(&write_frame(number as u32, to, &piece[..PIECE.min(bytes - offset)]))?;
            }
        }
        let name = vec![b'a'; LONG];
        (1..SLOTS).try_for_each(|slot| {
            self.call(slot, slot.into(), &Request::Lookup { parent: ROOT_INO, name: &name })
        })
    }

    /// Renews the session's lease. Returns false if the session has ended.
    pub(super) fn renew(&mut self) -> bool {
        self.session.renew().is_ok()
    }
}

/// Opens sessions, makes the server use all memory of each, and holds them.
pub(super) fn hold(run: &AttackRun<'_>) -> Result<Steps, Failure> {
    let (mut steps, mut held) = (Steps::default(), Vec::<Held>::new());
    while run.is_running() {
        match steps.count(Held::open(run)) {
            Some(mut session) => {
                // The server may end a session at any time.
                let _ = session.fill();
                held.push(session);
            }
            None => {
                held.retain_mut(Held::renew);
                thread::sleep(PAUSE);
            }
        }
    }
    match held.is_empty() {
        true => Err(Failure::Member("no session of the attack was made".into())),
        false => Ok(steps),
    }
}

/// Opens sessions whose queue pairs never join. Holds more of them than a key can have.
pub(super) fn leave_unmade(run: &AttackRun<'_>) -> Steps {
    const HELD: usize = 600;
    let (mut steps, mut held) = (Steps::default(), VecDeque::new());
    while run.is_running() {
        match steps.count(Intruder::open(run.address, run.key, QUEUE_PAIRS)) {
            Some(session) => held.push_back(session),
            None => thread::sleep(PAUSE),
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
    steps
}
