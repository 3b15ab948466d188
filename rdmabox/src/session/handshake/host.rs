//! The host's part.

use std::{io, time::Instant};

use super::{
    begin, invalid,
    message::{Answer, Message},
    preamble::Opening,
};
use crate::session::{
    key::Secret,
    proof::{Dialogue, Nonce, Proof, Side},
    stream::Stream,
};

/// Has a client prove that it knows a secret. `None` if it does not. Without a secret, because there is none of the name that the
/// client has given, it is asked all the same, and what it says is wrong.
///
/// # Errors
/// Those of the stream; [`io::ErrorKind::InvalidData`] for a client that says something else.
pub(crate) fn challenge(
    stream: &mut Stream,
    opening: &Opening,
    secret: Option<&Secret>,
    deadline: Instant,
) -> io::Result<Option<Dialogue>> {
    let known = secret.is_some();
    let secret = secret.cloned().map_or_else(Secret::random, Ok)?;
    let mut dialogue = begin(secret, stream, opening);
    let said = Message::Challenge(Nonce::random()?).send(stream)?;
    dialogue.say(&said);
    let heard = Message::receive_short(stream, size_of::<Proof>(), deadline)?;
    let (Message::Proof(proof), bytes) = heard else {
        return Err(invalid("it does not prove that it has a key"));
    };
    let right = dialogue.is_proof(Side::Client, &proof) & known;
    dialogue.say(&bytes);
    Ok(right.then_some(dialogue))
}

/// Proves to a client that this host knows the secret, and has heard and said the same.
pub(crate) fn prove(stream: &mut Stream, dialogue: &Dialogue) -> io::Result<()> {
    Message::Proof(dialogue.prove(Side::Host)).send(stream).map(drop)
}

/// Tells a client that it is welcome, with a proof if it has given one.
pub(crate) fn send_welcome(
    stream: &mut Stream,
    answer: &Answer,
    dialogue: Option<&mut Dialogue>,
) -> io::Result<()> {
    let said = Message::Answer(answer.clone()).send(stream)?;
    match dialogue {
        None => Ok(()),
        Some(dialogue) => {
            dialogue.say(&said);
            prove(stream, dialogue)
        }
    }
}
