//! Attacks with sessions: held, and never made.

use std::{collections::VecDeque, io, thread, time::Duration};

use rdmabox::fuzzing::{Intruder, RawStream, call_frame, write_frame};
use rfs_proto::{ROOT_INO, Request, VERSION, encode_request};

use super::{Failure, Siege, Steps};

/// Data queue pairs of a session: the most that a host makes.
pub(super) const QUEUE_PAIRS: u32 = 16;
/// Calls of a session that can be under way.
pub(super) const SLOTS: u16 = 16;
/// Bytes of a long name, which makes a call as long as calls get.
const LONG: usize = 60_000;
/// Bytes of one WRITE to the memory for calls.
const PIECE: usize = 256 << 10;
/// Between two attempts when the server refuses.
const PAUSE: Duration = Duration::from_millis(2);

/// A session with all its queue pairs, of which nothing is read any more.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) session: Intruder,
    /// That of the calls, those of the data, that for fetching.
    pub(super) streams: Vec<RawStream>,
}

impl Held {
    /// Opens a session and attaches it.
    pub(super) fn open(siege: &Siege<'_>) -> io::Result<Held> {
        let mut session = Intruder::open(siege.address, siege.key, QUEUE_PAIRS)?;
        let streams = session.complete(QUEUE_PAIRS)?;
        let mut held = Held { session, streams };
        let (client, export) = ("attacker", siege.flood.exports[0].as_str());
        let attach =
            Request::Attach { version: VERSION, client, export, keeps: false, alone: false, mount: None };
        held.call(0, 0, &attach)?;
        Ok(held)
    }

    /// Sends a call, and waits for no answer.
    pub(super) fn call(&mut self, slot: u16, number: u32, request: &Request<'_>) -> io::Result<()> {
        let mut message = Vec::new();
        encode_request(request, &mut message);
        self.streams[0].send(&call_frame(slot, number, &message))
    }

    /// Makes the server use all the memory that it has for the session.
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

    /// Keeps the session's lease. Returns false if the session is over.
    pub(super) fn renew(&mut self) -> bool {
        self.session.renew().is_ok()
    }
}

/// Opens sessions, fills their memory at the server, and holds them.
pub(super) fn hold(siege: &Siege<'_>) -> Result<Steps, Failure> {
    let (mut steps, mut held) = (Steps::default(), Vec::<Held>::new());
    while siege.goes_on() {
        match steps.count(Held::open(siege)) {
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

/// Opens sessions whose queue pairs never come, as many at a time as a key can have, and more.
pub(super) fn leave_unmade(siege: &Siege<'_>) -> Steps {
    const HELD: usize = 600;
    let (mut steps, mut held) = (Steps::default(), VecDeque::new());
    while siege.goes_on() {
        match steps.count(Intruder::open(siege.address, siege.key, QUEUE_PAIRS)) {
            Some(session) => held.push_back(session),
            None => thread::sleep(PAUSE),
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
    steps
}
