//! The client's part of the handshake.
//!
//! # Concurrency
//! Runs on the thread of the stream; no locks.

use std::{
    io::{self, Write},
    time::Instant,
};

use super::{
    HandshakeError, Token,
    message::{Answer, Message, receive_answer},
    preamble::{Preamble, Purpose},
    start_transcript,
};
use crate::{
    auth::{Key, Secret, Side, Transcript},
    session::stream::Stream,
};

/// Returns the error for a host without a valid proof.
fn unproved() -> io::Error {
    HandshakeError::Unproved.into()
}

/// Sends the preamble of a fresh stream and receives the answer. With a key, which `purpose`
/// names, the client accepts only a refusal from a host without a proof of the key. Also returns
/// the session's secret for joining streams.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a host with another protocol, or without the key.
pub(crate) fn introduce(
    stream: &mut Stream,
    purpose: Purpose,
    key: Option<&Key>,
    deadline: Instant,
) -> io::Result<(Answer, Option<Secret>)> {
    let preamble = Preamble::new(stream, purpose)?;
    stream.write_all(preamble.bytes())?;
    let Some(key) = key else { return Ok((receive_answer(stream, deadline)?, None)) };
    let mut transcript = start_transcript(key.secret.clone(), stream, &preamble);
    if let Some(refusal) = respond(stream, &mut transcript, deadline)? {
        return Ok((refusal, None));
    }
    let secret = transcript.session_secret();
    match Message::receive(stream, deadline)? {
        (Message::Answer(answer), _) if !answer.ok => Ok((answer, None)),
        (Message::Answer(answer), bytes) => {
            transcript.append(&bytes);
            verify(stream, &transcript, deadline)?;
            Ok((answer, Some(secret)))
        }
        _ => Err(unproved()),
    }
}

/// Joins a session with a fresh stream, as queue pair `index`. If the session has a secret, both
/// sides prove it.
///
/// # Errors
/// As for [`introduce`].
pub(crate) fn join(
    stream: &mut Stream,
    (token, index): (Token, u32),
    secret: Option<&Secret>,
    deadline: Instant,
) -> io::Result<()> {
    let preamble = Preamble::new(stream, Purpose::Join { token, index, proves: secret.is_some() })?;
    stream.write_all(preamble.bytes())?;
    let Some(secret) = secret else { return Ok(()) };
    let mut transcript = start_transcript(secret.clone(), stream, &preamble);
    match respond(stream, &mut transcript, deadline)? {
        None => verify(stream, &transcript, deadline),
        Some(refusal) => Err(HandshakeError::Denied(refusal.text).into()),
    }
}

/// Answers the host's challenge with a proof, or returns the host's refusal.
fn respond(
    stream: &mut Stream,
    transcript: &mut Transcript,
    deadline: Instant,
) -> io::Result<Option<Answer>> {
    match Message::receive(stream, deadline)? {
        (Message::Challenge(_), bytes) => {
            transcript.append(&bytes);
            let said = Message::Proof(transcript.prove(Side::Client)).send(stream)?;
            transcript.append(&said);
            Ok(None)
        }
        (Message::Answer(answer), _) if !answer.ok => Ok(Some(answer)),
        _ => Err(unproved()),
    }
}

/// Verifies the host's proof.
fn verify(stream: &mut Stream, transcript: &Transcript, deadline: Instant) -> io::Result<()> {
    match Message::receive(stream, deadline)? {
        (Message::Proof(proof), _) if transcript.is_proof(Side::Host, &proof) => Ok(()),
        _ => Err(unproved()),
    }
}
