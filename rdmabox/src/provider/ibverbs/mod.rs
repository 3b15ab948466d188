//! RDMA devices of this machine, hardware and Soft-RoCE, through the system's libibverbs.
//!
//! [`Library::open`] loads `libibverbs.so.1`; [`Library::devices`] tells what devices there are, with their
//! limits, their ports and the ports' GIDs.
//!
//! The C library is loaded when it is asked for, not linked: a program with this feature starts on a machine
//! without it, and is told then what is missing. The layout of the C structures comes from `ibverbs-sys`, of
//! which only types are used. That crate also asks the linker for libibverbs, which is why the library's
//! development package is needed to build; the linker drops the dependency again since no symbol is used.
//!
//! Threads: a [`Library`] may be used from any number of threads at once. Everything that it returns is plain
//! data. Its calls go to the kernel, and a device that hangs can hold them up.
//!
//! It finds and describes devices, and does nothing else: no memory is registered and no queue pair made, so
//! [`Device`](crate::verbs::Device) is not implemented here and no session runs over it.

mod api;
mod decode;
mod error;
mod info;
mod library;
mod sysfs;
#[cfg(test)]
mod tests;

pub use decode::{AtomicCap, Gid, GidType, Guid, LinkLayer, NodeType, PortState, Transport, mtu_bytes};
pub use error::IbverbsError;
pub use info::{DeviceDetails, DeviceInfo, GidEntry, PortInfo};
pub use library::Library;
