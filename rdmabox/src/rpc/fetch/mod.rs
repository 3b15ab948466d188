//! Calls by remote fetching (RFP, the remote fetching paradigm of the Jakiro paper): the client WRITEs its request into
//! memory of its own at the host, the host carries it out and answers into that memory, and the client READs the answer. The
//! host posts nothing.
//!
//! - [`layout`]: what lies where, and what is whole. Pure.
//! - [`reach`]: the client's way there: a mapping, or one-sided requests.
//! - [`client`]: a call; [`patience`]: for how long it looks for its answer. Then it rings, with an ordinary message, and
//!   sleeps until the host answers with one: no processor time goes by on slow calls, and no call is lost.
//! - [`host`]: the slots at the host; [`watch`]: which thread of the host looks at them, and how it goes to sleep.
//!
//! The memory belongs to one session: it is in a protection domain of its own, whose only queue pair is the session's.

mod client;
mod host;
mod layout;
mod patience;
mod reach;
mod watch;

pub(crate) use client::{FetchClient, Stage};
pub(crate) use host::HostSlots;
pub(in crate::rpc) use host::Rung;
pub(in crate::rpc) use layout::Kind as AnswerKind;
use patience::Patience;
pub(crate) use reach::OneSided;
pub(crate) use watch::{Between, Vigil, Watch, Watched};

#[cfg(all(test, not(loom)))]
mod tests;
