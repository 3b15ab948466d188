//! The stored reply of an exactly-once request.
//!
//! # Concurrency
//! Plain values.

use std::borrow::Cow;

use rfs_proto::{Layout, Opened, Reply};

use crate::coherence::recall_queue::Need;

/// The most extents in a stored reply. A client that gets fewer than the file has asks for the
/// rest.
const KEPT_EXTENTS: usize = 16;

/// The stored outcome of an exactly-once request.
#[derive(Clone, Debug)]
pub struct KeptReply {
    pub(crate) reply: Reply,
    /// The recalls that the reply waits for.
    pub(crate) needs: Vec<Need>,
    /// Whether the previous server stored it. Then the recalls that it waits for are unknown.
    pub(crate) before: bool,
}

impl KeptReply {
    /// Creates the outcome of a reply that the previous server has logged.
    pub(crate) fn of_previous(reply: Reply) -> KeptReply {
        KeptReply { reply, needs: Vec::new(), before: true }
    }
}

/// Returns a reply in the form in which it is stored and logged.
pub(crate) fn short(reply: &Reply) -> Cow<'_, Reply> {
    match reply {
        Reply::Opened(opened) if opened.layout.extents.len() > KEPT_EXTENTS => {
            let extents = opened.layout.extents[..KEPT_EXTENTS].to_vec();
            let layout = Layout { extents, complete: false, ..opened.layout };
            Cow::Owned(Reply::Opened(Opened { attr: opened.attr, layout }))
        }
        _ => Cow::Borrowed(reply),
    }
}
