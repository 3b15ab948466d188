//! The operations on the server that the client needs, as a trait that tests can implement.
//!
//! A [`Place`] names the server's memory. [`AttachedSession`](attached_session::AttachedSession)
//! translates it to an address of its session.
//!
//! [`Records`](records::Records) and [`Checksums`](checksums::Checksums) are the server's memory as
//! the client sees it.
//!
//! # Concurrency
//! Any number of threads call an implementation. Every call returns within a bounded time, except
//! one that [can be cancelled](ReplyWait::Cancellable).

pub(crate) mod address;
pub(crate) mod attached_session;
pub(crate) mod checksums;
pub(crate) mod clock;
pub(crate) mod final_loss;
pub(crate) mod kept_state;
pub(crate) mod messages;
pub(crate) mod operation;
pub(crate) mod receive_buffer;
pub(crate) mod records;
mod stores;

use std::{fmt, sync::Arc, time::Instant};

use rdmabox::{Cancel, Memory, RequestError, Until, stats::Histogram};
use rfs_proto::record;

use crate::remote::{
    address::{Epoch, Place, Region, RegionBounds},
    operation::{Access, Extend, Op, Ops, Transfer},
};

/// The rules for one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions<'c> {
    /// True if the request must take effect at most once.
    ///
    /// A remote that makes several sessions one after the other marks the request, so that the
    /// server recognizes a repetition.
    pub once: bool,
    /// The [epoch](Epochs) in which alone the request may be carried out, if there is one.
    pub epoch: Option<Epoch>,
    /// How the call waits for its reply.
    pub wait: ReplyWait<'c>,
}

/// How a call waits for its reply.
#[derive(Clone, Copy, Debug, Default)]
pub enum ReplyWait<'c> {
    /// The call blocks within the session's timeouts.
    #[default]
    Bounded,
    /// The call blocks until the session ends or this is cancelled.
    Cancellable(&'c Cancel),
    /// The call only sends the request, which takes effect at most once. The caller gets no reply.
    /// The server may carry the request out after a later request.
    None,
}

/// The epochs of a remote, and its repetitions.
///
/// An epoch begins with each loss of this mount's state at the server. Layouts and places of an
/// earlier epoch are void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// The number of times that the server has lost the state of this mount.
    pub newest: Epoch,
    /// The epoch of the session in use, or of the last one. It rises to a new epoch only when all
    /// state of that epoch has been reclaimed.
    pub in_use: Epoch,
    /// How many one-sided operations may have been carried out more than once so far.
    pub repeats: u64,
}

/// The state of a remote, for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// False once the session has ended and no reconnect follows.
    pub is_connected: bool,
    /// Time of the loss of the session, while a reconnect is in progress.
    pub lost_since: Option<Instant>,
    /// Reason why no reconnect can follow, if the server is the cause.
    pub final_loss: Option<String>,
    /// Description of the transport.
    pub transport: String,
    /// Counters by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Latencies by kind of request: read, write, atomic and call.
    pub latencies: Vec<(&'static str, Histogram)>,
}

/// Calls and one-sided operations on one peer. [`rdmabox::Session`] documents each.
///
/// A place of another epoch than that of the session is refused with Disconnected. A remote with a
/// single session has a single epoch.
pub trait Remote: Send + Sync + fmt::Debug {
    /// Sends `request` and fills `reply`, except with [`ReplyWait::None`].
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
        epoch: Epoch,
        requests: &[Vec<u8>],
        replies: &mut Vec<Vec<u8>>,
    ) -> Result<(), RequestError> {
        let options = CallOptions { epoch: Some(epoch), ..CallOptions::default() };
        replies.resize_with(requests.len(), Vec::new);
        requests.iter().zip(replies).try_for_each(|(request, reply)| self.call(request, reply, options))
    }

    /// Blocks until the server has answered all calls [without a wait](ReplyWait::None).
    fn finish_calls(&self) -> Result<(), RequestError> {
        Ok(())
    }

    /// Carries out one-sided steps. Returns when all bytes are in place.
    fn access(&self, access: &mut Access<'_, '_>) -> Result<(), RequestError>;

    /// Returns true if there is a session to a store, so that a transfer there can start without
    /// blocking.
    fn has_session_to(&self, _store: u16) -> bool {
        false
    }

    /// Starts reads, writes and lists, in one batch. A transfer of a store
    /// [without a session](Self::has_session_to) fails.
    ///
    /// With `until`, may then poll completions of all threads on this thread and run their
    /// callbacks. Polling ends when `until` holds, or after some milliseconds.
    fn start(&self, transfers: Vec<Transfer>, _until: Option<Until>) {
        for transfer in transfers {
            match transfer {
                Transfer::Read(place, len, done) => {
                    let mut bytes = vec![0; len];
                    let result = self.read(&mut [(place, &mut bytes)]);
                    done(result.map(|()| &bytes[..]));
                }
                Transfer::Write(place, data, done) => {
                    let result = self.write(&[(place, &data)]);
                    done(result, data);
                }
                Transfer::Extend(list, done) => {
                    let (mut old, mut raw) = (0, [0; record::LEN]);
                    let Extend { target, data, size_word, from, to, record } = list;
                    let mut ops = Ops::new();
                    ops.extend(target.map(|place| Op::Write { place, data: &data }));
                    ops.push(Op::CompareSwap { place: size_word, compare: from, swap: to, old: &mut old });
                    ops.push(Op::Read { place: record, out: &mut raw });
                    let result = self.execute(&mut ops);
                    drop(ops);
                    done(result.map(|()| (old, raw)), data);
                }
                Transfer::Traced(request, transfer) => {
                    let _scope = request.enter();
                    self.start(vec![*transfer], None);
                }
            }
        }
    }

    /// Returns the local mapping of a region, and its offset there, if the provider maps it.
    fn map(&self, _region: Region) -> Option<(Arc<Memory>, usize)> {
        None
    }

    /// Returns the epochs of the sessions, and the number of repetitions.
    fn epochs(&self) -> Epochs {
        Epochs::default()
    }

    /// Blocks until there is a session, if a reconnect is in progress. Mapped memory is the
    /// server's memory when this returns.
    fn ready(&self) -> Result<(), RequestError> {
        if self.status().is_connected { Ok(()) } else { Err(RequestError::Disconnected) }
    }

    /// Returns the state of the remote.
    fn status(&self) -> Status;

    /// Ends the session.
    fn close(&self) {}
}

/// The kinds of [`Access`] by name.
pub(crate) trait RemoteExt: Remote {
    /// Writes independent parts. Returns when all are in place.
    fn write(&self, parts: &[(Place, &[u8])]) -> Result<(), RequestError> {
        self.access(&mut Access::Write(parts))
    }

    /// Reads independent parts.
    fn read(&self, parts: &mut [(Place, &mut [u8])]) -> Result<(), RequestError> {
        self.access(&mut Access::Read(parts))
    }

    /// Executes a list in order.
    fn execute(&self, ops: &mut [Op<'_>]) -> Result<(), RequestError> {
        self.access(&mut Access::List(ops))
    }
}

impl<R: Remote + ?Sized> RemoteExt for R {}

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
    pub(crate) fn of(remote: &dyn Remote, RegionBounds { region, len }: RegionBounds) -> Option<Mapped> {
        let (memory, offset) = remote.map(region)?;
        let end = offset.checked_add(usize::try_from(len).ok()?)?;
        (end <= memory.len() && offset.is_multiple_of(8)).then_some(Mapped { memory, offset })
    }
}
