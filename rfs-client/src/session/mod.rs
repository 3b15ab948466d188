//! Sessions of the client: attaching, reconnecting, reclaiming, detaching.

pub(crate) mod attach;
mod continuation;
pub(crate) mod detach;
pub(crate) mod handshake;
pub(crate) mod options;
pub(crate) mod reattach;
pub(crate) mod reclaim;
pub(crate) mod reconnect;
