//! Fault injection on top of any device, for tests (feature `faults`).
//!
//! The faults are those of real devices and networks. Completions are late, lost, or report a
//! failure; completions of one queue pair overtake those of another. A post takes part of its list,
//! a registration is refused, a queue pair breaks, or a connection ends inside a frame. The device
//! can lack the atomics that the InfiniBand specification does not have. All rules of the model
//! hold. Completions of a queue pair stay in order, an unexecuted request never succeeds, and a
//! failed queue pair is in Err.
//!
//! `plan` makes the decisions from a seed (`chance`). `device` wraps devices and protection
//! domains, `qp` posts and connections, `cq` completions, and `relay` streams. Equal seeds
//! give equal decisions in equal order; threads determine which request a decision affects.

mod chance;
mod cq;
mod device;
mod plan;
mod qp;
mod relay;

pub use chance::{Chance, seeds};
pub use device::FaultDevice;
pub use plan::{Faults, Plan};
