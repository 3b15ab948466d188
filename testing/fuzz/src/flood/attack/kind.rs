//! The attacks, and their names.

use std::fmt;

/// An attack by one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Opens sessions with all queue pairs until the server refuses more, makes the server use all
    /// memory of each session, and holds them.
    SessionsHeld,
    /// Opens sessions and joins none of their queue pairs.
    SessionsUnmade,
    /// Joins streams to its sessions, and never completes their handshakes.
    JoinsStalled,
    /// Sends calls with long replies, and READs, and reads no reply.
    AnswersUnread,
    /// Sends descriptors of a file in a hung FUSE mount to a Unix socket.
    Descriptors,
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attack::SessionsHeld => "sessions-held",
            Attack::SessionsUnmade => "sessions-unmade",
            Attack::JoinsStalled => "joins-stalled",
            Attack::AnswersUnread => "answers-unread",
            Attack::Descriptors => "descriptors",
        })
    }
}

/// The attacks, in the order in which `rfs-flood` runs them.
pub const ATTACKS: [Attack; 5] = [
    Attack::SessionsHeld,
    Attack::SessionsUnmade,
    Attack::JoinsStalled,
    Attack::AnswersUnread,
    Attack::Descriptors,
];
