//! A device that fails now and then, on top of any other: for tests.
//!
//! What goes wrong is what real devices and networks do: completions are late, do not come, or say that a request failed; those of
//! one queue pair overtake those of another; a post takes a part of its list; memory cannot be registered; a queue pair
//! breaks; a connection ends in the middle of a frame. Nothing happens that the model forbids, so that whoever uses it has to
//! get along: completions of a queue pair stay in order, a request that did not happen is not reported as done, and after an
//! error a queue pair is in Err.
//!
//! - [`plan`]: what happens next, from a seed ([`chance`]). Pure.
//! - [`device`]: devices and protection domains; [`qp`]: posts and connections; [`cq`]: completions; [`relay`]: streams that are
//!   cut.
//!
//! The same seed makes the same decisions in the same order; which request they meet is up to the threads. Only in builds with the
//! feature `faults`. It touches no memory.

mod chance;
mod cq;
mod device;
mod plan;
mod qp;
mod relay;

pub use chance::{Chance, seeds};
pub use device::FaultDevice;
pub use plan::{Faults, Plan};
