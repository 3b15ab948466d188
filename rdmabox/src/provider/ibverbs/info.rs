//! What is known of a device: plain data.

use super::{AtomicCap, Gid, GidType, Guid, IbverbsError, LinkLayer, NodeType, PortState, Transport};
use crate::verbs::DeviceAttr;

/// A device of this machine.
#[derive(Debug)]
pub struct DeviceInfo {
    /// The kernel's name for it, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// Its identifier.
    pub guid: Guid,
    /// What kind of node it is.
    pub node_type: NodeType,
    /// What transport it speaks.
    pub transport: Transport,
    /// What it said when it was opened; or why it could not be opened or did not answer (often a matter of
    /// permissions), which does not keep other devices from being described.
    pub details: Result<DeviceDetails, IbverbsError>,
}

/// What an open device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDetails {
    /// Version of its firmware.
    pub fw_version: String,
    /// Its limits. `max_msg_sz` is the smallest of its ports, and 0 without any port. `max_inline_data` is 0: a device
    /// tells that limit only when a queue pair is made. The scope of its atomics is in `atomics` below.
    pub attr: DeviceAttr,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// How atomic its atomics are.
    pub atomics: AtomicCap,
    /// Its ports, in order.
    pub ports: Vec<PortInfo>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number; the first is 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// What lies under the transport.
    pub link_layer: LinkLayer,
    /// Bytes of payload per packet at present; `None` if the device gives a number that means nothing.
    pub active_mtu: Option<u32>,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Its local identifier in an InfiniBand subnet; 0 where there is none, as on Ethernet.
    pub lid: u16,
    /// The entries of its GID table that are not zero, in order.
    pub gids: Vec<GidEntry>,
}

impl PortInfo {
    /// The first GID that reaches peers by IPv4 over RoCE v2, if there is one.
    #[must_use]
    pub fn ipv4_roce_v2(&self) -> Option<&GidEntry> {
        self.gids.iter().find(|entry| entry.is_ipv4_roce_v2())
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// The protocol that it stands for; `None` if the kernel does not say.
    pub gid_type: Option<GidType>,
}

impl GidEntry {
    /// Whether this entry is known to be IPv4 over RoCE v2. False if the kernel does not say.
    #[must_use]
    pub fn is_ipv4_roce_v2(&self) -> bool {
        self.gid_type == Some(GidType::RoceV2) && self.gid.ipv4().is_some()
    }
}
