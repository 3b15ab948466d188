//! Whose bytes in flight count for the window.

use std::{fmt, str::FromStr};

/// Whose bytes in flight count for the window of a session.
///
/// The paper's window belongs to the card (section IV-A). With the scope of the device, all
/// sessions of this process with that scope on the same device count. Each of them has its own
/// window, which it compares with the bytes of all. Its share is the window divided by the sessions
/// with bytes in flight. While a session waits for room, no other one takes more than its share. A
/// session gets its share even if others hold the window, because their peers may be stopped. So
/// the sum may exceed the window by one share, and by one work request of each session.
///
/// Its text is `by-provider`, `session` or `device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowScope {
    /// The device over RDMA and on a modelled card. The session over shared memory and TCP, where
    /// no card has caches to exhaust.
    #[default]
    ByProvider,
    /// The session alone.
    Session,
    /// All sessions of this process on the device. Over shared memory and over TCP this is all
    /// sessions of the provider.
    Device,
}

impl WindowScope {
    /// Returns true if other sessions on the device count. `has_card` is true for an RDMA device
    /// and a modelled card.
    pub(crate) fn is_device(self, has_card: bool) -> bool {
        match self {
            WindowScope::ByProvider => has_card,
            WindowScope::Session => false,
            WindowScope::Device => true,
        }
    }
}

/// A text is no [`WindowScope`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no scope of a window: expected by-provider, session or device")]
pub struct ParseScopeError(String);

impl FromStr for WindowScope {
    type Err = ParseScopeError;

    fn from_str(text: &str) -> Result<WindowScope, ParseScopeError> {
        let all = [WindowScope::ByProvider, WindowScope::Session, WindowScope::Device];
        all.into_iter().find(|scope| scope.to_string() == text).ok_or_else(|| ParseScopeError(text.into()))
    }
}

impl fmt::Display for WindowScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WindowScope::ByProvider => "by-provider",
            WindowScope::Session => "session",
            WindowScope::Device => "device",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for scope in [WindowScope::ByProvider, WindowScope::Session, WindowScope::Device] {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        let error = "card".parse::<WindowScope>().expect_err("no scope").to_string();
        assert_eq!(error, "\"card\" is no scope of a window: expected by-provider, session or device");
    }
}
