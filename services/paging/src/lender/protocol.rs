//! Calls between a pager and a lender, and their encoding.
//!
//! A request is [`MAGIC`] and a postcard encoding of [`Request`]; a reply is `MAGIC` and a
//! [`Answer`]. The magic number has the version, so another service or version is told by the
//! first reply.
//!
//! # Concurrency
//! Plain values.

use rdmabox::{RemoteMr, RequestError, Session};
use serde::{Deserialize, Serialize};

/// Prefix of every request and reply. The last byte is the version.
const MAGIC: [u8; 8] = *b"rfspage1";

/// Version of the protocol between pagers and lenders.
pub const PROTOCOL: u32 = (MAGIC[7] - b'0') as u32;

/// A request of a pager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Asks for a chunk.
    Allocate,
    /// Gives chunks back.
    Free(Vec<u32>),
    /// Asks for [`LenderStatus`].
    Status,
}

/// The reply of a lender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// A chunk: its number, and the bytes of its [`RemoteMr`].
    Chunk(u32, [u8; RemoteMr::ENCODED_LEN]),
    /// There is no chunk.
    Full,
    /// The chunks of a [`Request::Free`] are free.
    Freed,
    /// The state of the lender.
    Status(LenderStatus),
}

/// The state of a lender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LenderStatus {
    /// Length of a chunk in bytes.
    pub chunk_bytes: u64,
    /// Number of all chunks.
    pub chunks: u32,
    /// Number of free chunks.
    pub free_chunks: u32,
    /// Number of sessions that have chunks, and the chunks of each.
    pub borrowers: Vec<(u64, u32)>,
}

/// A chunk that a pager has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LentChunk {
    /// Number of the chunk at its lender.
    pub(crate) number: u32,
    /// Its memory.
    pub(crate) memory: RemoteMr,
}

/// Encodes a message with its magic number.
pub(crate) fn encode(message: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    let mut buffer = postcard::to_stdvec(message).expect("postcard encodes plain values");
    out.append(&mut buffer);
}

/// Decodes a message; `None` if it is no message of this version.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes.strip_prefix(&MAGIC)?).ok()?;
    rest.is_empty().then_some(message)
}

/// Makes a call to the lender.
pub(crate) fn call(session: &Session, request: &Request) -> Result<Answer, RequestError> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    encode(request, &mut bytes);
    session.call(&bytes, &mut reply)?;
    decode(&reply).ok_or_else(|| RequestError::Invalid("the host does not lend memory to pagers".into()))
}

/// Asks for a chunk of `len` bytes; `None` if the lender is full.
pub(crate) fn allocate(session: &Session, len: usize) -> Result<Option<LentChunk>, RequestError> {
    match call(session, &Request::Allocate)? {
        Answer::Chunk(number, memory) => {
            let memory = RemoteMr::from_le_bytes(memory)?;
            // A lender that lies about the length is refused here, not at the first request.
            memory.for_read(0, len)?;
            memory.for_write(0, len)?;
            Ok(Some(LentChunk { number, memory }))
        }
        Answer::Full => Ok(None),
        other => Err(unexpected(&other)),
    }
}

/// Starts to give chunks back. The reply is not needed: a chunk that stays lent is free when
/// the session ends.
pub(crate) fn start_free(session: &Session, chunks: Vec<u32>) -> Result<(), RequestError> {
    let mut bytes = Vec::new();
    encode(&Request::Free(chunks), &mut bytes);
    session.start_call(&bytes)
}

/// Asks for the state of the lender.
pub(crate) fn status(session: &Session) -> Result<LenderStatus, RequestError> {
    match call(session, &Request::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> RequestError {
    RequestError::Invalid(format!("unexpected reply of the lender: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rdmabox::{Access, CallError, Host, Peer, Reply, Service};

    use super::*;

    #[test]
    fn messages_round_trip() {
        for request in [Request::Allocate, Request::Free(vec![1, 70_000]), Request::Status] {
            let mut bytes = Vec::new();
            encode(&request, &mut bytes);
            assert_eq!(decode(&bytes), Some(request));
            bytes.push(0);
            assert_eq!(decode::<Request>(&bytes), None, "a longer message");
        }
        assert_eq!(decode::<Request>(b"rdmalend\0"), None);
    }

    /// A lender whose answer to everything is the same.
    struct Fake(Answer);

    impl Service for Fake {
        fn call(&self, _: &Peer, _: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
            encode(&self.0, reply);
            Ok(())
        }
    }

    #[test]
    fn a_lender_that_lies_is_refused() {
        let memory = |len, access| {
            let base = rdmabox::RemoteAddr { addr: 4096, rkey: 1 };
            Answer::Chunk(0, RemoteMr::new(base, len, access).expect("a range").to_le_bytes())
        };
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let lies = [
            memory(4095, both),
            memory(1 << 20, Access::REMOTE_READ),
            Answer::Chunk(0, [0xff; RemoteMr::ENCODED_LEN]),
            Answer::Freed,
        ];
        for lie in lies {
            let host = Host::new().expect("a host");
            let address = "127.0.0.1:0".parse().expect("an address");
            let host = host.listen(&[address], Arc::new(Fake(lie.clone()))).expect("a port");
            let session = Session::builder().connect(&host.addresses()[0]).expect("a session");
            let outcome = allocate(&session, 4096);
            assert!(matches!(outcome, Err(RequestError::Invalid(_))), "{lie:?}: {outcome:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let with_magic = [&MAGIC[..], &bytes].concat();
            let _ = (decode::<Request>(&with_magic), decode::<Answer>(&with_magic), decode::<Request>(&bytes));
        }
    }
}
