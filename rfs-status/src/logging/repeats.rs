//! Leaves out repetitions of a message. No I/O, no locks, no clock.
//!
//! The first message of a kind is written. Further ones within a period are counted, and the next
//! one after it is written with the count. The period doubles while a message repeats.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// First period in which repetitions are left out.
const FIRST_PERIOD: Duration = Duration::from_secs(30);
/// Longest period.
const MAX_PERIOD: Duration = Duration::from_secs(3600);
/// Kinds of messages that are remembered.
const MAX_KINDS: usize = 256;

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The message.
    Write,
    /// The message, after this many that were left out, in the seconds since the last one.
    WriteWith {
        /// Messages that were left out.
        omitted: u64,
        /// Seconds since the last message that was written.
        seconds: u64,
    },
    /// Nothing.
    Omit,
}

#[derive(Debug)]
struct Kind {
    written: Instant,
    last: Instant,
    period: Duration,
    omitted: u64,
}

/// The messages of a program.
#[derive(Debug, Default)]
pub(super) struct Repeats(HashMap<String, Kind>);

/// Returns what messages of one kind have in common: all but the port of a client at the front.
/// Each attempt of a client to connect has another port.
fn kind_of(text: &str) -> String {
    let Some((peer, rest)) = text.split_once(": ") else { return text.to_owned() };
    match peer.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => format!("{host}: {rest}"),
        _ => text.to_owned(),
    }
}

impl Repeats {
    /// Returns whether to write a message.
    pub(super) fn judge(&mut self, text: &str, now: Instant) -> Verdict {
        let name = kind_of(text);
        let Some(kind) = self.0.get_mut(&name) else {
            self.make_room(now);
            self.0.insert(name, Kind { written: now, last: now, period: FIRST_PERIOD, omitted: 0 });
            return Verdict::Write;
        };
        let since = now.duration_since(kind.written);
        let quiet = now.duration_since(kind.last);
        kind.last = now;
        if since < kind.period {
            kind.omitted += 1;
            return Verdict::Omit;
        }
        kind.period = if quiet < kind.period { (kind.period * 2).min(MAX_PERIOD) } else { FIRST_PERIOD };
        kind.written = now;
        match std::mem::take(&mut kind.omitted) {
            0 => Verdict::Write,
            omitted => Verdict::WriteWith { omitted, seconds: since.as_secs() },
        }
    }

    /// Forgets kinds that repeat no more, or the oldest one.
    fn make_room(&mut self, now: Instant) {
        if self.0.len() < MAX_KINDS {
            return;
        }
        self.0.retain(|_, kind| now.duration_since(kind.last) < kind.period);
        if self.0.len() < MAX_KINDS {
            return;
        }
        let oldest = self.0.iter().min_by_key(|(_, kind)| kind.last).map(|(name, _)| name.clone());
        oldest.map(|name| self.0.remove(&name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A revoked key makes a mount connect again and again, each time from another port.
    #[test]
    fn a_message_of_many_connections_is_one_line_and_a_count() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let mut written = Vec::new();
        for attempt in 0..200 {
            let text = format!("tcp:10.0.0.7:{}: no session: the key is gone", 40_000 + attempt);
            let now = start + second(attempt) / 2;
            match repeats.judge(&text, now) {
                Verdict::Omit => {}
                verdict => written.push((attempt, verdict)),
            }
        }
        let counted = |omitted, seconds| Verdict::WriteWith { omitted, seconds };
        assert_eq!(written, [(0, Verdict::Write), (60, counted(59, 30)), (180, counted(119, 60))]);
        // After a quiet time it is news.
        let text = "tcp:10.0.0.7:5: no session: the key is gone";
        assert_eq!(repeats.judge(text, start + second(500)), counted(19, 410));
        assert_eq!(repeats.judge(text, start + second(529)), Verdict::Omit);
    }

    #[test]
    fn other_messages_are_not_left_out() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for text in ["session 1: gone", "session 2: gone", "tcp:h:1: gone", "tcp:g:1: gone", "gone", "a:b"] {
            assert_eq!(repeats.judge(text, now), Verdict::Write, "{text}");
        }
        assert_eq!(repeats.judge("tcp:h:2: gone", now), Verdict::Omit);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        for number in 0..1000u32 {
            repeats.judge(&format!("message {number}"), start + Duration::from_millis(number.into()));
        }
        assert_eq!(repeats.0.len(), MAX_KINDS);
        assert_eq!(repeats.judge("message 999", start + second(1)), Verdict::Omit);
    }
}
