//! Calls by remote fetching (RFP, the paradigm of the Jakiro paper).
//!
//! Instead the host may WRITE the answer to memory of the client ([`reply_memory`]).
//!
//! The client WRITEs its request into its own memory at the host. The host polls that memory and
//! writes the answer beside the request, without a post. The client READs the answer.
//!
//! If no answer arrives within a budget of polls ([`poll_budget`]), the client *notifies* the host:
//! it sends an ordinary message. The host answers a notification by message, so the client can
//! sleep until then. The memory belongs to one session, in a protection domain of its own.
//!
//! # Concurrency
//! [`client`] and [`slot_access`] run on callers' threads, [`host`] and [`session_poller`] on
//! those of the call server. [`layout`] is pure code.

mod client;
mod fetch_size;
mod host;
mod layout;
mod poll_budget;
mod read_delay;
mod reply_memory;
mod session_poller;
mod slot_access;

pub(crate) use client::{FetchClient, Stage};
pub(crate) use fetch_size::FetchSize;
pub(crate) use host::HostSlots;
pub(in crate::rpc) use host::{AnswerWay, NotificationAction};
pub(in crate::rpc) use layout::Kind;
#[cfg(feature = "fuzzing")]
pub(crate) use layout::MEMORY;
use poll_budget::PollBudget;
use read_delay::ReadDelay;
pub(crate) use reply_memory::{ReplyMemory, ReplyWriter, WRITER_DEPTH};
pub(crate) use session_poller::{BetweenRounds, PollState, PollTime, PolledSession, SessionPoller};
pub(crate) use slot_access::OneSided;

#[cfg(all(test, not(loom)))]
mod tests;
