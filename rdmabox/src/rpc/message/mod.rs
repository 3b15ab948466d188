//! Messages of calls: their header, their buffers, and the queue of sends.

mod header;
mod limits;
mod messages;
mod outbox;

pub(crate) use self::header::{HEADER, Header, Kind};
pub use self::limits::MAX_CALL;
pub(crate) use self::limits::{CALL_SLOTS, LATE_DEPTH, LATE_SLOTS, MAX_WAITING, QUEUE_DEPTH, SEND_ID};
pub(crate) use self::messages::{Messages, memory_error};
pub(crate) use self::outbox::Outbox;
