//! Devices, ports and addresses as values, and the selection among them.

mod decode;
mod gid;
mod info;
pub(crate) mod select;
pub(crate) mod sysfs;

pub use self::decode::{AtomicCap, LinkLayer, NodeType, PortState, Transport, mtu_bytes};
pub use self::gid::{Gid, GidType, Guid};
pub use self::info::{DeviceDetails, DeviceInfo, GidEntry, PortInfo};
