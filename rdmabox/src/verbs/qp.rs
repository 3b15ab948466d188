//! Queue pairs (reliable connected).

use std::{net::TcpStream, os::unix::net::UnixStream, sync::Arc};

use super::{
    DeviceAttr,
    cq::{CompletionQueue, WcStatus},
    error::{PostError, VerbsError},
    mr::Access,
    wr::{DirectOp, RecvWr, RemoteAddr, SendWr},
};
use crate::{memory::Memory, tls::TlsStream};

/// State of a queue pair (spec 10.3.1; SQD and SQE are not used by reliable connections here).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Created; takes nothing.
    Reset,
    /// Takes receives.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send: connected.
    Rts,
    /// Broken: everything posted is flushed with [`WcStatus::WrFlushErr`].
    Err,
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Send work requests that may be outstanding. An unsignaled one counts until a later signaled one is polled.
    pub max_send_wr: u32,
    /// Receives that may be posted.
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
    /// These sizes, or the device's limit where that is less.
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
}

/// Who moves a queue pair's bytes where no hardware does. Ignored by hardware providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A thread of the device: the peer's one-sided operations run whatever this process does.
    Engine,
    /// Whoever polls or waits on the send completion queue: no other thread is woken for a completion, and the
    /// peer's one-sided operations run only while somebody does.
    Caller,
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where completed send work requests are reported.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Where completed receives are reported; may be the same.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Queue sizes.
    pub caps: QpCaps,
    /// Who moves the bytes.
    pub progress: Progress,
    /// Where a peer of this host hands its memory over, map it, and execute one-sided requests in the post. A side that makes none
    /// has no use for a mapping, and without one there is nothing that a peer could make it map; its one-sided requests
    /// are carried out by the peer, as they are over a network. Providers that map nothing ignore it.
    pub maps: bool,
}

/// The stream over which two queue pairs find each other. A provider uses it to exchange what it needs (an
/// address; memory handles) and keeps it: as the wire itself, or to learn of the peer's death.
#[derive(Debug)]
pub enum Rendezvous {
    /// Over the network.
    Tcp(TcpStream),
    /// Over the network, sealed. Only a provider whose data takes this way, too, connects over it.
    Tls(TlsStream),
    /// Inside one host.
    Unix(UnixStream),
}

/// A reliable connected queue pair. All methods may be called from any thread.
///
/// How requests fail, where the specification leaves a choice:
/// - a message longer than its receive: `LocLenErr` at the receiver, `RemInvReqErr` at the sender;
/// - a receive whose memory is not registered: `LocProtErr` at the receiver, `RemOpErr` at the sender;
/// - a peer that goes: the first outstanding request gets `RetryExcErr` or `WrFlushErr`, the others `WrFlushErr`; an
///   idle queue pair goes to Err by itself;
/// - a refused WRITE with immediate data consumes no receive.
///
/// A message that finds no receive waits for one; so does everything behind it.
pub trait QueuePair: Send + Sync + std::fmt::Debug {
    /// Number of this queue pair, unique in its device for the life of the process.
    fn qp_num(&self) -> u32;

    /// Current state.
    fn state(&self) -> QpState;

    /// The sizes it has; at least those asked for.
    fn caps(&self) -> QpCaps;

    /// Connects to the queue pair at the other end of `stream`, which must be calling this too, and moves from
    /// Init to Rts. Blocks for at most `timeout`.
    ///
    /// # Errors
    /// [`VerbsError::State`] unless in Init; [`VerbsError::Protocol`], [`VerbsError::PeerGone`] and
    /// [`VerbsError::Os`] leave it in Err. A retry takes a new queue pair and a new stream.
    fn connect(&self, stream: Rendezvous, timeout: std::time::Duration) -> Result<(), VerbsError>;

    /// Posts a list of send work requests with one doorbell. Local memory belongs to the requests until their
    /// completion has been polled (for an unsignaled one: that of a later signaled one).
    ///
    /// A wrong local key or range is reported by a completion with `LocProtErr`, as a device does.
    ///
    /// # Errors
    /// See [`PostError`]: what came before the refused request is posted. In state Err posting succeeds and
    /// completes with `WrFlushErr`.
    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts a list of receives. Allowed from Init on.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Moves to Err: everything outstanding completes with `WrFlushErr`, the peer sees this side as gone. When
    /// it returns, no local memory is touched any more by what was flushed.
    fn to_error(&self);

    /// Returns false if a device did not stop after [`to_error`](Self::to_error): it may still read and write memory that its peer named.
    fn is_stopped(&self) -> bool {
        true
    }

    /// True if the peer's memory is mapped here: one-sided requests are executed by the post itself.
    fn executes_at_post(&self) -> bool {
        false
    }

    /// Executes one request at once, where the peer's memory is mapped: no slot of the send queue, no completion, and
    /// no staging copy, as `op` names the caller's own memory. Requests of several threads run side by side.
    ///
    /// It comes after everything whose post has returned, and before everything that is posted when it has returned.
    /// `None` if that cannot be had: the queue pair is not in Rts, the peer's memory is not mapped (or not yet), posted
    /// requests are still under way, or the request is too long. Nothing has happened then; post it instead.
    ///
    /// # Errors
    /// The status with which a posted request would have completed. As for that one, the queue pair has gone to Err.
    /// Memory of the caller has not been written to.
    fn execute_now(&self, op: &mut DirectOp<'_>) -> Option<Result<(), WcStatus>> {
        let _ = op;
        None
    }

    /// The peer's memory in place, if it is mapped here and allows `needs`: the mapping, and the offset of
    /// `remote` in it. A peer that takes its region back does not take the mapping back: check before each use.
    fn map_remote(&self, remote: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        let _ = (remote, len, needs);
        None
    }
}
