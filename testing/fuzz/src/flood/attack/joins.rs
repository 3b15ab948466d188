//! The attack with streams that join sessions and never complete their handshakes.

use std::{collections::VecDeque, thread, time::Duration};

use super::{
    attack_run::{AttackRun, Steps},
    sessions::{Held, QUEUE_PAIRS},
};
use crate::flood::failure::Failure;

/// Number of sessions. Two streams can join each queue pair at a time, so these sessions can hold
/// more streams than the server accepts as pending connections.
const SESSIONS: usize = 10;
/// Number of streams that are held at a time.
const HELD: usize = 600;

/// Joins streams until the attack is over. Holds the newest `HELD` streams.
pub(super) fn stall(run: &AttackRun<'_>) -> Result<Steps, Failure> {
    let mut sessions = Vec::new();
    while sessions.len() < SESSIONS {
        let session = Held::open(run).map_err(|e| Failure::Member(format!("session of an attack: {e}")))?;
        sessions.push(session);
    }
    let (mut steps, mut held) = (Steps::default(), VecDeque::new());
    'attack: loop {
        for (session, index) in sessions.iter().flat_map(|held| (1..=QUEUE_PAIRS).map(move |i| (held, i))) {
            if !run.is_running() {
                break 'attack;
            }
            match steps.count(session.session.join(index)) {
                Some(stream) => held.push_back(stream),
                None => thread::sleep(Duration::from_millis(1)),
            }
            if held.len() > HELD {
                held.pop_front();
            }
        }
        sessions.iter_mut().for_each(|session| {
            session.renew();
        });
    }
    Ok(steps)
}
