//! Rust types for the numbers and names of the verbs interface.
//!
//! Unknown values are kept instead of refused, because drivers and kernels add new ones. No I/O,
//! no locks, no clock.

use std::{fmt, net::Ipv4Addr};

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeType {
    /// InfiniBand channel adapter. RoCE devices and Soft-RoCE also report this kind.
    ChannelAdapter,
    /// InfiniBand switch.
    Switch,
    /// InfiniBand router.
    Router,
    /// iWARP network card.
    Rnic,
    /// Cisco usNIC.
    Usnic,
    /// Cisco usNIC over UDP.
    UsnicUdp,
    /// A device with its own transport, such as EFA.
    Unspecified,
    /// Any other number.
    Unknown(i32),
}

impl NodeType {
    /// Decodes `enum ibv_node_type`.
    #[must_use]
    pub fn from_raw(raw: i32) -> NodeType {
        match raw {
            1 => NodeType::ChannelAdapter,
            2 => NodeType::Switch,
            3 => NodeType::Router,
            4 => NodeType::Rnic,
            5 => NodeType::Usnic,
            6 => NodeType::UsnicUdp,
            7 => NodeType::Unspecified,
            other => NodeType::Unknown(other),
        }
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeType::ChannelAdapter => f.write_str("channel adapter"),
            NodeType::Switch => f.write_str("switch"),
            NodeType::Router => f.write_str("router"),
            NodeType::Rnic => f.write_str("RNIC"),
            NodeType::Usnic => f.write_str("usNIC"),
            NodeType::UsnicUdp => f.write_str("usNIC UDP"),
            NodeType::Unspecified => f.write_str("unspecified"),
            NodeType::Unknown(raw) => write!(f, "unknown ({raw})"),
        }
    }
}

/// Transport of a device. RoCE counts as InfiniBand; the link layer of the port distinguishes
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand transport, over InfiniBand or Ethernet.
    InfiniBand,
    /// iWARP.
    Iwarp,
    /// Cisco usNIC.
    Usnic,
    /// Cisco usNIC over UDP.
    UsnicUdp,
    /// A vendor-specific transport.
    Unspecified,
    /// Any other number.
    Unknown(i32),
}

impl Transport {
    /// Decodes `enum ibv_transport_type`.
    #[must_use]
    pub fn from_raw(raw: i32) -> Transport {
        match raw {
            0 => Transport::InfiniBand,
            1 => Transport::Iwarp,
            2 => Transport::Usnic,
            3 => Transport::UsnicUdp,
            4 => Transport::Unspecified,
            other => Transport::Unknown(other),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::InfiniBand => f.write_str("InfiniBand"),
            Transport::Iwarp => f.write_str("iWARP"),
            Transport::Usnic => f.write_str("usNIC"),
            Transport::UsnicUdp => f.write_str("usNIC UDP"),
            Transport::Unspecified => f.write_str("unspecified"),
            Transport::Unknown(raw) => write!(f, "unknown ({raw})"),
        }
    }
}

/// Scope within which a device's atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicCap {
    /// No atomics.
    None,
    /// Atomic among the queue pairs of the device.
    Hca,
    /// Atomic with respect to processors and other devices too.
    Global,
    /// Any other number.
    Unknown(u32),
}

impl AtomicCap {
    /// Decodes `enum ibv_atomic_cap`.
    #[must_use]
    pub fn from_raw(raw: u32) -> AtomicCap {
        match raw {
            0 => AtomicCap::None,
            1 => AtomicCap::Hca,
            2 => AtomicCap::Global,
            other => AtomicCap::Unknown(other),
        }
    }
}

impl fmt::Display for AtomicCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtomicCap::None => f.write_str("none"),
            AtomicCap::Hca => f.write_str("within the device"),
            AtomicCap::Global => f.write_str("global"),
            AtomicCap::Unknown(raw) => write!(f, "unknown ({raw})"),
        }
    }
}

