//! The session operations that the client needs, as a trait that tests can implement.
//!
//! # Concurrency
//! Any number of threads call an implementation. Every call returns within a bounded time, except
//! one that [can be cancelled](CallOptions::cancel).

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

/// A read or a write to start.
pub enum Transfer {
    /// Reads so many bytes from an address. The thread that polls the completion runs the callback
    /// with the bytes, so the callback must be short and must not block.
    Read(RemoteAddr, usize, ReadDone),
    /// Writes bytes to an address, and runs the callback when the write has ended, as for a read. A
    /// failed write may still take effect until the same write has been repeated.
    Write(RemoteAddr, Vec<u8>, WriteDone),
}

/// The rules for one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions<'c> {
    /// True if the request must take effect at most once.
    ///
    /// A remote that makes several sessions one after the other marks the request, so that the
    /// server recognizes a repetition.
    pub once: bool,
    /// The [epoch](Epochs) in which alone the request may be carried out, if there is one.
    pub epoch: Option<u32>,
    /// Given if the call blocks until the session ends or this is cancelled. Other calls return
    /// within a bounded time.
    pub cancel: Option<&'c Cancel>,
}

/// The epochs of a remote, and its repetitions.
///
/// An epoch begins with each loss of this mount's state at the server. Layouts and addresses of an
/// earlier epoch are void. The keys of addresses count with the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// The number of times that the server has lost the state of this mount.
    pub newest: u32,
    /// The epoch of the session in use, or of the last one. It rises to a new epoch only when all
    /// state of that epoch has been reclaimed.
    pub in_use: u32,
    /// How many one-sided operations may have been carried out more than once so far.
    pub repeats: u64,
}

/// Calls and one-sided operations on one peer. [`Session`] documents each.
pub trait Remote: Send + Sync + fmt::Debug {
    /// Sends `request` and fills `reply`.
    ///
    /// # Errors
    /// Disconnected if another epoch has begun than the one of the options.
    fn call(&self, request: &[u8], reply: &mut Vec<u8>, options: CallOptions<'_>)
    -> Result<(), RequestError>;
    /// Sends all requests in this [epoch](Epochs) only and fills `replies` with one reply each.
    ///
    /// Several requests are in flight at a time, in any order. The server may carry each out more
    /// than once.
    ///
    /// # Errors
    /// Disconnected if another epoch has begun. The server has then carried out none of them since.
    fn call_all(
        &self,
        epoch: u32,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        let options = CallOptions { epoch: Some(epoch), ..CallOptions::default() };
        replies.resize_with(requests.len(), Vec::new);
        requests.iter().zip(replies).try_for_each(|(request, reply)| self.call(request, reply, options))
    }
    /// Sends `request` without waiting for the reply. The caller ignores the reply unless it is an
    /// error. The server may carry the request out after a later request.
    fn start_call(&self, request: &[u8]) -> Result<(), RequestError>;
    /// Blocks until the server has answered all started calls.
    fn finish_calls(&self) -> Result<(), RequestError>;
    /// Writes independent parts. Returns when all are in place.
    fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError>;
    /// Reads independent parts.
    fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError>;
    /// Starts a read or a write.
    fn start(&self, transfer: Transfer) {
        match transfer {
            Transfer::Read(remote, len, done) => {
                let mut bytes = vec![0; len];
                let result = self.read_vectored(&mut [(remote, &mut bytes)]);
                done(result.map(|()| &bytes[..]));
            }
            Transfer::Write(remote, data, done) => {
                let result = self.write_vectored(&[(remote, &data)]);
                done(result, data);
            }
        }
    }
    /// Runs `act`, which [starts](Self::start) transfers.
    ///
    /// Without `until`, may delay them until `act` returns, to send them in one batch. With
    /// `until`, may then poll completions of all threads on this thread and run their callbacks.
    /// Polling ends when `until` holds, or after some milliseconds.
    fn serve(&self, _until: Option<Until>, act: &mut dyn FnMut()) {
        act();
    }
    /// Executes a list in order.
    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError>;
    /// Returns the local mapping of peer memory, if the provider maps it.
    fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)>;
    /// Returns the epochs of the sessions, and the number of repetitions.
    fn epochs(&self) -> Epochs {
        Epochs::default()
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
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        match options.cancel {
            None => Session::call(self, request, reply),
            Some(cancel) => Session::call_waiting(self, request, reply, cancel),
        }
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

    fn start(&self, transfer: Transfer) {
        match transfer {
            // The session's own buffers come first; the heap serves when they are used up.
            Transfer::Read(remote, len, done) => match Session::buffer(self, len) {
                Some(out) => {
                    Session::read_then(self, remote, out, |result, out| done(result.map(|()| &out[..])));
                }
                None => {
                    let out = vec![0; len];
                    Session::read_then(self, remote, out, |result, out| done(result.map(|()| &out[..])));
                }
            },
            Transfer::Write(remote, data, done) => Session::write_then(self, remote, data, done),
        }
    }

    fn serve(&self, until: Option<Until>, act: &mut dyn FnMut()) {
        match until {
            None => Session::together(self, act),
            Some(until) => Session::serve(self, until, act),
        }
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

/// Returns the address of `len` bytes at `offset` of a region, with the key of an epoch. Returns
/// `None` if they are not all inside.
pub(crate) fn at(region: &RegionRef, epoch: u32, offset: u64, len: u64) -> Option<RemoteAddr> {
    let inside = offset.checked_add(len).is_some_and(|end| end <= region.len);
    let addr = region.addr.checked_add(offset)?;
    inside.then_some(RemoteAddr { addr, rkey: region.rkey.wrapping_add(epoch) })
}
