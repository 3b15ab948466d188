//! The messages of the handshake, for fuzz targets.

use std::{os::unix::net::UnixStream, time::Duration};

use super::{
    Answer, Purpose, Token,
    message::Message,
    preamble::{Opening, purpose_of},
};
use crate::{
    session::{
        proof::{Nonce, Proof},
        stream::Stream,
    },
    verbs::RemoteAddr,
};

/// Takes `bytes` as what a client says first. A key that it names has a name that can be written down and read again.
///
/// # Panics
/// If it has not.
pub fn preamble(bytes: &[u8]) {
    if let Some(Purpose::Control { key: Some(key), .. }) = purpose_of(bytes) {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}

/// What clients say first.
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
    let openings = purposes.into_iter().filter_map(|purpose| Opening::new(&stream, purpose).ok());
    openings.map(|opening| opening.bytes().to_vec()).collect()
}

/// Takes `bytes` as what either side says after that. What it understands, it can say again.
///
/// # Panics
/// If what is said again is understood as something else.
pub fn answer(bytes: &[u8]) {
    let Some(message) = Message::of(bytes) else { return };
    let said = message.encode();
    match (message, Message::of(&said)) {
        (Message::Answer(answer), Some(Message::Answer(again))) => assert_eq!(answer, again),
        // Nothing in them has two ways of being said.
        (Message::Challenge(_) | Message::Proof(_), Some(_)) => assert_eq!(bytes[..said.len()], said),
        (message, again) => panic!("{message:?} is understood as {again:?}"),
    }
}

/// What they say.
pub fn answer_seeds() -> Vec<Vec<u8>> {
    let welcome = Answer {
        ok: true,
        token: Token([3; 16]),
        host: [5; 16],
        lease: Some(Duration::from_secs(20)),
        fetch: Some(RemoteAddr { addr: 1 << 40, rkey: 9 }),
        text: "/run/rfs/rfs.sock".into(),
    };
    let refused = Answer { text: "too many clients are connecting: try again".into(), ..Answer::default() };
    let messages = [
        Message::Answer(welcome),
        Message::Answer(refused),
        Message::Challenge(Nonce([1; 32])),
        Message::Proof(Proof([2; 32])),
    ];
    messages.iter().map(Message::encode).collect()
}
