//! The client's end of a session: connecting, requests and calls.

mod connect;
mod deferred_qp;
mod options;
mod qp_connector;
mod session;
mod transfer;

pub use self::options::{CallsBy, CallsByError, SessionOptions};
pub use self::session::{Op, Session};
pub use self::transfer::{NotWaited, Transfer};
