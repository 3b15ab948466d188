//! Sessions that send any message.

use std::{io, sync::Arc, thread, time::Duration};

use fastrand::Rng;
use rdmabox::{CallsBy, ConnectError, ProviderKind, RequestError, Session, SessionOptions};
use rfs_proto::{Attached, Reply, Request, VERSION, decode_reply, decode_request, encode_request};

use super::{Failure, Flood};
use crate::{mutate::Mutator, targets};

/// Of so many messages that cannot be decoded one is sent: mutations make twelve times as many of them as of others, and it is to be about one for one.
const UNREADABLE: usize = 11;
/// Members at a time. Each message that cannot be decoded costs a session, and most of that is waiting.
pub const AT_A_TIME: u64 = 4;
/// Attempts to get a session: strangers may be in the way for a moment.
const ATTEMPTS: usize = 20;

/// What members did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Messages.
    pub messages: u64,
    /// Of these, those that could not be decoded, each of which ended its session.
    pub unreadable: u64,
    /// Those that were answered with an error.
    pub refused: u64,
    /// Sessions.
    pub sessions: u64,
}

fn connect(flood: &Flood) -> Result<Arc<Session>, Failure> {
    Ok(connect_attached(flood)?.0)
}

/// Connects and attaches. Returns what the client is told of the export, too.
pub(super) fn connect_attached(flood: &Flood) -> Result<(Arc<Session>, Attached), Failure> {
    let options = SessionOptions {
        provider: Some(ProviderKind::Tcp),
        queue_pairs: 1,
        calls: CallsBy::Reply,
        operation_timeout: Duration::from_secs(20),
        key: flood.keys[0].clone(),
        ..SessionOptions::default()
    };
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match Session::connect(&flood.address, &options) {
            Ok(session) => return attach(flood, session),
            Err(ConnectError::Refused { reason, .. }) => last = reason,
            Err(e) => last = e.to_string(),
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(Failure::Connect { who: "a member", source: io::Error::other(last) })
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

/// The first sessions, which make the server take what it keeps.
pub(super) fn warm_up(flood: &Flood) -> Result<(), Failure> {
    (0..4).try_for_each(|_| connect(flood).map(|session| session.close()))
}

/// Whether a message may be sent, and can be decoded. Some are answered when there is something to say.
fn judge(message: &[u8], random: &mut Rng) -> Option<bool> {
    let readable = match decode_request(message) {
        Ok(Request::Recalls { .. } | Request::Grants) => return None,
        // Those that make no sense in an envelope are malformed there.
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
    thread::scope(|scope| {
        let members: Vec<_> = (0..AT_A_TIME).map(|number| scope.spawn(move || one(flood, number))).collect();
        members
            .into_iter()
            .try_fold(Members::default(), |all, member| Ok(all.and(member.join().expect("no panic")?)))
    })
}

/// One of them, who sends his part of the messages, and other ones than the others.
fn one(flood: &Flood, member: u64) -> Result<Members, Failure> {
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
        let Some(readable) = judge(&message, &mut random) else { continue };
        let member = match session.take() {
            Some(session) => session,
            None => {
                did.sessions += 1;
                connect(flood)?
            }
        };
        did.messages += 1;
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
