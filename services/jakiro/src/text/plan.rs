//! Turns commands of connections into requests to the store, and into the steps of the answers.
//!
//! Each command becomes one step. A step is a fixed text, or the form of the answer to one request;
//! the requests are in the order of these steps. A [`Stop`] ends the plan of a connection: the
//! input is incomplete, or a command concerns all items.
//!
//! # Concurrency
//! Plain values of a thread.

use super::{
    moment::Moment,
    protocol::{Command, Parser},
    request::Request,
};
use crate::store::{Change, StoreMode};

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A fixed text; it may be empty.
    Say(&'static str),
    /// The value of an item, with its version or without. Nothing if there is no item.
    Value { has_version: bool },
    /// A line for the outcome of a request: the text is for success.
    Line(&'static str),
    /// Nothing, for every outcome of a request.
    Silence,
    /// A fixed text, for every outcome of a request.
    Instead(&'static str),
}

/// The end of the plan of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The next command needs an input of so many bytes.
    Incomplete(usize),
    /// `flush_all` at a time of the store's clock.
    Flush { at: u64, quiet: bool },
    /// `stats`.
    Stats(Report),
    /// The connection ends after its answers.
    Close,
}

/// The statistics that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// All counters.
    Counters,
    /// None: the counters begin at 0 again.
    Reset,
    /// An argument that is not known here.
    Unknown,
}

/// The requests and steps of a round, for one connection after the other.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    pub(super) requests: Vec<Request<'a>>,
    pub(super) steps: Vec<Step>,
}

/// The extent of the plan of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Bytes of the input that the commands use up.
    pub(super) used: usize,
    pub(super) stop: Stop,
}

/// The answer of the server's version to `version`.
const VERSION: &str = concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n");
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object\r\n";
const NO_ROOM_TO_READ: &str = "SERVER_ERROR out of memory reading request\r\n";

fn unless(quiet: bool, text: &'static str) -> Step {
    Step::Say(if quiet { "" } else { text })
}

impl<'a> Plan<'a> {
    /// Plans all complete commands at the begin of an input.
    ///
    /// Values of more than `max_value` bytes are dropped. `has_room` tells whether the connection
    /// may keep so many bytes of input until the rest of a command comes. If not, the value of the
    /// command is dropped.
    pub(super) fn add(
        &mut self,
        parser: &mut Parser,
        input: &'a [u8],
        (now, max_value): (Moment, usize),
        mut has_room: impl FnMut(usize) -> bool,
    ) -> Planned {
        let mut used = 0;
        loop {
            let mut progress = parser.next(&input[used..], max_value);
            used += progress.used;
            let mut too_long = TOO_LARGE;
            if let Err(needed) = progress.outcome {
                if has_room(needed) {
                    return Planned { used, stop: Stop::Incomplete(needed) };
                }
                progress = parser.next(&input[used..], 0);
                used += progress.used;
                too_long = NO_ROOM;
            }
            let Ok(command) = progress.outcome else {
                self.steps.push(Step::Say(NO_ROOM_TO_READ));
                return Planned { used, stop: Stop::Close };
            };
            if let Some(stop) = self.command(command, now, too_long) {
                return Planned { used, stop };
            }
        }
    }

    fn command(&mut self, command: Command<'a>, now: Moment, too_long: &'static str) -> Option<Stop> {
        let step = match command {
            Command::Key { key, retrieval } => {
                let expires = retrieval.exptime.map(|exptime| now.expires(exptime));
                self.requests.push(Request::Get { key, expires });
                Step::Value { has_version: retrieval.has_version }
            }
            Command::EndOfKeys => Step::Say("END\r\n"),
            Command::Store(store) => {
                let (mode, flags, expires) = (store.mode, store.flags, now.expires(store.exptime));
                let change = Change { mode, flags, expires };
                self.requests.push(Request::Store { key: store.key, change, value: store.value });
                line(store.quiet, "STORED\r\n")
            }
            Command::TooLong { key, mode: StoreMode::Set, quiet } => {
                // A client that sees the error would not expect the value of before.
                self.requests.push(Request::Delete { key });
                if quiet { Step::Silence } else { Step::Instead(too_long) }
            }
            Command::TooLong { quiet, .. } => unless(quiet, too_long),
            Command::Delete { key, quiet } => {
                self.requests.push(Request::Delete { key });
                line(quiet, "DELETED\r\n")
            }
            Command::Count { key, delta, quiet } => {
                self.requests.push(Request::Count { key, delta });
                line(quiet, "")
            }
            Command::Touch { key, exptime, quiet } => {
                self.requests.push(Request::Touch { key, expires: now.expires(exptime) });
                line(quiet, "TOUCHED\r\n")
            }
            Command::FlushAll { exptime, quiet } => {
                let at = if exptime > 0 { now.expires(exptime) } else { 0 };
                return Some(Stop::Flush { at, quiet });
            }
            Command::Stats(argument) => return Some(Stop::Stats(report(argument))),
            Command::Version => Step::Say(VERSION),
            Command::Verbosity { quiet } => unless(quiet, "OK\r\n"),
            Command::Malformed { fault, quiet } => unless(quiet, fault.line()),
            Command::Quit => return Some(Stop::Close),
            Command::Stray(fault) => {
                self.steps.push(Step::Say(fault.map_or("", |fault| fault.line())));
                return Some(Stop::Close);
            }
        };
        self.steps.push(step);
        None
    }

