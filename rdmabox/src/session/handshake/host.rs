//! The host's part of the handshake.
//!
//! # Concurrency
//! Runs on the thread of the stream; no locks.

use std::{io, time::Instant};

use super::{
    invalid,
    message::{Answer, Message},
    preamble::Preamble,
    start_transcript,
};
use crate::{
    auth::{Nonce, Proof, Secret, Side, Transcript},
    session::stream::Stream,
};

/// Challenges a client to prove a secret. Returns `None` if the proof is wrong. A client with an
/// unknown key gets the same challenge, and its proof is always wrong.
///
/// # Errors
/// The errors of the stream; [`io::ErrorKind::InvalidData`] for any other message.
pub(crate) fn challenge(
    stream: &mut Stream,
    preamble: &Preamble,
    secret: Option<&Secret>,
    deadline: Instant,
) -> io::Result<Option<Transcript>> {
    let known = secret.is_some();
    let secret = secret.cloned().map_or_else(Secret::random, Ok)?;
    let mut transcript = start_transcript(secret, stream, preamble);
    let said = Message::Challenge(Nonce::random()?).send(stream)?;
    transcript.append(&said);
    let heard = Message::receive_short(stream, size_of::<Proof>(), deadline)?;
    let (Message::Proof(proof), bytes) = heard else {
        return Err(invalid("it does not prove that it has a key"));
    };
    let right = transcript.is_proof(Side::Client, &proof) & known;
    transcript.append(&bytes);
    Ok(right.then_some(transcript))
}

/// Proves to a client that this host knows the secret and has seen the same bytes.
pub(crate) fn prove(stream: &mut Stream, transcript: &Transcript) -> io::Result<()> {
    Message::Proof(transcript.prove(Side::Host)).send(stream).map(drop)
}

/// Sends the welcome, with a proof if the client has given one.
pub(crate) fn send_welcome(
    stream: &mut Stream,
    answer: &Answer,
    transcript: Option<&mut Transcript>,
) -> io::Result<()> {
    let said = Message::Answer(answer.clone()).send(stream)?;
    match transcript {
        None => Ok(()),
        Some(transcript) => {
            transcript.append(&said);
            prove(stream, transcript)
        }
    }
}
