//! The host's end of sessions: listening, admission, queue pairs, and the end of a session.

mod accept;
mod builder;
mod host_session;
mod listener;
mod peer;
mod pending_connections;
mod queue_pairs;
mod session_terminator;
mod session_thread;
mod stack;
mod state;

pub use self::builder::{Host, HostHandle};
pub use self::peer::{Export, Heartbeat, Peer, PeerProcess, Service};
pub use self::session_terminator::SessionTerminator;
pub use self::state::Fencing;
