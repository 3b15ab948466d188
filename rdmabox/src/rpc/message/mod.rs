//! Messages of calls: their header, their buffers, the queue of sends, and refusals.

mod header;
mod limits;
mod messages;
mod outbox;

pub(crate) use self::header::{HEADER, Header, Kind};
pub use self::limits::MAX_CALL;
pub(crate) use self::limits::{
    CALL_SLOTS, DEFERRED_DEPTH, DEFERRED_SLOTS, MAX_REASON, MAX_WAITING, QUEUE_DEPTH, SEND_ID,
};
pub(crate) use self::messages::{Messages, memory_error};
pub(crate) use self::outbox::Outbox;
use crate::error::RequestError;

/// Returns the error of a call that the host has refused with these bytes. A host may send any
/// bytes, and the reason is usually logged.
pub(crate) fn rejection(reason: &[u8]) -> RequestError {
    let mut text = String::new();
    for c in String::from_utf8_lossy(reason).chars().take(MAX_REASON) {
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
    }
    RequestError::Rejected { reason: text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_reason_without_control_characters() {
        let reason = |bytes: &[u8]| match rejection(bytes) {
            RequestError::Rejected { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(b"no table 'x'"), "no table 'x'");
        assert_eq!(reason(b""), "");
        assert_eq!(reason("a\n\u{1b}[1mb\u{e9}".as_bytes()), "a\\n\\u{1b}[1mb\u{e9}");
        assert_eq!(reason(&[b'x', 0xff]), "x\u{fffd}");
        assert_eq!(reason(&[b'x'; MAX_CALL]).len(), MAX_REASON);
    }
}
