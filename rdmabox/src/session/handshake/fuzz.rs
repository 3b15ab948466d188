//! Fuzz targets for the messages of the handshake.

use std::{os::unix::net::UnixStream, time::Duration};

use super::{
    Answer, Purpose, Token,
    message::Message,
    preamble::{Preamble, purpose_of},
};
use crate::{
    auth::{Nonce, Proof},
    session::stream::Stream,
    verbs::{AtomicScope, RemoteAddr},
};

/// Decodes `bytes` as a preamble. The name of its key must survive printing and parsing.
///
/// # Panics
/// If it does not.
pub fn preamble(bytes: &[u8]) {
    if let Some(Purpose::Control { key: Some(key), .. }) = purpose_of(bytes) {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}

/// Returns valid preambles.
pub fn preamble_seeds() -> Vec<Vec<u8>> {
    let key = "laptop.1".parse().ok();
    let token = Token([7; 16]);
    let purposes = [
        Purpose::Probe,
        Purpose::Control { queue_pairs: 4, fetch: false, key: None },
        Purpose::Control { queue_pairs: 16, fetch: true, key },
        Purpose::Join { token, index: 0, proves: false },
        Purpose::Join { token, index: 3, proves: true },
    ];
    let Ok((stream, _)) = UnixStream::pair() else { return Vec::new() };
    let stream = Stream::Unix(stream);
    let preambles = purposes.into_iter().filter_map(|purpose| Preamble::new(&stream, purpose).ok());
    preambles.map(|preamble| preamble.bytes().to_vec()).collect()
}

/// Decodes `bytes` as a message after the preamble, and encodes it again.
///
/// # Panics
/// If the encoded message decodes differently.
pub fn answer(bytes: &[u8]) {
    let Some(message) = Message::of(bytes) else { return };
    let said = message.encode();
    match (message, Message::of(&said)) {
        (Message::Answer(answer), Some(Message::Answer(again))) => assert_eq!(answer, again),
        // These messages have only one encoding.
        (Message::Challenge(_) | Message::Proof(_), Some(_)) => assert_eq!(bytes[..said.len()], said),
        (message, again) => panic!("{message:?} is understood as {again:?}"),
    }
}

/// Returns valid messages.
pub fn answer_seeds() -> Vec<Vec<u8>> {
    let welcome = Answer {
        ok: true,
        denied: false,
        token: Token([3; 16]),
        host: [5; 16],
        lease: Some(Duration::from_secs(20)),
        fetch: Some(RemoteAddr { addr: 1 << 40, rkey: 9 }),
        atomics: AtomicScope::Global,
        text: "/run/rfs/rfs.sock".into(),
    };
    let refused = Answer { text: "too many clients are connecting: try again".into(), ..Answer::default() };
    let denied =
        Answer { denied: true, text: "the server does not take the key a".into(), ..Answer::default() };
    let messages = [
        Message::Answer(welcome),
        Message::Answer(refused),
        Message::Answer(denied),
        Message::Challenge(Nonce([1; 32])),
        Message::Proof(Proof([2; 32])),
    ];
    messages.iter().map(Message::encode).collect()
}