/// Logical state of a port. Only an active port carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No state change; never the state of a port.
    Nop,
    /// No link.
    Down,
    /// Link present, not yet configured.
    Init,
    /// Configured, not yet active.
    Armed,
    /// Carries data.
    Active,
    /// Active, but the link has just failed.
    ActiveDefer,
    /// Any other number.
    Unknown(u32),
}

impl PortState {
    /// Decodes `enum ibv_port_state`.
    #[must_use]
    pub fn from_raw(raw: u32) -> PortState {
        match raw {
            0 => PortState::Nop,
            1 => PortState::Down,
            2 => PortState::Init,
            3 => PortState::Armed,
            4 => PortState::Active,
            5 => PortState::ActiveDefer,
            other => PortState::Unknown(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Nop => f.write_str("nop"),
            PortState::Down => f.write_str("down"),
            PortState::Init => f.write_str("init"),
            PortState::Armed => f.write_str("armed"),
            PortState::Active => f.write_str("active"),
            PortState::ActiveDefer => f.write_str("active, deferred"),
            PortState::Unknown(raw) => write!(f, "unknown ({raw})"),
        }
    }
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// The driver does not report it; old drivers mean InfiniBand.
    Unspecified,
    /// InfiniBand: peers are addressed by LID.
    InfiniBand,
    /// Ethernet (RoCE, iWARP): peers are addressed by GID.
    Ethernet,
    /// Any other number.
    Unknown(u8),
}

impl LinkLayer {
    /// Decodes `IBV_LINK_LAYER_*`.
    #[must_use]
    pub fn from_raw(raw: u8) -> LinkLayer {
        match raw {
            0 => LinkLayer::Unspecified,
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            other => LinkLayer::Unknown(other),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkLayer::Unspecified => f.write_str("unspecified"),
            LinkLayer::InfiniBand => f.write_str("InfiniBand"),
            LinkLayer::Ethernet => f.write_str("Ethernet"),
            LinkLayer::Unknown(raw) => write!(f, "unknown ({raw})"),
        }
    }
}

/// Returns the number of bytes of `enum ibv_mtu`, or `None` for an invalid number.
#[must_use]
pub fn mtu_bytes(raw: u32) -> Option<u32> {
    matches!(raw, 1..=5).then(|| 128 << raw)
}

/// A 64-bit GUID of a device.
// Exhaustive: the specification fixes the length, and so it does for a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [self.0 >> 48, self.0 >> 32, self.0 >> 16, self.0].map(|part| part & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

/// A port's 128-bit address in network order. The text form is the kernel's, which is never
/// abbreviated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns true if the table entry is empty.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Returns the IPv4 address that the GID contains, if any.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let separator = if i == 0 { "" } else { ":" };
            write!(f, "{separator}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

/// Protocol of an entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, or RoCE v1 (Ethernet frames without IP). The kernel has one name for both.
    IbOrRoceV1,
    /// RoCE v2 (UDP and IP).
    RoceV2,
    /// Any other name.
    Other(String),
}

impl GidType {
    /// Decodes the text of a file in `gid_attrs/types`. Returns `None` if it is empty.
    #[must_use]
    pub fn parse(text: &str) -> Option<GidType> {
        match text.trim() {
            "" => None,
            "IB/RoCE v1" => Some(GidType::IbOrRoceV1),
            "RoCE v2" => Some(GidType::RoceV2),
            other => Some(GidType::Other(other.to_owned())),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidType::IbOrRoceV1 => "IB/RoCE v1",
            GidType::RoceV2 => "RoCE v2",
            GidType::Other(name) => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enumerations_have_the_numbers_of_the_c_interface() {
        use ibverbs_sys as c;
        assert_eq!(NodeType::from_raw(c::IBV_NODE_CA), NodeType::ChannelAdapter);
        assert_eq!(NodeType::from_raw(c::IBV_NODE_RNIC), NodeType::Rnic);
        assert_eq!(NodeType::from_raw(c::IBV_NODE_UNSPECIFIED), NodeType::Unspecified);
        assert_eq!(NodeType::from_raw(c::IBV_NODE_UNKNOWN), NodeType::Unknown(-1));
        assert_eq!(Transport::from_raw(c::IBV_TRANSPORT_IB), Transport::InfiniBand);
        assert_eq!(Transport::from_raw(c::IBV_TRANSPORT_IWARP), Transport::Iwarp);
        assert_eq!(Transport::from_raw(c::IBV_TRANSPORT_UNSPECIFIED), Transport::Unspecified);
        assert_eq!(Transport::from_raw(c::IBV_TRANSPORT_UNKNOWN), Transport::Unknown(-1));
        assert_eq!(AtomicCap::from_raw(c::IBV_ATOMIC_NONE), AtomicCap::None);
        assert_eq!(AtomicCap::from_raw(c::IBV_ATOMIC_HCA), AtomicCap::Hca);
        assert_eq!(AtomicCap::from_raw(c::IBV_ATOMIC_GLOB), AtomicCap::Global);
        assert_eq!(PortState::from_raw(c::ibv_port_state::IBV_PORT_DOWN), PortState::Down);
        assert_eq!(PortState::from_raw(c::ibv_port_state::IBV_PORT_INIT), PortState::Init);
        assert_eq!(PortState::from_raw(c::ibv_port_state::IBV_PORT_ARMED), PortState::Armed);
        assert_eq!(PortState::from_raw(c::ibv_port_state::IBV_PORT_ACTIVE), PortState::Active);
        assert_eq!(PortState::from_raw(c::ibv_port_state::IBV_PORT_ACTIVE_DEFER), PortState::ActiveDefer);
        assert_eq!(PortState::from_raw(77), PortState::Unknown(77));
        assert_eq!(LinkLayer::from_raw(c::IBV_LINK_LAYER_UNSPECIFIED as u8), LinkLayer::Unspecified);
        assert_eq!(LinkLayer::from_raw(c::IBV_LINK_LAYER_INFINIBAND as u8), LinkLayer::InfiniBand);
        assert_eq!(LinkLayer::from_raw(c::IBV_LINK_LAYER_ETHERNET as u8), LinkLayer::Ethernet);
        assert_eq!(LinkLayer::from_raw(9).to_string(), "unknown (9)");
        assert_eq!(mtu_bytes(c::IBV_MTU_256), Some(256));
        assert_eq!(mtu_bytes(c::IBV_MTU_1024), Some(1024));
        assert_eq!(mtu_bytes(c::IBV_MTU_4096), Some(4096));
    }

    #[test]
    fn an_unknown_mtu_is_none() {
        assert_eq!(mtu_bytes(0), None);
        assert_eq!(mtu_bytes(6), None);
        assert_eq!(mtu_bytes(u32::MAX), None);
    }

    #[test]
    fn identifiers_are_written_as_the_kernel_writes_them() {
        assert_eq!(Guid(0x0002_c903_00a1_b2c3).to_string(), "0002:c903:00a1:b2c3");
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[15] = 1;
        let gid = Gid(link_local);
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:0000:0000:0000:0001");
        assert_eq!(gid.ipv4(), None);
        assert!(!gid.is_zero());
    }

    #[test]
    fn only_an_ipv4_mapped_gid_has_an_ipv4_address() {
        let mapped = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(mapped.ipv4(), Some(Ipv4Addr::new(192, 0, 2, 7)));
        assert_eq!(mapped.to_string(), "0000:0000:0000:0000:0000:ffff:c000:0207");
        assert_eq!(Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7]).ipv4(), None);
        assert!(Gid([0; 16]).is_zero());
        assert_eq!(Gid([0; 16]).ipv4(), None);
    }

    #[test]
    fn gid_types_are_parsed() {
        assert_eq!(GidType::parse("RoCE v2\n"), Some(GidType::RoceV2));
        assert_eq!(GidType::parse("IB/RoCE v1\n"), Some(GidType::IbOrRoceV1));
        assert_eq!(GidType::parse("RoCE v3"), Some(GidType::Other("RoCE v3".into())));
        assert_eq!(GidType::parse("\n"), None);
    }
}
