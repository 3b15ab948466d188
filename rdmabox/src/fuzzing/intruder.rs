//! An authenticated attacker, for flood tests of a host.
//!
//! [`Intruder`] makes the handshake of a session step by step. Its streams are raw: the attack
//! decides which bytes they carry and whether answers are read.
//!
//! # Concurrency
//! One thread per value; no locks.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use zerocopy::IntoBytes;

use crate::{
    auth::{Key, Secret},
    provider::soft::{HEADER_LEN, Header, Hello, MAGIC, Opcode, VERSION},
    session::{
        Address, ConnectError,
        handshake::{self, Answer, Purpose, Token},
        stream::Stream,
    },
    verbs::RemoteAddr,
};

/// Time limit for each step of the handshake.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A raw stream to a host.
#[derive(Debug)]
pub struct RawStream(Stream);

impl RawStream {
    /// Connects, and sends nothing.
    ///
    /// # Errors
    /// The host cannot be reached.
    pub fn connect(address: &Address) -> io::Result<RawStream> {
        let stream = Stream::connect(address, None, TIMEOUT, deadline()).map_err(|e| match e {
            ConnectError::Io { source, .. } | ConnectError::Unreachable { source, .. } => source,
            other => io::Error::other(other.to_string()),
        })?;
        stream.set_timeout(Some(TIMEOUT))?;
        Ok(RawStream(stream))
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Sends as many bytes as the socket takes without blocking.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket takes no byte.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_now(bytes)
    }

    /// Returns true if the host has closed the stream.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Turns the stream into a queue pair: sends a greeting and reads the host's.
    ///
    /// # Errors
    /// The host closes the stream.
    pub fn greet(&mut self) -> io::Result<()> {
        let hello = Hello {
            magic: MAGIC,
            version: VERSION.into(),
            flags: 0.into(),
            qp_num: 9.into(),
            table_len: 0.into(),
        };
        self.0.write_all(hello.as_bytes())?;
        let mut theirs = [0; size_of::<Hello>()];
        self.0.read_exact(&mut theirs)
    }
}

impl AsFd for RawStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// A session whose handshake has reached the host's welcome.
#[derive(Debug)]
pub struct Intruder {
    address: Address,
    control: Stream,
    answer: Answer,
    secret: Option<Secret>,
}

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

impl Intruder {
    /// Requests a session with `queue_pairs` data queue pairs and remote fetching. Joins no queue
    /// pair.
    ///
    /// # Errors
    /// The host refuses the session: [`io::ErrorKind::PermissionDenied`] with its reason.
    pub fn open(address: &Address, key: Option<&Key>, queue_pairs: u32) -> io::Result<Intruder> {
        let RawStream(mut control) = RawStream::connect(address)?;
        let purpose = Purpose::Control { queue_pairs, fetch: true, key: key.map(|key| key.id) };
        let (answer, secret) = handshake::introduce(&mut control, purpose, key, deadline())?;
        match answer.ok {
            true => Ok(Intruder { address: address.clone(), control, answer, secret }),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, answer.text)),
        }
    }

    /// Returns the address and length of the session's call memory at the host.
    pub fn call_memory(&self) -> Option<(RemoteAddr, usize)> {
        self.answer.fetch.map(|at| (at, crate::rpc::CALL_MEMORY))
    }

    fn token(&self) -> Token {
        self.answer.token
    }

    /// Joins another stream as queue pair `index`, up to the proofs. The stream has not sent a
    /// greeting yet.
    ///
    /// # Errors
    /// The host refuses the stream.
    pub fn join(&self, index: u32) -> io::Result<RawStream> {
        let mut raw = RawStream::connect(&self.address)?;
        handshake::join(&mut raw.0, (self.token(), index), self.secret.as_ref(), deadline())?;
        Ok(raw)
    }

    /// Joins and greets with all required queue pairs, and waits until the session is open. Returns
    /// the streams: calls, data, remote fetching.
    ///
    /// # Errors
    /// The host refuses the session.
    pub fn complete(&mut self, queue_pairs: u32) -> io::Result<Vec<RawStream>> {
        let fetch = self.answer.fetch.map(|_| queue_pairs + 2);
        let streams = (0..=queue_pairs).chain(fetch).map(|index| {
            let mut stream = self.join(index)?;
            stream.greet()?;
            Ok(stream)
        });
        let streams = streams.collect::<io::Result<Vec<_>>>()?;
        let ready = handshake::receive_answer(&mut self.control, deadline())?;
        match ready.ok {
            true => Ok(streams),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, ready.text)),
        }
    }

    /// Renews the lease, as a client does three times per lease.
    ///
    /// # Errors
    /// The session is over.
    pub fn renew(&mut self) -> io::Result<()> {
        self.control.write_all(&[0])
    }

    /// Returns the control stream.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.fd()
    }
}

/// Returns a call message for `slot`.
pub fn call_frame(slot: u16, number: u32, body: &[u8]) -> Vec<u8> {
    let len = (8 + body.len()) as u32;
    let header = Header { payload_len: len.into(), ..Header::new(Opcode::Send, number) };
    [header.as_bytes(), &u64::from(slot).to_le_bytes(), body].concat()
}

/// Returns a READ frame for `length` bytes.
pub fn read_frame(number: u32, from: RemoteAddr, length: u32) -> Vec<u8> {
    let header = Header {
        rkey: from.rkey.into(),
        addr: from.addr.into(),
        length: length.into(),
        ..Header::new(Opcode::Read, number)
    };
    header.as_bytes().to_vec()
}

/// Returns a WRITE frame for `bytes`.
pub fn write_frame(number: u32, to: RemoteAddr, bytes: &[u8]) -> Vec<u8> {
    let header = Header {
        rkey: to.rkey.into(),
        addr: to.addr.into(),
        payload_len: (bytes.len() as u32).into(),
        ..Header::new(Opcode::Write, number)
    };
    [header.as_bytes(), bytes].concat()
}

const _: () = assert!(HEADER_LEN == size_of::<Header>());
