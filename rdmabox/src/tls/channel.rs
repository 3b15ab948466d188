//! The record layer of a connection: bytes of the stream in and out, and the socket below.
//!
//! rustls does the work; here is what it takes to have it under a queue pair, which gathers from memory that others write to and
//! scatters to such, on a socket that does not block. Bytes can be in here that the socket does not show: read and not taken
//! ([`Channel::holds_input`]), or taken and not sent ([`Channel::holds_output`]). Whoever waits for the socket has to ask for both
//! first. Both are bounded: [`WIDE`] bytes and one record of the one, [`MOST_AT_ONCE`] and what they grow by of the other.
//!
//! Threading: one lock for both directions, a leaf, held while records are sealed and opened, and during the calls of the socket,
//! but not while a reader waits on a socket that blocks.

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
use crate::{memory, provider::soft::IoVec};

/// Bytes read from the socket at once, in a handshake and for messages.
const NARROW: usize = 4 << 10;
/// The same for data.
const WIDE: usize = 64 << 10;
/// Bytes that are sealed before the socket is asked to take them.
const MOST_AT_ONCE: usize = 128 << 10;
/// Bytes of a record.
const RECORD: usize = 16 << 10;
/// Bytes read from the socket before others should have their turn.
const READ_BUDGET: usize = 1 << 20;
/// RFC 9266.
const LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// A connection's socket.
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

/// What the lock is for.
pub(super) struct State {
    connection: Connection,
    /// From the socket, and not yet seen by the connection: those from `start` to `end`.
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// A record before it is sealed: others may write to the memory that it comes from.
    clear: Vec<u8>,
    /// What came is nothing that can be believed.
    broken: Option<rustls::Error>,
}

/// How much of what was opened has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    All,
    Some,
    /// There will be no more.
    Ended,
}

impl State {
    pub(super) fn new(connection: Connection, heard: &[u8]) -> State {
        let mut raw = vec![0; NARROW];
        raw[..heard.len()].copy_from_slice(heard);
        State { connection, raw, start: 0, end: heard.len(), clear: Vec::new(), broken: None }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Sends what is sealed. False if the socket takes no more.
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

    /// Opens what has been read, or reads once and opens the first of that. How many bytes; 0 at the end.
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

    /// Gives away what is opened; `put` tells how much of it is taken.
    fn take(&mut self, mut put: impl FnMut(&[u8]) -> usize) -> Taken {
        let mut reader = self.connection.reader();
        loop {
            let (all, taken) = match reader.fill_buf() {
                Ok([]) => return Taken::Ended,
                Ok(bytes) => (bytes.len(), put(bytes)),
                // Nothing is there; an end without a word is the socket's to tell.
                Err(_) => return Taken::All,
            };
            reader.consume(taken);
            if taken < all {
                return Taken::Some;
            }
        }
    }

    /// The same, as far as `buf` goes, and how far that is.
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

    /// True if something can be heard without the socket: bytes, the end, or what is wrong.
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
        // What is in here is bounded by those who fill it.
        state.connection.set_buffer_limit(None);
        let binding =
            state.connection.export_keying_material([0; 32], LABEL, None).map_err(|e| protocol(&e))?;
        let holds_input = AtomicBool::new(state.holds_input());
        Ok(Channel { state: Mutex::new(state), binding, holds_input, holds_output: AtomicBool::new(false) })
    }

    pub(crate) fn binding(&self) -> &[u8; 32] {
        &self.binding
    }

    /// Makes room for data.
    pub(crate) fn widen(&self) {
        let mut state = self.state.lock();
        state.raw.resize(WIDE, 0);
    }

    /// True if something can be received that the socket does not show.
    pub(crate) fn holds_input(&self) -> bool {
        self.holds_input.load(Ordering::Acquire)
    }

    /// True if something waits for the socket that was sent.
    pub(crate) fn holds_output(&self) -> bool {
        self.holds_output.load(Ordering::Acquire)
    }

