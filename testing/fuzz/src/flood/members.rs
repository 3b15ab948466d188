//! Attached sessions that send mutated messages.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use rdmabox::{CallsBy, ConnectError, ProviderKind, RequestError, Session};
use rfs_proto::{Attached, Reply, Request, VERSION, decode_reply, decode_request, encode_request};

use super::{failure::Failure, target::Flood};
use crate::{mutate::Mutator, targets};

/// One of this number of messages that do not decode is sent. Mutation makes about this number of
/// them for each message that decodes, so members send about as many of each kind.
const UNREADABLE: usize = 11;
/// Number of concurrent members. A message that does not decode costs a session, and a member
/// spends most of that time waiting.
pub const AT_A_TIME: u64 = 4;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Number of attempts to connect. Unauthenticated peers may occupy all pending connections for a
/// moment.
const ATTEMPTS: usize = 20;

/// Counts of the members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Number of messages.
    pub messages: u64,
    /// Number of messages that did not decode. Each of them ended its session.
    pub unreadable: u64,
    /// Number of messages with an error as their reply.
    pub refused: u64,
    /// Number of sessions.
    pub sessions: u64,
}

fn connect(flood: &Flood) -> Result<Arc<Session>, Failure> {
    Ok(connect_attached(flood)?.0)
}

/// Connects and attaches. Returns the session and the reply to the attach.
pub(super) fn connect_attached(flood: &Flood) -> Result<(Arc<Session>, Attached), Failure> {
    let options = Session::builder()
        .provider(ProviderKind::Tcp)
        .queue_pairs(1)
        .calls(CallsBy::Reply)
        .operation_timeout(Duration::from_secs(20))
        .key(flood.keys[0].clone())
        .into_options();
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match Session::connect(&flood.address, &options) {
            Ok(session) => return attach(flood, session),
            Err(ConnectError::Refused { reason, .. }) => last = reason,
            Err(e) => last = e.to_string(),
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(Failure::Connect { client: "a member", source: io::Error::other(last) })
}

fn attach(flood: &Flood, session: Arc<Session>) -> Result<(Arc<Session>, Attached), Failure> {
    let (mut message, mut reply) = (Vec::new(), Vec::new());
    let export = &flood.exports[0];
    let attach = Request::Attach {
        version: VERSION,
        client: "flood",
        export,
        keeps: false,
        alone: false,
        mount: None,
    };
    encode_request(&attach, &mut message);
    session.call(&message, &mut reply).map_err(|e| Failure::Member(e.to_string()))?;
    match decode_reply(&reply) {
        Ok(Reply::Attached(attached)) => Ok((session, attached)),
        other => Err(Failure::Member(format!("it is not attached: {other:?}"))),
    }
}

/// Opens and closes sessions, so that the server allocates its long-lived resources.
pub(super) fn warm_up(flood: &Flood) -> Result<(), Failure> {
    (0..4).try_for_each(|_| connect(flood).map(|session| session.close(std::time::Duration::ZERO)))
}

/// Returns whether a message decodes, or `None` if the member must not send it. Requests with a
/// late reply are never sent, and most messages that do not decode are dropped.
fn classify(message: &[u8], random: &mut Rng) -> Option<bool> {
    let readable = match decode_request(message) {
        Ok(Request::Recalls { .. } | Request::Grants) => return None,
        // A `Once` with a request that it must not contain is malformed.
        Ok(Request::Once { request, .. }) => decode_request(request).is_ok_and(|inner| inner.may_be_once()),
        Ok(_) => true,
        Err(_) => false,
    };
    match readable {
        true => Some(true),
        false => (random.usize(..UNREADABLE) == 0).then_some(false),
    }
}

impl Members {
    fn and(self, other: Members) -> Members {
        Members {
            messages: self.messages + other.messages,
            unreadable: self.unreadable + other.unreadable,
            refused: self.refused + other.refused,
            sessions: self.sessions + other.sessions,
        }
    }
}

pub(super) fn run(flood: &Flood) -> Result<Members, Failure> {
    let sent = &AtomicU64::new(0);
    thread::scope(|scope| {
        let members: Vec<_> =
            (0..AT_A_TIME).map(|number| scope.spawn(move || run_one(flood, number, sent))).collect();
        let progress = scope.spawn(|| show_progress(sent, flood.messages));
        let all = members
            .into_iter()
            .try_fold(Members::default(), |all, member| Ok(all.and(member.join().expect("no panic")?)));
        // Also after a failure.
        sent.store(flood.messages, Ordering::Relaxed);
        progress.thread().unpark();
        all
    })
}

/// Prints the number of sent messages to standard error until all are sent.
fn show_progress(sent: &AtomicU64, messages: u64) {
    loop {
        thread::park_timeout(PROGRESS);
        match sent.load(Ordering::Relaxed) {
            done if done >= messages => return,
            done => eprintln!("rfs-flood: {done} of {messages} messages are sent"),
        }
    }
}

/// Runs one member: sends its share of the messages, with a seed of its own.
fn run_one(flood: &Flood, member: u64, sent: &AtomicU64) -> Result<Members, Failure> {
    let messages = flood.messages / AT_A_TIME + u64::from(member < flood.messages % AT_A_TIME);
    let seed = flood.seed ^ member << 48;
    let seeds = targets::find("message").map_or_else(Vec::new, |target| (target.seeds)());
    let mutator = Mutator::new(seeds, !seed);
    let mut random = Rng::with_seed(seed);
    let (mut did, mut message, mut reply) = (Members::default(), Vec::new(), Vec::new());
    let mut session = None;
    let mut number = 0;
    while did.messages < messages {
        mutator.input(number, &mut message);
        number += 1;
        let Some(readable) = classify(&message, &mut random) else { continue };
        let member = match session.take() {
            Some(session) => session,
            None => {
                did.sessions += 1;
                connect(flood)?
            }
        };
        did.messages += 1;
        sent.fetch_add(1, Ordering::Relaxed);
        match (member.call(&message, &mut reply), readable) {
            (Ok(()), true) => {
                match decode_reply(&reply) {
                    Ok(reply) => did.refused += u64::from(matches!(reply, Reply::Error(_))),
                    Err(e) => return Err(Failure::Member(format!("{e} as the answer to {message:02x?}"))),
                }
                session = Some(member);
            }
            (Err(RequestError::Disconnected), false) => did.unreadable += 1,
            (outcome, _) => {
                return Err(Failure::Member(format!("{outcome:?}, {reply:02x?} to {message:02x?}")));
            }
        }
    }
    Ok(did)
}
