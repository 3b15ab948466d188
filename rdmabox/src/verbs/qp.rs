//! Queue pairs (reliable connected).

use std::{net::TcpStream, os::unix::net::UnixStream, sync::Arc};

use super::{
    DeviceAttr,
    cq::{CompletionQueue, WcStatus},
    error::{PostError, PostErrorReason, VerbsError},
    mr::Access,
    qp_state::QpState,
    wr::{DirectOp, RecvWr, RemoteAddr, SendOp, SendWr},
};
use crate::{mapping::Memory, tls::TlsStream};

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpCaps {
    /// Outstanding send work requests. An unsignaled request occupies its slot until a later
    /// signaled request is polled.
    pub max_send_wr: u32,
    /// Posted receives.
    pub max_recv_wr: u32,
    /// Elements per send work request.
    pub max_send_sge: u32,
    /// Elements per receive.
    pub max_recv_sge: u32,
    /// Bytes per inline request.
    pub max_inline_data: u32,
}

impl Default for QpCaps {
    fn default() -> Self {
        QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 30, max_recv_sge: 4, max_inline_data: 220 }
    }
}

impl QpCaps {
    /// Returns these sizes, each reduced to the device's limit.
    #[must_use]
    pub fn within(self, attr: &DeviceAttr) -> QpCaps {
        QpCaps {
            max_send_wr: self.max_send_wr.min(attr.max_qp_wr),
            max_recv_wr: self.max_recv_wr.min(attr.max_qp_wr),
            max_send_sge: self.max_send_sge.min(attr.max_sge),
            max_recv_sge: self.max_recv_sge.min(attr.max_sge),
            max_inline_data: self.max_inline_data.min(attr.max_inline_data),
        }
    }

    /// Returns the reason to refuse a send for its size or its number of elements. `has_room` tells
    /// whether a slot of the queue is free. `max_msg_sz` is the device's limit of a message.
    #[inline]
    pub(crate) fn refuse_send(
        &self,
        has_room: bool,
        max_msg_sz: u64,
        wr: &SendWr<'_>,
    ) -> Option<PostErrorReason> {
        if !has_room {
            return Some(PostErrorReason::QueueFull { depth: self.max_send_wr });
        }
        let (asked, limit) = (wr.sges.len(), self.max_send_sge);
        if asked > limit as usize {
            return Some(PostErrorReason::TooManySges { asked, limit });
        }
        let asked = wr.byte_len();
        if asked > max_msg_sz {
            return Some(PostErrorReason::TooLong { asked, limit: max_msg_sz });
        }
        let asked = wr.inline?.len() as u64;
        let allowed = matches!(wr.op, SendOp::Send { .. } | SendOp::Write { .. }) && wr.sges.is_empty();
        let limit = if allowed { self.max_inline_data } else { 0 };
        (!allowed || asked > u64::from(limit)).then_some(PostErrorReason::Inline { asked, limit })
    }
}

/// Thread that moves the bytes of a queue pair on a software device. Hardware providers ignore
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// A thread of the device. The peer's one-sided operations run without the participation of
    /// this process.
    Engine,
    /// The thread that polls or waits on the send completion queue. No completion needs a thread
    /// switch, but the peer's one-sided operations run only while a thread polls or waits.
    Caller,
}

/// Parameters of a new queue pair.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpInit {
    /// Completion queue for send work requests.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Completion queue for receives; may equal `send_cq`.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Queue sizes.
    pub caps: QpCaps,
    /// Thread that moves the bytes.
    pub progress: Progress,
    /// Whether to map the memory that a peer on the same host passes, and to execute one-sided
    /// requests in the post. A side that issues no one-sided requests sets false. Then no peer can
    /// make it map memory. If it does issue a request, the peer executes the request, as over a
    /// network. Providers that map nothing ignore the flag.
    pub maps: bool,
}

impl QpInit {
    /// Returns parameters with default sizes, for a queue pair that the device's thread drives and
    /// that maps memory of its own host.
    pub fn new(send_cq: Arc<dyn CompletionQueue>, recv_cq: Arc<dyn CompletionQueue>) -> QpInit {
        QpInit { send_cq, recv_cq, caps: QpCaps::default(), progress: Progress::Engine, maps: true }
    }
}

/// Stream over which two queue pairs connect. The provider exchanges addresses or memory handles
/// over it and keeps it afterwards, either as the wire or to detect the peer's death.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rendezvous {
    /// A network connection.
    Tcp(TcpStream),
    /// A network connection with TLS. Only a provider that also sends its data over the stream
    /// accepts it.
    Tls(TlsStream),
    /// A connection within one host.
    Unix(UnixStream),
}

