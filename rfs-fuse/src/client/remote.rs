//! What the client needs of a session, as a trait, so that it can be tested without one.
//!
//! Implementations are called from any number of threads; every call but `call_waiting` returns within a bounded time.

use std::{fmt, sync::Arc};

use rdmabox::{Cancel, Memory, Op, RemoteAddr, RequestError, Session, Until};
use rfs_proto::RegionRef;

/// What is done with the bytes of a started read.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8], RequestError>) + Send>;

/// What is done when the bytes of a started write, which it gets back, are in place, or may not be.
pub type WriteDone = Box<dyn FnOnce(Result<(), RequestError>, Vec<u8>) + Send>;

/// Calls and one-sided operations on one peer. [`Session`] documents each.
pub trait Remote: Send + Sync + fmt::Debug {
    /// Sends `request` and fills `reply`.
    fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError>;
    /// As [`call`](Self::call), for a request that must not take effect twice: where the remote makes several sessions, one after the
    /// other, it is sent so that the server knows a repetition.
    fn call_once(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.call(request, reply)
    }
    /// Sends all requests, several at a time and in any order, in this [era](Self::era) only, and fills `replies` with those to each. They may be
    /// carried out more than once. Disconnected, and nothing was carried out since, if another era has begun.
    fn call_all(
        &self,
        era: u32,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        replies.resize_with(requests.len(), Vec::new);
        requests.iter().zip(replies).try_for_each(|(request, reply)| self.call_in(era, request, reply))
    }
    /// As [`call`](Self::call), in this [era](Self::era) only.
    fn call_in(&self, _era: u32, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.call(request, reply)
    }
    /// As [`call_once`](Self::call_once), in this [era](Self::era) only.
    fn call_once_in(&self, _era: u32, request: &[u8], reply: &mut Vec<u8>) -> Result<(), RequestError> {
        self.call_once(request, reply)
    }
    /// Sends `request` and does not wait for the reply, which is of no interest unless it is an error. It may be carried out after a
    /// later one.
    fn start_call(&self, request: &[u8]) -> Result<(), RequestError>;
    /// Waits until all calls that were started have been answered.
    fn finish_calls(&self) -> Result<(), RequestError>;
    /// As [`call`](Self::call), but waits for as long as the session lives, or until it is cancelled. Disconnected if it is not of this
    /// [era](Self::era), or another one begins.
    fn call_waiting(
        &self,
        era: u32,
        request: &[u8],
        reply: &mut Vec<u8>,
        cancel: &Cancel,
    ) -> Result<(), RequestError>;
    /// Writes independent pieces; returns when all are placed.
    fn write_vectored(&self, parts: &[(RemoteAddr, &[u8])]) -> Result<(), RequestError>;
    /// Reads independent pieces.
    fn read_vectored(&self, parts: &mut [(RemoteAddr, &mut [u8])]) -> Result<(), RequestError>;
    /// Starts a read of `len` bytes and has `done` run with them, on whichever thread finds them: it must be quick and must not
    /// block.
    fn read_then(&self, remote: RemoteAddr, len: usize, done: ReadDone) {
        let mut bytes = vec![0; len];
        let result = self.read_vectored(&mut [(remote, &mut bytes)]);
        done(result.map(|()| &bytes[..]));
    }
    /// Starts a write and has `done` run when it is over, as with [`read_then`](Self::read_then). One that has failed may still take effect until it
    /// has been repeated.
    fn write_then(&self, remote: RemoteAddr, data: Vec<u8>, done: WriteDone) {
        let result = self.write_vectored(&[(remote, &data)]);
        done(result, data);
    }
    /// Runs `start`, and may send what that starts ([`read_then`](Self::read_then), [`write_then`](Self::write_then)) when it is over, all at once.
    fn together(&self, start: &mut dyn FnMut()) {
        start();
    }
    /// Runs `start`, and may then stay to run the `done` of what was started, here or elsewhere, on this thread: as long as there is something under way, which others may have started
    /// meanwhile, or until something is done; though only for some milliseconds.
    fn serve(&self, _until: Until, start: &mut dyn FnMut()) {
        start();
    }
    /// Runs a list in order.
    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError>;
    /// The peer's memory in place, where that is possible.
    fn map(&self, remote: RemoteAddr, len: u64) -> Option<(Arc<Memory>, usize)>;
    /// How often all that was known of where bytes lie has become void. Keys of places count with it.
    fn era(&self) -> u32 {
        0
    }
    /// The era of the session that is used, or was last: when it is the next one, all that had to be done for that is done.
    fn era_in_use(&self) -> u32 {
        self.era()
    }
    /// How many one-sided operations may have been carried out more than once by now.
    fn repeats(&self) -> u64 {
        0
    }
    /// Waits until there is a session, if there is none now and may be one soon: what is mapped is then the server's.
    fn ready(&self) -> Result<(), RequestError> {
        if self.is_connected() { Ok(()) } else { Err(RequestError::Disconnected) }
    }
    /// False once the session is over, and no other one will take its place.
    fn is_connected(&self) -> bool;
    /// What it runs on, for people.
    fn description(&self) -> String;
    /// Counters by name.
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
        // Where the session's own memory is used up, any will do.
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

/// A remote region that is mapped here.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) memory: Arc<Memory>,
    /// Of the region's first byte, in `memory`.
    pub(crate) offset: usize,
}

impl Mapped {
    /// Maps a whole region, if the provider can and what it says holds the region.
    pub(crate) fn of(remote: &dyn Remote, region: &RegionRef) -> Option<Mapped> {
        let (memory, offset) = remote.map(RemoteAddr { addr: region.addr, rkey: region.rkey }, region.len)?;
        let end = offset.checked_add(usize::try_from(region.len).ok()?)?;
        (end <= memory.len() && offset.is_multiple_of(8)).then_some(Mapped { memory, offset })
    }
}

/// The address of `len` bytes at `offset` of a region, as it was in an era; `None` if they are not all inside.
pub(crate) fn at(region: &RegionRef, era: u32, offset: u64, len: u64) -> Option<RemoteAddr> {
    let inside = offset.checked_add(len).is_some_and(|end| end <= region.len);
    let addr = region.addr.checked_add(offset)?;
    inside.then_some(RemoteAddr { addr, rkey: region.rkey.wrapping_add(era) })
}
