//! The eight bytes in front of every message of the call protocol. Pure.

use super::CALL_SLOTS;

/// Length of an encoded header.
pub(super) const HEADER: usize = 8;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    /// A call, the reply to one, or the word that a late reply has been taken.
    Plain = 0,
    /// From a host: the reply comes later, on the other queue pair, under the call's number.
    Deferred = 1,
    /// From a host: the service has given up the call without a reply.
    Unanswered = 2,
    /// From a client: it has written the request of the call with this number, and waits for the answer as a message.
    Ring = 3,
    /// From a host that was rung: the answer is in memory.
    InMemory = 4,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The slot whose message this is: of a call, or of a late reply.
    pub slot: usize,
    pub kind: Kind,
    /// The number under which the reply may come later; zero for a call that keeps its slot until it has its reply. That of
    /// the call in its slot, in a ring.
    pub number: u32,
}

impl Header {
    /// The header of an ordinary call, and of its reply.
    pub(super) fn plain(slot: usize) -> Header {
        Header { slot, kind: Kind::Plain, number: 0 }
    }

    pub(super) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&(self.slot as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// `None` for what no peer may send.
    pub(super) fn decode(bytes: [u8; HEADER]) -> Option<Header> {
        let [s0, s1, k0, k1, number @ ..] = bytes;
        let slot = usize::from(u16::from_le_bytes([s0, s1]));
        let kind = match u16::from_le_bytes([k0, k1]) {
            0 => Kind::Plain,
            1 => Kind::Deferred,
            2 => Kind::Unanswered,
            3 => Kind::Ring,
            4 => Kind::InMemory,
            _ => return None,
        };
        (slot < CALL_SLOTS).then_some(Header { slot, kind, number: u32::from_le_bytes(number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_understood_and_others_are_not() {
        for kind in [Kind::Plain, Kind::Deferred, Kind::Unanswered, Kind::Ring, Kind::InMemory] {
            let header = Header { slot: CALL_SLOTS - 1, kind, number: 0x0102_0304 };
            let bytes = header.encode();
            assert_eq!(bytes, [CALL_SLOTS as u8 - 1, 0, kind as u8, 0, 4, 3, 2, 1]);
            assert_eq!(Header::decode(bytes), Some(header));
        }
        assert_eq!(Header::decode(Header::plain(CALL_SLOTS).encode()), None);
        assert_eq!(Header::decode([0, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode([0, 0, 5, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode([0, 0, 0, 1, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode([0xff; HEADER]), None);
    }
}
