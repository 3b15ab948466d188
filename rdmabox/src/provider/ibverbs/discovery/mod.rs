//! Devices, ports and addresses as values, and the selection among them.

mod decode;
mod info;
pub(crate) mod select;
pub(crate) mod sysfs;

pub use self::decode::{AtomicCap, Gid, GidType, Guid, LinkLayer, NodeType, PortState, Transport, mtu_bytes};
pub use self::info::{DeviceDetails, DeviceInfo, GidEntry, PortInfo};
