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

impl QpState {
    /// Returns the state with this number, as of `state as u8`. Other numbers count as `Err`.
    #[inline]
    pub(crate) fn of(number: u8) -> QpState {
        match number {
            n if n == QpState::Reset as u8 => QpState::Reset,
            n if n == QpState::Init as u8 => QpState::Init,
            n if n == QpState::Rtr as u8 => QpState::Rtr,
            n if n == QpState::Rts as u8 => QpState::Rts,
            _ => QpState::Err,
        }
    }
}
