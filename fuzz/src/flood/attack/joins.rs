//! The attack with streams that join sessions and stop before their greeting.

use std::{collections::VecDeque, thread, time::Duration};

use super::{
    Failure, Siege, Steps,
    sessions::{Held, QUEUE_PAIRS},
};

/// Sessions of the attack: two streams at a time can join each place, so these can hold more than all places for strangers.
const SESSIONS: usize = 10;
/// Streams that are held at a time.
const HELD: usize = 600;

/// Has streams join until the attack is over. A stream of the attack ends only when the server ends it.
pub(super) fn stall(siege: &Siege<'_>) -> Result<Steps, Failure> {
    let mut sessions = Vec::new();
    while sessions.len() < SESSIONS {
        let session = Held::open(siege).map_err(|e| Failure::Member(format!("session of an attack: {e}")))?;
        sessions.push(session);
    }
    let (mut steps, mut held) = (Steps::default(), VecDeque::new());
    'attack: loop {
        for (session, index) in sessions.iter().flat_map(|held| (1..=QUEUE_PAIRS).map(move |i| (held, i))) {
            if !siege.goes_on() {
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