    /// Reads what there is; waits for the socket once at most, and is interrupted if that was not enough. For one reader at a time,
    /// whom no writer waits for.
    pub(crate) fn read(&self, socket: &impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
        if !self.holds_input() {
            // Without the lock.
            SockRef::from(socket).peek(&mut [MaybeUninit::uninit()])?;
        }
        let mut state = self.state.lock();
        let (mut taken, mut filled) = state.copy(buf);
        let mut outcome = Ok(1);
        if taken == Taken::All && filled == 0 {
            outcome = state.advance(socket);
            (taken, filled) = state.copy(buf);
            // An answer to what came, such as an alert: the socket has room for it, or it goes with the next bytes.
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

    /// Writes as [`send`](Self::send) does.
    pub(crate) fn write(&self, socket: &impl AsFd, buf: &[u8], flags: libc::c_int) -> io::Result<usize> {
        self.seal(socket, flags, |state| {
            let buf = &buf[..buf.len().min(MOST_AT_ONCE)];
            state.connection.writer().write(buf)
        })
    }

    /// Sends what was taken before, then takes what `fill` writes and sends of that what it can.
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

    /// Sends what waits in here. False if the socket takes no more.
    pub(crate) fn flush(&self, socket: &impl AsFd) -> io::Result<bool> {
        if !self.holds_output() {
            return Ok(true);
        }
        let outcome = self.state.lock().flush(socket, 0);
        self.holds_output.store(matches!(outcome, Ok(false)), Ordering::Release);
        outcome
    }

    /// Takes bytes to send, at most [`MOST_AT_ONCE`], and sends what the socket takes. With
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) nothing was taken, as what was taken before still waits.
    ///
    /// # Safety
    /// Every vector is readable for its length. Others may write there meanwhile.
    pub(crate) unsafe fn send(&self, socket: &impl AsFd, vectors: &[IoVec]) -> io::Result<usize> {
        self.seal(socket, 0, |state| {
            state.clear.resize(RECORD, 0);
            let (mut filled, mut count) = (0, 0);
            let mut vectors = vectors.iter().copied();
            let mut next = vectors.next();
            while let Some(mut vector) = next.take() {
                let room = (state.clear.len() - filled).min(MOST_AT_ONCE - count);
                let len = vector.len().min(room);
                // SAFETY: the vector is readable (the caller's promise), and `clear` has that much room there.
                unsafe { memory::copy(vector.ptr(), state.clear.as_mut_ptr().add(filled), len) };
                filled += len;
                count += len;
                vector.skip(len);
                next = if vector.len() > 0 { Some(vector) } else { vectors.next() };
                let full = filled == state.clear.len() || count == MOST_AT_ONCE;
                if full || next.is_none() {
                    state.connection.writer().write_all(&state.clear[..filled])?;
                    filled = 0;
                }
                if count == MOST_AT_ONCE {
                    break;
                }
            }
            Ok(count)
        })
    }

    /// Receives what there is, until the vectors are full, the socket is empty or others should have their turn. `Ok(0)` is the
    /// end of the stream.
    ///
    /// # Safety
    /// Every vector is writable for its length, and nobody else minds the bytes changing.
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
                    // SAFETY: the vector is writable (the caller's promise), and the bytes are in a buffer of the
                    // connection's own.
                    unsafe { memory::copy(bytes[used..].as_ptr(), vector.ptr(), len) };
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
                    // The other side hears why, if it still listens.
                    let _ = state.flush(socket, libc::MSG_DONTWAIT);
                    break Err(e);
                }
            }
        };
        self.holds_input.store(state.holds_input(), Ordering::Release);
        match outcome {
            // Nothing but records without bytes: there is more to look at.
            Ok(0) if budget == 0 => Err(io::ErrorKind::WouldBlock.into()),
            outcome => outcome,
        }
    }
}
