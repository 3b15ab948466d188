//! The session operations that the client needs, as a trait that tests can implement.
//!
//! # Concurrency
//! Any number of threads call an implementation. Every call returns within a bounded time, except
//! `call_waiting`.

pub(crate) mod clock;
pub(crate) mod idempotent;
pub(crate) mod messages;

use std::{fmt, sync::Arc};

use rdmabox::{Cancel, Memory, Op, RemoteAddr, RequestError, Session, Until};
use rfs_proto::RegionRef;
use smallvec::SmallVec;

/// Callback that gets the bytes of a started read.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8], RequestError>) + Send>;

/// Callback that runs when a started write has ended, and gets the buffer back. After an error
/// the bytes may or may not be in place.
pub type WriteDone = Box<dyn FnOnce(Result<(), RequestError>, Vec<u8>) + Send>;

/// Calls and one-sided operations on one peer. [`Session`] documents each.
pub trait Remote: Send + Sync + fmt::Debug {
    /// Sends `request` and fills `reply`.
    fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError>;
    /// Sends a request that must take effect at most once.
    ///
    /// A remote that makes several sessions one after the other marks the request, so that the
    /// server recognizes a repetition.
    fn call_once(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.call(request, reply)
    }
    /// Sends all requests in this [era](Self::era) only and fills `replies` with one reply each.
    ///
    /// Several requests are in flight at a time, in any order. The server may carry each out more
    /// than once.
    ///
    /// # Errors
    /// Disconnected if another era has begun. The server has then carried out none of them since.
    fn call_all(
        &self,
        era: u32,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        replies.resize_with(requests.len(), Vec::new);
        requests.iter().zip(replies).try_for_each(|(request, reply)| self.call_in(era, request, reply))
    }
    /// Calls as [`call`](Self::call), in this [era](Self::era) only.
    fn call_in(&self, _era: u32, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.call(request, reply)
    }
    /// Calls as [`call_once`](Self::call_once), in this [era](Self::era) only.
    fn call_once_in(&self, _era: u32, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.call_once(request, reply)
    }
    /// Sends `request` without waiting for the reply. The caller ignores the reply unless it is an
    /// error. The server may carry the request out after a later request.
    fn start_call(&self, request: &[u8]) -> Result<(), RequestError>;
    /// Blocks until the server has answered all started calls.
    fn finish_calls(&self) -> Result<(), RequestError>;
    /// Calls as [`call`](Self::call), but blocks until the session ends or `cancel` is cancelled.
    ///
    /// # Errors
    /// Disconnected if the session is of another [era](Self::era), or another era begins.
    fn call_waiting(
        &self,
        era: u32,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError>;
    /// Writes independent parts. Returns when all are in place.
    fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError>;
    /// Reads independent parts.
    fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError>;
    /// Starts a read of `len` bytes. The thread that polls the completion runs `done` with the
    /// bytes, so `done` must be short and must not block.
    fn read_then(&self, remote: RemoteAddr, len: usize, done: ReadDone) {
        let mut bytes = vec![0; len];
        let result = self.read_vectored(&mut [(remote, &mut bytes)]);
        done(result.map(|()| &bytes[..]));
    }
    /// Starts a write and runs `done` when it has ended, as [`read_then`](Self::read_then) does. A
    /// failed write may still take effect until the same write has been repeated.
    fn write_then(&self, remote: RemoteAddr, data: Vec<u8>, done: WriteDone) {
        let result = self.write_vectored(&[(remote, &data)]);
        done(result, data);
    }
    /// Runs `start`. May delay the operations that `start` starts ([`read_then`](Self::read_then),
    /// [`write_then`](Self::write_then)) until `start` returns, to send them in one batch.
    fn together(&self, start: &mut dyn FnMut()) {
        start();
    }
    /// Runs `start`, then may poll completions on this thread and run their `done` callbacks.
    ///
    /// Polling covers the operations of all threads. It ends when `until` holds, or after some
    /// milliseconds.
    fn serve(&self, _until: Until, start: &mut dyn FnMut()) {
        start();
    }
    /// Executes a list in order.
    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError>;
    /// Returns the local mapping of peer memory, if the provider maps it.
    fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)>;
    /// Returns the number of times that the server has lost the state of this mount.
    ///
    /// Each loss begins a new era. Layouts and addresses of an earlier era are void. The keys of
    /// `at` count with the era.
    fn era(&self) -> u32 {
        0
    }
    /// Returns the era of the session in use, or of the last one. It rises to a new era only when
    /// all state of that era has been reclaimed.
    fn era_in_use(&self) -> u32 {
        self.era()
    }
    /// Returns how many one-sided operations may have been carried out more than once so far.
    fn repeats(&self) -> u64 {
        0
    }
    /// Blocks until there is a session, if a reconnect is in progress. Mapped memory is the
    /// server's memory when this returns.
    fn ready(&self) -> Result<(), RequestError> {
        if self.is_connected() { Ok(()) } else { Err(RequestError::Disconnected) }
    }
    /// Returns false once the session has ended and no reconnect follows.
    fn is_connected(&self) -> bool;
    /// Describes the transport, for users.
    fn description(&self) -> String;
    /// Returns the counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Ends the session.
    fn close(&self);
}

