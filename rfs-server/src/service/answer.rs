//! One message of a session: decoded, handled, and answered.
//!
//! # Concurrency
//! The threads that serve calls. No locks.

use std::{sync::Arc, time::Instant};

use rfs_proto::{Errno, MAX_MESSAGE, Reply, Request, decode_request, encode_reply, encode_reply_with};

use crate::{
    dispatch::{Dispatcher, Outcome, Sender, stats::Departure},
    session::{access_mode::AccessMode, mount_registry::Attached},
};

pub(super) fn decode(request: &[u8]) -> Result<Request<'_>, String> {
    decode_request(request).map_err(|e| format!("malformed request: {e}"))
}

/// Decodes the inner request of an exactly-once request.
fn decode_once(request: &[u8]) -> Result<Request<'_>, String> {
    match decode(request)? {
        request if request.may_be_once() => Ok(request),
        _ => Err("malformed request: cannot be carried out exactly once".into()),
    }
}

/// Answers a message of a session, at once or later. `reads_records` says whether the client
/// reads records without a request. An error ends the session.
pub(super) fn answer(
    dispatcher: &Dispatcher,
    (Attached { session, rights, .. }, reads_records): (Attached, bool),
    request: &[u8],
    reply: &mut rdmabox::Reply<'_>,
    note: impl FnOnce(&Request<'_>, &Outcome),
) -> Result<(), String> {
    let begin = Instant::now();
    let (once, request) = match decode(request)? {
        Request::Once { slot, sequence, request } => (Some((slot, sequence)), decode_once(request)?),
        request => (None, request),
    };
    if !rights.allow(&request) {
        encode(&Reply::Error(Errno::EROFS), reply);
        return Ok(());
    }
    let outcome = match once {
        Some(number) => dispatcher.handle_once(session, number, request),
        None => dispatcher.handle(session, request),
    };
    note(&request, &outcome);
    match outcome {
        Outcome::Now(mut answer) if rights == AccessMode::Read => {
            if let Reply::Attached(attached) = &mut answer {
                attached.read_only = true;
            }
            encode(&answer, reply);
        }
        Outcome::Now(answer) => {
            let changed = !reads_records && !matches!(answer, Reply::Error(_));
            match if changed { dispatcher.directory_after(session, &request) } else { None } {
                Some(directory) => {
                    encode_reply_with(&answer, &directory, reply);
                    if reply.len() > MAX_MESSAGE {
                        encode(&answer, reply);
                    }
                }
                None => encode(&answer, reply),
            }
        }
        Outcome::Deferred(held) => {
            let later = reply.defer();
            let recorded = held.answers_change().then(|| Arc::clone(dispatcher.latencies()));
            let sender = Sender::new(move |answer| {
                let mut bytes = Vec::new();
                encode(&answer, &mut bytes);
                later.answer(&bytes);
                if let Some(latencies) = recorded {
                    latencies.record(Departure::AfterRecalls, begin.elapsed());
                }
            });
            dispatcher.redeem(held, sender);
            return Ok(());
        }
    }
    dispatcher.latencies().record(Departure::AtOnce, begin.elapsed());
    Ok(())
}

pub(super) fn encode(reply: &Reply, bytes: &mut Vec<u8>) {
    encode_reply(reply, bytes);
    if bytes.len() > MAX_MESSAGE {
        // Replies are built to fit. If one does not, the client must get an answer all the same.
        log::error!("a reply of {} bytes exceeds the message size", bytes.len());
        encode_reply(&Reply::Error(Errno::EOVERFLOW), bytes);
    }
}
