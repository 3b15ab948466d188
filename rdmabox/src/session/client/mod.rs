//! The client's end of a session: connecting, requests and calls.

mod async_one_sided;
mod calls;
mod checks;
mod connect;
mod deferred_qp;
mod one_sided;
mod options;
mod qp_connector;
mod session;
mod transfer;

pub use self::calls::PendingCall;
pub use self::one_sided::{Op, across};
pub use self::options::{CallsBy, CallsByError, SessionBuilder, SessionOptions};
pub use self::session::Session;
pub use self::transfer::{Pending, Transfer, wait_all, wait_any};
