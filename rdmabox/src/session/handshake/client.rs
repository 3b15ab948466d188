//! The client's part.

use std::{
    io::{self, Write},
    time::Instant,
};

use super::{
    Token, begin, invalid,
    message::{Answer, Message, receive_answer},
    preamble::{Opening, Purpose},
};
use crate::session::{
    key::{Key, Secret},
    proof::{Dialogue, Side},
    stream::Stream,
};

/// Why a client with a key does not go on.
fn unproved() -> io::Error {
    invalid("the server does not prove that it has the key")
}

/// Says on a fresh stream what it is for, and hears the answer. With a key, which is that of `purpose`, nothing but a refusal is
/// believed of a host that does not prove that it has the key, too; and there is a secret for the streams that join the session.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for a host that speaks something else, or has not the key.
pub(crate) fn introduce(
    stream: &mut Stream,
    purpose: Purpose,
    key: Option<&Key>,
    deadline: Instant,
) -> io::Result<(Answer, Option<Secret>)> {
    let opening = Opening::new(stream, purpose)?;
    stream.write_all(opening.bytes())?;
    let Some(key) = key else { return Ok((receive_answer(stream, deadline)?, None)) };
    let mut dialogue = begin(key.secret.clone(), stream, &opening);
    if let Some(refusal) = respond(stream, &mut dialogue, deadline)? {
        return Ok((refusal, None));
    }
    let secret = dialogue.session_secret();
    match Message::receive(stream, deadline)? {
        (Message::Answer(answer), _) if !answer.ok => Ok((answer, None)),
        (Message::Answer(answer), bytes) => {
            dialogue.say(&bytes);
            believe(stream, &dialogue, deadline)?;
            Ok((answer, Some(secret)))
        }
        _ => Err(unproved()),
    }
}

/// Says on a fresh stream that it is queue pair `index` of a session. Where the session has a secret both sides prove that they
/// know it.
///
/// # Errors
/// As [`introduce`].
pub(crate) fn join(
    stream: &mut Stream,
    (token, index): (Token, u32),
    secret: Option<&Secret>,
    deadline: Instant,
) -> io::Result<()> {
    let opening = Opening::new(stream, Purpose::Join { token, index, proves: secret.is_some() })?;
    stream.write_all(opening.bytes())?;
    let Some(secret) = secret else { return Ok(()) };
    let mut dialogue = begin(secret.clone(), stream, &opening);
    match respond(stream, &mut dialogue, deadline)? {
        None => believe(stream, &dialogue, deadline),
        Some(refusal) => Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal.text)),
    }
}

/// Proves that this side knows the secret, when it is asked to; or gives the host's refusal.
fn respond(stream: &mut Stream, dialogue: &mut Dialogue, deadline: Instant) -> io::Result<Option<Answer>> {
    match Message::receive(stream, deadline)? {
        (Message::Challenge(_), bytes) => {
            dialogue.say(&bytes);
            let said = Message::Proof(dialogue.prove(Side::Client)).send(stream)?;
            dialogue.say(&said);
            Ok(None)
        }
        (Message::Answer(answer), _) if !answer.ok => Ok(Some(answer)),
        _ => Err(unproved()),
    }
}

/// Has the host prove that it knows the secret, and has heard and said the same.
fn believe(stream: &mut Stream, dialogue: &Dialogue, deadline: Instant) -> io::Result<()> {
    match Message::receive(stream, deadline)? {
        (Message::Proof(proof), _) if dialogue.is_proof(Side::Host, &proof) => Ok(()),
        _ => Err(unproved()),
    }
}
