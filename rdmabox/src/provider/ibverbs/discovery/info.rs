//! Descriptions of devices and ports as plain data.

use super::{
    decode::{AtomicCap, LinkLayer, NodeType, PortState, Transport},
    gid::{Gid, GidType, Guid},
};
use crate::{provider::ibverbs::error::IbverbsError, verbs::DeviceAttr};

/// A device of this machine.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Kernel name of the device, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// GUID of the device.
    pub guid: Guid,
    /// Kind of node.
    pub node_type: NodeType,
    /// Transport of the device.
    pub transport: Transport,
    /// Details of the open device, or the reason why it could not be opened or queried, often a
    /// missing permission. An error of one device does not hide other devices.
    pub details: Result<DeviceDetails, IbverbsError>,
}

/// Description of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceDetails {
    /// Firmware version.
    pub fw_version: String,
    /// Limits. `max_msg_sz` is the minimum over the ports, and 0 without ports. `max_inline_data`
    /// is 0, because a device reports this limit only for a queue pair. `atomics` below has the
    /// scope of atomics.
    pub attr: DeviceAttr,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Scope of atomics.
    pub atomics: AtomicCap,
    /// Ports in ascending order.
    pub ports: Vec<PortInfo>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Port number, counted from 1.
    pub number: u8,
    /// State of the port.
    pub state: PortState,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Current payload bytes per packet; `None` if the device reports an invalid number.
    pub active_mtu: Option<u32>,
    /// Maximum message length in bytes.
    pub max_msg_sz: u32,
    /// Local identifier in an InfiniBand subnet; 0 if there is none, as on Ethernet.
    pub lid: u16,
    /// Non-zero entries of the GID table, in order.
    pub gids: Vec<GidEntry>,
}

impl PortInfo {
    /// Returns the first GID for IPv4 over RoCE v2, if any.
    #[must_use]
    pub fn ipv4_roce_v2(&self) -> Option<&GidEntry> {
        self.gids.iter().find(|entry| entry.is_ipv4_roce_v2())
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    /// Address.
    pub gid: Gid,
    /// Protocol; `None` if the kernel does not report it.
    pub gid_type: Option<GidType>,
}

impl GidEntry {
    /// Returns true if the entry is known to be IPv4 over RoCE v2, false if the kernel does not
    /// report it.
    #[must_use]
    pub fn is_ipv4_roce_v2(&self) -> bool {
        self.gid_type == Some(GidType::RoceV2) && self.gid.ipv4().is_some()
    }
}