/// A reliable connected queue pair. Any thread may call any method.
///
/// The specification leaves these failures open; here they are:
/// - A message longer than its receive: `LocLenErr` at the receiver, `RemInvReqErr` at the
///   sender.
/// - A receive whose memory is not registered: `LocProtErr` at the receiver, `RemOpErr` at the
///   sender.
/// - A peer that disconnects: `RetryExcErr` or `WrFlushErr` for the first outstanding request,
///   `WrFlushErr` for the others. An idle queue pair moves to Err by itself.
/// - A refused WRITE with immediate data consumes no receive.
///
/// A message that finds no posted receive waits for one. Every request behind it waits too.
pub trait QueuePair: super::Sealed + Send + Sync + std::fmt::Debug {
    /// Returns the queue pair's number, which its device never reuses within the life of the
    /// process.
    fn qp_num(&self) -> u32;

    /// Returns the current state.
    fn state(&self) -> QpState;

    /// Returns the queue sizes, which are at least the requested sizes.
    fn caps(&self) -> QpCaps;

    /// Connects to the queue pair at the other end of `stream` and moves from Init to Rts. The peer
    /// must call this function at the same time. Blocks for at most `timeout`.
    ///
    /// # Errors
    /// [`VerbsError::State`] unless the queue pair is in Init. [`VerbsError::Protocol`],
    /// [`VerbsError::PeerGone`] and [`VerbsError::Os`] leave the queue pair in Err. A retry needs a
    /// new queue pair and a new stream.
    fn connect(&self, stream: Rendezvous, timeout: std::time::Duration) -> Result<(), VerbsError>;

    /// Posts a list of send work requests with one doorbell. The requests own their local memory
    /// until the caller has polled their completions. For an unsignaled request this is the
    /// completion of a later signaled request.
    ///
    /// A wrong local key or range causes a completion with `LocProtErr`, as on a hardware device.
    ///
    /// # Errors
    /// [`PostError`]: the requests before the refused request are posted. In state Err the post
    /// succeeds, and the requests complete with `WrFlushErr`.
    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts a list of receives, in state Init or later.
    ///
    /// # Errors
    /// See [`post_send`](Self::post_send).
    fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Moves to Err. Every outstanding request completes with `WrFlushErr`, and the peer sees this
    /// side as disconnected. After the return, flushed requests no longer access local memory.
    fn to_error(&self);

    /// Returns false if the device did not stop after [`to_error`](Self::to_error). It may then
    /// still access memory that its peer named.
    fn is_stopped(&self) -> bool {
        true
    }

    /// Returns true if the peer's memory is mapped, so that a post executes one-sided requests
    /// itself.
    fn executes_at_post(&self) -> bool {
        false
    }

    /// Returns true if the device processes the requests of this queue pair beside those of others.
    /// A large batch is then spread over several queue pairs.
    fn works_beside_others(&self) -> bool {
        true
    }

    /// Executes one request immediately if the peer's memory is mapped. The request takes no send
    /// queue slot, has no completion, and needs no staging copy, because `op` names the caller's
    /// own memory. Several threads may execute requests in parallel.
    ///
    /// The request is ordered after every post that returned before the call, and before every post
    /// that starts after the return. Returns `None` without any effect if that order is impossible.
    /// This is so if the queue pair is not in Rts, or the peer's memory is not mapped (yet). It is
    /// also so if posted requests are outstanding, or the request is too long. The caller then
    /// posts the request.
    ///
    /// # Errors
    /// The status with which a posted request would have completed. The queue pair has moved to
    /// Err, as for a posted request. The caller's memory was not written.
    fn execute_now(&self, op: &mut DirectOp<'_>) -> Option<Result<(), WcStatus>> {
        let _ = op;
        None
    }

    /// Returns false while the peer may execute requests on mapped memory that it began before the
    /// last [`revoke`](super::MemoryRegion::revoke) of a region. Only a peer that maps memory of
    /// this side takes time for it.
    fn is_fenced(&self) -> bool {
        true
    }

    /// Returns the mapping of the peer's memory and the offset of `remote` in it, if the memory is
    /// mapped and allows `needs`. The mapping stays valid when the peer deregisters its region, so
    /// the caller must check before each use.
    fn map_remote(&self, remote: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        let _ = (remote, len, needs);
        None
    }
}
