//! RDMA devices of this machine, hardware and Soft-RoCE, through the system's libibverbs.
//!
//! [`Library::open`] loads `libibverbs.so.1`, and [`Library::devices`] lists the devices.
//! [`IbvDevice::open`] opens one as a [`Device`](crate::verbs::Device) with reliable connected
//! queue pairs. The C library is loaded at run time, so a program with this feature starts on
//! machines without it and reports the missing part. Only types are used from `ibverbs-sys`.
//!
//! - `discovery`: devices, their ports and GIDs as values, and the selection of one.
//! - `raw`: the C library and its objects.
//! - `objects`: the objects of the model, and the thread that watches a device.
//! - `connection`: how two queue pairs connect.
//!
//! # Concurrency
//! Any thread may use any object. A hung device can block calls into the kernel, but not posts
//! and polls on hardware. Each open device has one thread that watches it.

mod connection;
mod device;
mod discovery;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod objects;
mod raw;
#[cfg(test)]
mod tests;

pub use self::device::IbvDevice;
pub use self::discovery::{
    AtomicCap, DeviceDetails, DeviceInfo, Gid, GidEntry, GidType, Guid, LinkLayer, NodeType, PortInfo,
    PortState, Transport, mtu_bytes,
};
pub use self::error::IbverbsError;
pub use self::raw::Library;
