//! Rust types for the numbers and names of the verbs interface.
//!
//! Unknown values are kept instead of refused, because drivers and kernels add new ones. No I/O,
//! no locks, no clock.

use std::fmt;

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
}
