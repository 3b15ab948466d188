//! The TLS record layer of a connection, between the stream's bytes and the socket.
//!
//! rustls encrypts and decrypts. This module connects it to queue pairs, which gather from and
//! scatter to memory that other threads may change, on a non-blocking socket. The channel may
//! hold bytes that the socket does not show: received but not taken ([`Channel::holds_input`]),
//! or accepted but not sent ([`Channel::holds_output`]). A thread must check both before it waits
//! for the socket. Both are bounded: input by [`DATA_READ`] and one record, output by
//! [`MAX_SEAL`] and the record overhead.
//!
//! # Concurrency
//! Any thread may call any method. `state` is a leaf lock for both directions. It is held during
//! encryption, decryption and calls on the socket, but not while a reader waits on a blocking
//! socket.

use std::{
    io::{self, BufRead, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use rustls::Connection;
use socket2::SockRef;

use super::error::protocol;
use crate::mapping::{self, IoVec};

/// Bytes per socket read, for handshakes and messages.
const MESSAGE_READ: usize = 4 << 10;
/// Bytes per socket read for data.
const DATA_READ: usize = 64 << 10;
/// Maximum number of bytes that are encrypted before the socket takes them.
const MAX_SEAL: usize = 128 << 10;
/// Size of a record in bytes.
const RECORD: usize = 16 << 10;
/// Maximum number of bytes read from the socket before other queue pairs get their turn.
const READ_BUDGET: usize = 1 << 20;
/// Exporter label of RFC 9266.
const LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// Adapter from a socket to rustls.
struct Wire<'a> {
    socket: SockRef<'a>,
    flags: libc::c_int,
}

impl<'a> Wire<'a> {
    fn new(socket: &'a impl AsFd, flags: libc::c_int) -> Wire<'a> {
        Wire { socket: SockRef::from(socket), flags: flags | libc::MSG_NOSIGNAL }
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.send_with_flags(buf, self.flags)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send_vectored_with_flags(bufs, self.flags)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// State under the lock.
pub(super) struct State {
    connection: Connection,
    /// Bytes from the socket. Those from `start` to `end` have not been passed to the connection.
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// Plaintext of a record before encryption. It is a copy, because other threads may change its
    /// source.
    clear: Vec<u8>,
    /// Error of an invalid input; final.
    broken: Option<rustls::Error>,
}

/// How much decrypted input was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    All,
    Some,
    /// The stream has ended.
    Ended,
}

impl State {
    pub(super) fn new(connection: Connection, received: &[u8]) -> State {
        let mut raw = vec![0; MESSAGE_READ];
        raw[..received.len()].copy_from_slice(received);
        State { connection, raw, start: 0, end: received.len(), clear: Vec::new(), broken: None }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Sends encrypted output. Returns false if the socket takes no more.
    pub(super) fn flush(&mut self, socket: &impl AsFd, flags: libc::c_int) -> io::Result<bool> {
        let mut wire = Wire::new(socket, flags);
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut wire) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Decrypts buffered bytes, or reads once and decrypts the first of the new bytes. Returns the
    /// number of bytes processed; 0 at the end of the stream.
    pub(super) fn advance(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        if let Some(error) = &self.broken {
            return Err(protocol(error));
        }
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            self.end = (&*SockRef::from(socket)).read(&mut self.raw)?;
        }
        let mut rest = &self.raw[self.start..self.end];
        let count = match rest.is_empty() {
            true => 0,
            false => self.connection.read_tls(&mut rest)?,
        };
        self.start += count;
        match self.connection.process_new_packets() {
            Ok(_) => Ok(count),
            Err(e) => {
                let error = protocol(&e);
                self.broken = Some(e);
                Err(error)
            }
        }
    }

    /// Passes decrypted bytes to `put`, which returns how many it takes.
    fn take(&mut self, mut put: impl FnMut(&[u8]) -> usize) -> Taken {
        let mut reader = self.connection.reader();
        loop {
            let (all, taken) = match reader.fill_buf() {
                Ok([]) => return Taken::Ended,
                Ok(bytes) => (bytes.len(), put(bytes)),
                // Nothing is available. The socket reports an end without a close alert.
                Err(_) => return Taken::All,
            };
            reader.consume(taken);
            if taken < all {
                return Taken::Some;
            }
        }
    }

    /// Copies decrypted bytes to `buf`. Returns how much was taken and the number of bytes copied.
    fn copy(&mut self, buf: &mut [u8]) -> (Taken, usize) {
        let mut filled = 0;
        let taken = self.take(|bytes| {
            let count = bytes.len().min(buf.len() - filled);
            buf[filled..filled + count].copy_from_slice(&bytes[..count]);
            filled += count;
            count
        });
        (taken, filled)
    }

    /// Returns true if the next read needs no socket: bytes, the end or an error are available.
    fn holds_input(&mut self) -> bool {
        self.start < self.end || self.broken.is_some() || self.connection.reader().fill_buf().is_ok()
    }
}

/// A connection after its handshake.
pub(crate) struct Channel {
    state: Mutex<State>,
    binding: [u8; 32],
    holds_input: AtomicBool,
    holds_output: AtomicBool,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    pub(super) fn new(mut state: State) -> io::Result<Channel> {
        // The callers bound the buffered bytes.
        state.connection.set_buffer_limit(None);
        let binding =
            state.connection.export_keying_material([0; 32], LABEL, None).map_err(|e| protocol(&e))?;
        let holds_input = AtomicBool::new(state.holds_input());
        Ok(Channel { state: Mutex::new(state), binding, holds_input, holds_output: AtomicBool::new(false) })
    }

    pub(crate) fn binding(&self) -> &[u8; 32] {
        &self.binding
    }

    /// Enlarges the read buffer for data.
    pub(crate) fn widen(&self) {
        let mut state = self.state.lock();
        state.raw.resize(DATA_READ, 0);
    }

    /// Returns true if input is available that the socket does not show.
    pub(crate) fn holds_input(&self) -> bool {
        self.holds_input.load(Ordering::Acquire)
    }

    /// Returns true if accepted output waits for the socket.
    pub(crate) fn holds_output(&self) -> bool {
        self.holds_output.load(Ordering::Acquire)
    }

    /// Reads available bytes. Waits for the socket at most once and returns `Interrupted` if that
    /// yielded no bytes. Only one thread may read at a time, and no writer waits for it.
    pub(crate) fn read(&self, socket: &impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
        if !self.holds_input() {
            // Waits without the lock.
            SockRef::from(socket).peek(&mut [MaybeUninit::uninit()])?;
        }
        let mut state = self.state.lock();
        let (mut taken, mut filled) = state.copy(buf);
        let mut outcome = Ok(1);
        if taken == Taken::All && filled == 0 {
            outcome = state.advance(socket);
            (taken, filled) = state.copy(buf);
            // Sends a response such as an alert. If the socket takes no more, it leaves with the
            // next output.
            let sent = state.flush(socket, libc::MSG_DONTWAIT);
            self.holds_output.store(matches!(sent, Ok(false)), Ordering::Release);
        }
        self.holds_input.store(state.holds_input(), Ordering::Release);
        match outcome {
            _ if filled > 0 || buf.is_empty() => Ok(filled),
            Err(e) => Err(e),
            Ok(0) => Ok(0),
            Ok(_) if taken == Taken::Ended => Ok(0),
            Ok(_) => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    /// Writes bytes; see [`send`](Self::send).
    pub(crate) fn write(&self, socket: &impl AsFd, buf: &[u8], flags: libc::c_int) -> io::Result<usize> {
        self.seal(socket, flags, |state| {
            let buf = &buf[..buf.len().min(MAX_SEAL)];
            state.connection.writer().write(buf)
        })
    }

    /// Sends earlier output, then accepts the bytes that `fill` writes and sends as many as
    /// possible.
    fn seal(
        &self,
        socket: &impl AsFd,
        flags: libc::c_int,
        fill: impl FnOnce(&mut State) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut state = self.state.lock();
        let sent = state.flush(socket, flags).and_then(|sent| match sent {
            true => fill(&mut state),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
        let outcome = sent.and_then(|count| state.flush(socket, flags).map(|_| count));
        let over = matches!(&outcome, Err(e) if e.kind() != io::ErrorKind::WouldBlock);
        self.holds_output.store(!over && state.connection.wants_write(), Ordering::Release);
        outcome
    }

    /// Sends accepted output. Returns false if the socket takes no more.
    pub(crate) fn flush(&self, socket: &impl AsFd) -> io::Result<bool> {
        if !self.holds_output() {
            return Ok(true);
        }
        let outcome = self.state.lock().flush(socket, 0);
        self.holds_output.store(matches!(outcome, Ok(false)), Ordering::Release);
        outcome
    }

    /// Accepts at most [`MAX_SEAL`] bytes and sends as many as the socket takes.
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) means that nothing was accepted, because earlier
    /// output still waits.
    ///
    /// # Safety
    /// Every vector is readable for its length. Other threads may write to it concurrently.
    pub(crate) unsafe fn send(&self, socket: &impl AsFd, vectors: &[IoVec]) -> io::Result<usize> {
        self.seal(socket, 0, |state| {
            state.clear.resize(RECORD, 0);
            let (mut filled, mut count) = (0, 0);
            let mut vectors = vectors.iter().copied();
            let mut next = vectors.next();
            while let Some(mut vector) = next.take() {
                let room = (state.clear.len() - filled).min(MAX_SEAL - count);
                let len = vector.len().min(room);
                // SAFETY: the caller guarantees that the vector is readable, and `clear` has space
                // for `len` bytes.
                unsafe { mapping::copy(vector.ptr(), state.clear.as_mut_ptr().add(filled), len) };
                filled += len;
                count += len;
                vector.skip(len);
                next = if vector.len() > 0 { Some(vector) } else { vectors.next() };
                let full = filled == state.clear.len() || count == MAX_SEAL;
                if full || next.is_none() {
                    state.connection.writer().write_all(&state.clear[..filled])?;
                    filled = 0;
                }
                if count == MAX_SEAL {
                    break;
                }
            }
            Ok(count)
        })
    }

    /// Receives available bytes until the vectors are full, the socket is empty or the budget is
    /// used up. `Ok(0)` means the end of the stream.
    ///
    /// # Safety
    /// Every vector is writable for its length, and no other code depends on the bytes.
    pub(crate) unsafe fn receive(&self, socket: &impl AsFd, vectors: &[IoVec]) -> io::Result<usize> {
        let mut state = self.state.lock();
        let mut vectors = vectors.iter().copied();
        let mut next = vectors.next();
        let (mut received, mut budget) = (0, READ_BUDGET);
        let outcome = loop {
            let taken = state.take(|bytes| {
                let mut used = 0;
                while let Some(vector) = &mut next
                    && used < bytes.len()
                {
                    let len = vector.len().min(bytes.len() - used);
                    // SAFETY: the caller guarantees that the vector is writable, and the source is
                    // a buffer of the connection.
                    unsafe { mapping::copy(bytes[used..].as_ptr(), vector.ptr(), len) };
                    vector.skip(len);
                    used += len;
                    if vector.len() == 0 {
                        next = vectors.next();
                    }
                }
                received += used;
                used
            });
            if next.is_none() || taken == Taken::Ended || budget == 0 {
                break Ok(received);
            }
            match state.advance(socket) {
                Ok(0) => break Ok(received),
                Ok(count) => budget = budget.saturating_sub(count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if received > 0 => break Ok(received),
                Err(e) => {
                    // Sends an alert with the reason to the peer.
                    let _ = state.flush(socket, libc::MSG_DONTWAIT);
                    break Err(e);
                }
            }
        };
        self.holds_input.store(state.holds_input(), Ordering::Release);
        match outcome {
            // Only empty records arrived; more input may follow.
            Ok(0) if budget == 0 => Err(io::ErrorKind::WouldBlock.into()),
            outcome => outcome,
        }
    }
}