    /// Makes the plan empty, for inputs of another lifetime. Keeps the memory.
    pub(super) fn recycle<'b>(mut self) -> Plan<'b> {
        self.steps.clear();
        self.requests.clear();
        let none = self.requests.into_iter().map(|_| unreachable!("an empty list"));
        Plan { requests: none.collect(), steps: self.steps }
    }
}

/// Returns the parser and the bytes that are used up after a number of steps of a connection.
///
/// There must be a further step: room for incomplete commands plays no part then.
pub(super) fn replay(mut parser: Parser, input: &[u8], max_value: usize, steps: usize) -> (Parser, usize) {
    let mut used = 0;
    for _ in 0..steps {
        used += parser.next(&input[used..], max_value).used;
    }
    (parser, used)
}

fn line(quiet: bool, done: &'static str) -> Step {
    if quiet { Step::Silence } else { Step::Line(done) }
}

fn report(argument: Option<&[u8]>) -> Report {
    match argument {
        None => Report::Counters,
        Some(b"reset") => Report::Reset,
        Some(_) => Report::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MAX_VALUE, NEVER};

    const NOW: Moment = Moment { unix: 1_800_000_000_000, store: 1000 };

    fn plan(input: &[u8], room: usize) -> (Plan<'_>, Planned, Parser) {
        let (mut plan, mut parser) = (Plan::default(), Parser::default());
        let planned = plan.add(&mut parser, input, (NOW, MAX_VALUE), |needed| needed <= room);
        (plan, planned, parser)
    }

    #[test]
    fn commands_of_one_input_become_one_list_of_requests() {
        let input = b"get a b\r\nset c 1 0 2 noreply\r\nxy\r\nversion\r\ngat 5 d\r\nincr";
        let (plan, planned, _) = plan(input, 100);
        assert_eq!(planned, Planned { used: input.len() - 4, stop: Stop::Incomplete(5) });
        let change = Change { mode: StoreMode::Set, flags: 1, expires: NEVER };
        let wanted = [
            Request::Get { key: b"a", expires: None },
            Request::Get { key: b"b", expires: None },
            Request::Store { key: b"c", change, value: b"xy" },
            Request::Get { key: b"d", expires: Some(6000) },
        ];
        assert_eq!(plan.requests, wanted);
        let value = Step::Value { has_version: false };
        let (end, version) = (Step::Say("END\r\n"), Step::Say(VERSION));
        assert_eq!(plan.steps, [value, value, end, Step::Silence, version, value, end]);
    }

    #[test]
    fn commands_that_concern_all_items_end_a_plan() {
        for (input, stop) in [
            (&b"get a\r\nflush_all\r\nget a\r\n"[..], Stop::Flush { at: 0, quiet: false }),
            (b"get a\r\nflush_all 7 noreply\r\n", Stop::Flush { at: 8000, quiet: true }),
            (b"get a\r\nstats\r\n", Stop::Stats(Report::Counters)),
            (b"get a\r\nstats reset\r\n", Stop::Stats(Report::Reset)),
            (b"get a\r\nstats slabs\r\n", Stop::Stats(Report::Unknown)),
            (b"get a\r\nquit\r\n", Stop::Close),
        ] {
            let (plan, planned, _) = plan(input, 100);
            assert_eq!((planned.stop, plan.requests.len(), plan.steps.len()), (stop, 1, 2));
        }
    }

    #[test]
    fn without_room_a_value_is_dropped() {
        let (plan, planned, parser) = plan(b"get a\r\nset b 0 0 500\r\nxyz", 400);
        assert_eq!(planned, Planned { used: 25, stop: Stop::Incomplete(1) });
        assert_eq!(plan.requests[1..], [Request::Delete { key: b"b" }]);
        assert_eq!(plan.steps[2..], [Step::Instead(NO_ROOM)]);
        let (again, planned, _) = (plan.recycle(), planned, parser);
        assert!(again.requests.is_empty() && again.steps.is_empty() && planned.used == 25);
    }

    #[test]
    fn without_room_a_long_line_ends_the_connection() {
        let input = format!("get {}", "k ".repeat(300));
        let (plan, planned, _) = plan(input.as_bytes(), 400);
        assert_eq!((planned.stop, &plan.steps[..]), (Stop::Close, &[Step::Say(NO_ROOM_TO_READ)][..]));
    }

    #[test]
    fn a_plan_can_be_left_after_each_step() {
        let input = b"get a bc\r\nset c 1 0 2\r\nxy\r\n\r\ndelete x\r\n";
        let (plan, ..) = plan(input, 100);
        assert_eq!(plan.steps.len(), 6);
        let places: Vec<usize> =
            (0..6).map(|steps| replay(Parser::default(), input, MAX_VALUE, steps).1).collect();
        assert_eq!(places, [0, 5, 8, 10, 27, 29]);
        let (mut parser, used) = replay(Parser::default(), input, MAX_VALUE, 1);
        let rest = Plan::default().add(&mut parser, &input[used..], (NOW, MAX_VALUE), |_| true);
        assert_eq!(rest.used, input.len() - used);
    }
}
