//! Leaves out repetitions of a message. No I/O, no locks, no clock.
//!
//! The first message of a kind is written. Further ones within a period are counted. After the
//! period, the last one is written with the count. The period doubles while a message repeats.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use log::Level;

/// First period in which repetitions are left out.
const FIRST_PERIOD: Duration = Duration::from_secs(30);
/// Longest period.
const MAX_PERIOD: Duration = Duration::from_secs(3600);
/// Kinds of messages that are remembered.
const MAX_KINDS: usize = 256;

/// The lines to write.
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

/// A message of a kind that was left out, with the number of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Omitted {
    /// The last message that was left out.
    pub(super) text: String,
    pub(super) level: Level,
    pub(super) target: String,
    /// Messages that were left out.
    pub(super) count: u64,
    /// Seconds since the last message that was written.
    pub(super) seconds: u64,
}

#[derive(Debug)]
struct Kind {
    written: Instant,
    last: Instant,
    period: Duration,
    omitted: u64,
    /// Level and target of the messages, and the text of the last one that was left out.
    level: Level,
    target: String,
    text: String,
}

impl Kind {
    /// Returns when the messages that were left out are due to be written.
    fn due(&self) -> Option<Instant> {
        (self.omitted > 0).then(|| self.written + self.period)
    }
}

/// The messages of a program.
#[derive(Debug, Default)]
pub(super) struct Repeats(HashMap<String, Kind>);

/// Returns the text that messages of one kind have in common: all but the port of a client at the
/// front. Each attempt of a client to connect has another port.
fn kind_of(text: &str) -> String {
    let Some((peer, rest)) = text.split_once(": ") else { return text.to_owned() };
    match peer.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => format!("{host}: {rest}"),
        _ => text.to_owned(),
    }
}

impl Repeats {
    /// Returns whether to write a message of a level and a target.
    pub(super) fn judge(&mut self, text: &str, (level, target): (Level, &str), now: Instant) -> Verdict {
        let name = kind_of(text);
        let Some(kind) = self.0.get_mut(&name) else {
            self.make_room(now);
            let (target, text) = (target.to_owned(), String::new());
            let kind =
                Kind { written: now, last: now, period: FIRST_PERIOD, omitted: 0, level, target, text };
            self.0.insert(name, kind);
            return Verdict::Write;
        };
        let since = now.duration_since(kind.written);
        let quiet = now.duration_since(kind.last);
        kind.last = now;
        if since < kind.period {
            kind.omitted += 1;
            text.clone_into(&mut kind.text);
            return Verdict::Omit;
        }
        kind.period = if quiet < kind.period { (kind.period * 2).min(MAX_PERIOD) } else { FIRST_PERIOD };
        kind.written = now;
        match std::mem::take(&mut kind.omitted) {
            0 => Verdict::Write,
            omitted => Verdict::WriteWith { omitted, seconds: since.as_secs() },
        }
    }

    /// Returns the messages whose period is over, as if the last one of each kind came now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Omitted> {
        let is_due = |kind: &&mut Kind| kind.due().is_some_and(|due| due <= now);
        let take = |kind: &mut Kind| {
            let seconds = now.duration_since(kind.written).as_secs();
            (kind.written, kind.period) = (now, (kind.period * 2).min(MAX_PERIOD));
            Omitted {
                text: std::mem::take(&mut kind.text),
                level: kind.level,
                target: kind.target.clone(),
                count: std::mem::take(&mut kind.omitted),
                seconds,
            }
        };
        self.0.values_mut().filter(is_due).map(take).collect()
    }

    /// Returns when the first messages are due. `None` if none are left out.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(Kind::due).min()
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

    const OF: (Level, &str) = (Level::Warn, "module");

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
            match repeats.judge(&text, OF, now) {
                Verdict::Omit => {}
                verdict => written.push((attempt, verdict)),
            }
        }
        let counted = |omitted, seconds| Verdict::WriteWith { omitted, seconds };
        assert_eq!(written, [(0, Verdict::Write), (60, counted(59, 30)), (180, counted(119, 60))]);
        // After a quiet time it is news.
        let text = "tcp:10.0.0.7:5: no session: the key is gone";
        assert_eq!(repeats.judge(text, OF, start + second(500)), counted(19, 410));
        assert_eq!(repeats.judge(text, OF, start + second(529)), Verdict::Omit);
    }

    #[test]
    fn other_messages_are_not_left_out() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for text in ["session 1: gone", "session 2: gone", "tcp:h:1: gone", "tcp:g:1: gone", "gone", "a:b"] {
            assert_eq!(repeats.judge(text, OF, now), Verdict::Write, "{text}");
        }
        assert_eq!(repeats.judge("tcp:h:2: gone", OF, now), Verdict::Omit);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        for number in 0..1000u32 {
            repeats.judge(&format!("message {number}"), OF, start + Duration::from_millis(number.into()));
        }
        assert_eq!(repeats.0.len(), MAX_KINDS);
        assert_eq!(repeats.judge("message 999", OF, start + second(1)), Verdict::Omit);
    }

    /// Catches a count that is only written when the message comes once more.
    #[test]
    fn a_count_is_due_after_the_period() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.judge("h:1: gone", OF, start), Verdict::Write);
        assert_eq!(repeats.next_due(), None);
        for port in 2..5 {
            let text = format!("h:{port}: gone");
            assert_eq!(repeats.judge(&text, OF, start + second(port)), Verdict::Omit);
        }
        assert_eq!(repeats.next_due(), Some(start + FIRST_PERIOD));
        assert_eq!(repeats.take_due(start + second(29)), []);
        let due = Omitted {
            text: "h:4: gone".into(),
            level: Level::Warn,
            target: "module".into(),
            count: 3,
            seconds: 30,
        };
        assert_eq!(repeats.take_due(start + second(30)), [due]);
        assert_eq!((repeats.take_due(start + second(99)), repeats.next_due()), (vec![], None));
        // The next period began with the count, and is longer.
        assert_eq!(repeats.judge("h:5: gone", OF, start + second(89)), Verdict::Omit);
        assert_eq!(repeats.next_due(), Some(start + second(90)));
    }
}
