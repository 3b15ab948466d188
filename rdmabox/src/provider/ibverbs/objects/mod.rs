//! The objects of the verbs model on an open device.
//!
//! Queue pairs are built from `lists` (work requests), `ring` (queue slots) and `status`
//! (completions). `watch` and `events` report failures of the device.

mod core_state;
mod cq;
mod events;
mod lists;
mod pd;
mod qp;
mod ring;
mod status;
mod watch;

pub(crate) use self::core_state::Core;
pub(crate) use self::cq::IbvCq;
pub(crate) use self::pd::IbvPd;
pub(crate) use self::watch::{Watch, Watcher};
