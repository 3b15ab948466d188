//! The eight-byte header of every message of the call protocol.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::limits::CALL_SLOTS;

/// Length of an encoded header, in bytes.
pub(crate) const HEADER: usize = 8;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// A call, a reply, or the acknowledgement of a deferred reply.
    Plain = 0,
    /// Host to client: the reply follows on the other queue pair, under the call's number.
    Deferred = 1,
    /// Host to client: the service has given up the call without a reply.
    Unanswered = 2,
    /// Client to host: the request of the call with this number is in memory, and the client waits
    /// for a message.
    Notification = 3,
    /// Host to client, after a notification: the answer is in memory.
    InMemory = 4,
    /// Host to client: the service has refused the call. The reason follows.
    Rejected = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Slot of a call or of a deferred reply.
    pub slot: usize,
    pub kind: Kind,
    /// Number of a call whose reply may be deferred; 0 for a call that keeps its slot. In a
    /// notification, the number of the call in its slot.
    pub number: u32,
}

impl Header {
    /// Returns the header of an ordinary call and of its reply.
    pub(crate) fn plain(slot: usize) -> Header {
        Header { slot, kind: Kind::Plain, number: 0 }
    }

    pub(crate) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&(self.slot as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns `None` for bytes that no peer may send.
    pub(crate) fn decode(bytes: [u8; HEADER]) -> Option<Header> {
        let [s0, s1, k0, k1, number @ ..] = bytes;
        let slot = usize::from(u16::from_le_bytes([s0, s1]));
        let kind = match u16::from_le_bytes([k0, k1]) {
            0 => Kind::Plain,
            1 => Kind::Deferred,
            2 => Kind::Unanswered,
            3 => Kind::Notification,
            4 => Kind::InMemory,
            5 => Kind::Rejected,
            _ => return None,
        };
        (slot < CALL_SLOTS).then_some(Header { slot, kind, number: u32::from_le_bytes(number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_headers_are_decoded_and_others_are_refused() {
        let kinds = [
            Kind::Plain,
            Kind::Deferred,
            Kind::Unanswered,
            Kind::Notification,
            Kind::InMemory,
            Kind::Rejected,
        ];
        for kind in kinds {
            let header = Header { slot: CALL_SLOTS - 1, kind, number: 0x0102_0304 };
            let bytes = header.encode();
            assert_eq!(bytes, [CALL_SLOTS as u8 - 1, 0, kind as u8, 0, 4, 3, 2, 1]);
            assert_eq!(Header::decode(bytes), Some(header));
        }
        assert_eq!(Header::decode(Header::plain(CALL_SLOTS).encode()), None);
        assert_eq!(Header::decode([0, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode([0, 0, 6, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode([0, 0, 0, 1, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode([0xff; HEADER]), None);
    }
}
