//! The other nodes: sessions to them, leases, and which of them are lost.

pub(crate) mod membership;
pub(crate) mod peer;
pub(crate) mod roster;
pub(crate) mod watch;
