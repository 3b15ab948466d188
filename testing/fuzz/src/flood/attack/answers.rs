//! The attack with calls and READs whose replies are never read.

use std::{io, thread, time::Duration};

use rdmabox::{
    RemoteAddr,
    fuzzing::{RawStream, call_frame, read_frame},
};
use rfs_proto::{ROOT_INO, Request, encode_request};

use super::{
    attack_run::{AttackRun, Steps},
    sessions::{Held, SLOTS},
};
use crate::flood::{failure::Failure, members, target::Flood};

/// Number of directory entries that make a listing as long as a reply can be.
const NAMES: usize = 400;
/// Length of one READ, in bytes.
const READ: u32 = 1 << 20;
/// Number of READs in a burst, and number of bursts in one round.
const BURST: u32 = 256;
const BURSTS: u32 = 16;

/// Sends frames to a stream until its socket is full.
struct Pump {
    frame: Vec<u8>,
    sent: usize,
    number: u32,
}

impl Pump {
    fn new() -> Pump {
        Pump { frame: Vec::new(), sent: 0, number: 1 }
    }

    /// Sends up to `count` frames. Returns the number of frames that were sent in full, or `None`
    /// if the stream has ended.
    fn push(&mut self, stream: &RawStream, count: u32, make: impl Fn(u32) -> Vec<u8>) -> Option<u64> {
        let mut whole = 0;
        for _ in 0..count {
            if self.sent == self.frame.len() {
                (self.frame, self.sent) = (make(self.number), 0);
                self.number += 1;
            }
            match stream.send_now(&self.frame[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
            whole += u64::from(self.sent == self.frame.len());
        }
        Some(whole)
    }
}

/// Creates a directory with a long listing. Returns the address of the export's arena.
fn prepare(flood: &Flood) -> Result<RemoteAddr, Failure> {
    let (session, attached) = members::connect_attached(flood)?;
    let (mut message, mut reply) = (Vec::new(), Vec::new());
    for number in 0..NAMES {
        let name = format!("{number:0>200}");
        let (parent, name, perm) = (ROOT_INO, name.as_bytes(), 0o700);
        let mkdir = Request::Mkdir { parent, name, perm, umask: 0, uid: 0, gid: 0 };
        encode_request(&mkdir, &mut message);
        session.call(&message, &mut reply).map_err(|e| Failure::Member(e.to_string()))?;
    }
    Ok(RemoteAddr { addr: attached.arena.addr, rkey: attached.arena.rkey })
}

/// Sends calls and READs on all sessions that the server accepts, and reads nothing.
pub(super) fn leave_unread(run: &AttackRun<'_>) -> Result<Steps, Failure> {
    let arena = prepare(run.flood)?;
    let mut list = Vec::new();
    encode_request(&Request::ReadDir { ino: ROOT_INO, cookie: 0, max_entries: u32::MAX }, &mut list);
    let (mut steps, mut held) = (Steps::default(), Vec::<(Held, Vec<Pump>)>::new());
    while run.is_running() {
        if let Ok(session) = Held::open(run) {
            let pumps = session.streams.iter().map(|_| Pump::new()).collect();
            held.push((session, pumps));
        } else {
            thread::sleep(Duration::from_millis(2));
        }
        held.retain_mut(|(session, pumps)| {
            let calls = |number| call_frame((number % u32::from(SLOTS)) as u16, number, &list);
            let reads = |number: u32| {
                let first = (number - 1) * BURST;
                let frames: Vec<_> =
                    (first..first + BURST).map(|number| read_frame(number, arena, READ)).collect();
                frames.concat()
            };
            let sent =
                pumps.iter_mut().zip(&session.streams).enumerate().map(
                    |(index, (pump, stream))| match index {
                        0 => pump.push(stream, SLOTS.into(), calls),
                        _ => pump.push(stream, BURSTS, reads),
                    },
                );
            let sent: Option<u64> = sent.sum();
            match sent {
                Some(sent) => steps.taken += sent,
                None => steps.refused += 1,
            }
            sent.is_some() && session.renew()
        });
    }
    Ok(steps)
}