impl Remote for Session {
    fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        Session::call(self, request, reply)
    }

    fn call_all(&self, _: u32, requests: &[Vec<u8>], replies: &mut Vec<Vec<u8>>) -> Result<(), RequestError> {
        Session::call_all(self, requests, replies)
    }

    fn start_call(&self, request: &[u8]) -> Result<(), RequestError> {
        Session::start_call(self, request)
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        Session::finish_calls(self)
    }

    fn call_waiting(
        &self,
        _: u32,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError> {
        Session::call_waiting(self, request, reply, cancel)
    }

    fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError> {
        match parts {
            [(remote, data)] => Session::write(self, *remote, data),
            _ => Session::write_vectored(self, parts),
        }
    }

    fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError> {
        match parts {
            [(remote, out)] => Session::read(self, *remote, out),
            _ => Session::read_vectored(self, parts),
        }
    }

    fn read_then(&self, remote: RemoteAddr, len: usize, done: ReadDone) {
        // The session's own buffers come first; the heap serves when they are used up.
        match Session::buffer(self, len) {
            Some(out) => Session::read_then(self, remote, out, |result, out| done(result.map(|()| &out[..]))),
            None => {
                let out = vec![0; len];
                Session::read_then(self, remote, out, |result, out| done(result.map(|()| &out[..])));
            }
        }
    }

    fn write_then(&self, remote: RemoteAddr, data: Vec<u8>, done: WriteDone) {
        Session::write_then(self, remote, data, done);
    }

    fn together(&self, start: &mut dyn FnMut()) {
        Session::together(self, start);
    }

    fn serve(&self, until: Until, start: &mut dyn FnMut()) {
        Session::serve(self, until, start);
    }

    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        Session::execute(self, ops)
    }

    fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)> {
        Session::map(self, remote, len)
    }

    fn is_connected(&self) -> bool {
        Session::is_connected(self)
    }

    fn description(&self) -> String {
        Session::description(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Session::stats(self).counters().collect()
    }

    fn close(&self) {
        Session::close(self);
    }
}

/// Steps that every session accepts in one list. Longer writes and reads place their bytes before
/// the list.
pub(crate) const LIST: usize = 32;

/// One list for the session.
pub(crate) type Ops<'a> = SmallVec<[Op<'a>; 8]>;

/// A remote region that is mapped in this process.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) memory: Arc<Memory>,
    /// Offset of the region's first byte in `memory`.
    pub(crate) offset: usize,
}

impl Mapped {
    /// Maps a whole region. Returns `None` if the provider cannot map it, or the mapping is too
    /// short.
    pub(crate) fn of(remote: &dyn Remote, region: &RegionRef) -> Option<Mapped> {
        let (memory, offset) = remote.map(RemoteAddr { addr: region.addr, rkey: region.rkey }, region.len)?;
        let end = offset.checked_add(usize::try_from(region.len).ok()?)?;
        (end <= memory.len() && offset.is_multiple_of(8)).then_some(Mapped { memory, offset })
    }
}

/// Returns the address of `len` bytes at `offset` of a region, with the key of an era. Returns
/// `None` if they are not all inside.
pub(crate) fn at(region: &RegionRef, era: u32, offset: u64, len: u64) -> Option<RemoteAddr> {
    let inside = offset.checked_add(len).is_some_and(|end| end <= region.len);
    let addr = region.addr.checked_add(offset)?;
    inside.then_some(RemoteAddr { addr, rkey: region.rkey.wrapping_add(era) })
}
