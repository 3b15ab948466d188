//! The states of a queue pair.

/// State of a queue pair (InfiniBand specification 10.3.1). Reliable connections do not use SQD
/// and SQE here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpState {
    /// Created; accepts no requests.
    Reset,
    /// Accepts receives.
    Init,
    /// Ready to receive (RTR).
    Rtr,
    /// Ready to send (RTS): connected.
    Rts,
    /// Broken: every posted request is flushed with
    /// [`WcStatus::WrFlushErr`](super::WcStatus::WrFlushErr).
    Err,
}
