//! Parts of a session that the program must not see: its descriptors, its threads and its signals.

pub(crate) mod session_fds;
pub(crate) mod signals;
pub(crate) mod threads;
