//! The data that two queue pairs exchange before they connect, and the path derived from it.
//!
//! No I/O, no locks, no clock. The caller passes the random first packet number.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    byteorder::little_endian::{U16, U32},
};

use crate::provider::ibverbs::discovery::{Gid, GidEntry, GidType, LinkLayer, PortInfo};

pub(crate) const MAGIC: [u8; 8] = *b"rdmabxV\x01";
const VERSION: u32 = 1;

/// First bytes on a stream, by which each side recognizes the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Greeting {
    magic: [u8; 8],
    version: U32,
    length: U32,
}

impl Greeting {
    pub(crate) fn new() -> Greeting {
        Greeting { magic: MAGIC, version: VERSION.into(), length: (size_of::<Endpoint>() as u32).into() }
    }

    /// Checks that an [`Endpoint`] follows.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.magic != MAGIC {
            return Err("no RDMA queue pair at the other end".into());
        }
        if *self != Greeting::new() {
            return Err(format!("it has version {}, this side has {VERSION}", self.version.get()));
        }
        Ok(())
    }
}

/// Address and limits of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Endpoint {
    qp_num: U32,
    first_psn: U32,
    gid: [u8; 16],
    lid: U16,
    /// `enum ibv_mtu` of the port.
    mtu: u8,
    /// `IBV_LINK_LAYER_*`.
    link_layer: u8,
    /// Number of READs and atomics that this side can answer at once.
    max_dest_rd_atomic: u8,
    /// Whether the GID is RoCE v2: 1 no, 2 yes, 0 unknown.
    gid_kind: u8,
    reserved: U16,
}

/// Path from this side to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) remote_qp_num: u32,
    /// First packet numbers of the peer and of this side.
    pub(crate) remote_psn: u32,
    pub(crate) local_psn: u32,
    /// `enum ibv_mtu`: the smaller of both sides.
    pub(crate) mtu: u32,
    pub(crate) dlid: u16,
    /// Global routing: the peer's GID and the index of the local GID.
    pub(crate) global: Option<([u8; 16], u8)>,
    /// READs and atomics that this side may have outstanding, and that it may have to answer.
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
}

/// The local side of a path.
#[derive(Clone, Debug)]
pub(crate) struct Local<'a> {
    pub(crate) port: &'a PortInfo,
    pub(crate) gid: Option<&'a GidEntry>,
    /// True if the options select the GID.
    pub(crate) gid_is_chosen: bool,
    /// Limit of the device.
    pub(crate) max_rd_atomic: u8,
}

const PSN_BITS: u32 = 24;

impl Endpoint {
    pub(crate) fn new(local: &Local<'_>, qp_num: u32, random: u32) -> Endpoint {
        let kind = |entry: &GidEntry| match entry.gid_type {
            Some(GidType::RoceV2) => 2,
            Some(GidType::IbOrRoceV1) => 1,
            _ => 0,
        };
        Endpoint {
            qp_num: qp_num.into(),
            first_psn: (random & ((1 << PSN_BITS) - 1)).into(),
            gid: local.gid.map_or([0; 16], |entry| entry.gid.0),
            lid: local.port.lid.into(),
            mtu: mtu_code(local.port.active_mtu),
            link_layer: match local.port.link_layer {
                LinkLayer::InfiniBand => 1,
                LinkLayer::Ethernet => 2,
                LinkLayer::Unspecified => 0,
                LinkLayer::Unknown(raw) => raw,
            },
            max_dest_rd_atomic: local.max_rd_atomic,
            gid_kind: local.gid.map_or(0, kind),
            reserved: 0.into(),
        }
    }

    /// Returns the path from this side to `peer`.
    ///
    /// # Errors
    /// A message for users that describes the mismatch.
    pub(crate) fn path_to(&self, local: &Local<'_>, peer: &Endpoint) -> Result<Path, String> {
        let kind = |link_layer: u8| LinkLayer::from_raw(link_layer);
        let is_ethernet = |endpoint: &Endpoint| kind(endpoint.link_layer) == LinkLayer::Ethernet;
        if is_ethernet(self) != is_ethernet(peer) {
            return Err(format!(
                "this side's port is {}, the peer's is {}",
                kind(self.link_layer),
                kind(peer.link_layer)
            ));
        }
        if peer.qp_num.get() == 0 || peer.qp_num.get() >> PSN_BITS != 0 {
            return Err(format!("the peer says that its queue pair has number {}", peer.qp_num));
        }
        if !(1..=5).contains(&peer.mtu) {
            return Err(format!("the peer's port has no valid MTU (code {})", peer.mtu));
        }
        let theirs = Gid(peer.gid);
        if is_ethernet(self) && theirs.is_zero() {
            return Err(
                "the peer's GID is zero: its port has no address there; another may be chosen at the \
                        peer with --gid-index"
                    .into(),
            );
        }
        if is_ethernet(self) && self.gid_kind != 0 && peer.gid_kind != 0 && self.gid_kind != peer.gid_kind {
            let name = |kind| if kind == 2 { "RoCE v2" } else { "RoCE v1" };
            return Err(format!(
                "this side's GID {} is {}, the peer's {theirs} is {}: choose one of the same kind with --gid-index",
                Gid(self.gid),
                name(self.gid_kind),
                name(peer.gid_kind)
            ));
        }
        if !is_ethernet(self) && peer.lid.get() == 0 && theirs.is_zero() {
            return Err("the peer's port has neither a LID nor a GID".into());
        }
        // Within an InfiniBand subnet the LID suffices; routers and Ethernet need the GID.
        let needs_global = is_ethernet(self) || local.gid_is_chosen || peer.lid.get() == 0;
        let global = match local.gid {
            Some(entry) if needs_global && !theirs.is_zero() => {
                Some((peer.gid, u8::try_from(entry.index).map_err(|_| "GID index above 255".to_owned())?))
            }
            _ => None,
        };
        Ok(Path {
            remote_qp_num: peer.qp_num.get(),
            remote_psn: peer.first_psn.get() & ((1 << PSN_BITS) - 1),
            local_psn: self.first_psn.get(),
            mtu: self.mtu.min(peer.mtu).into(),
            dlid: if is_ethernet(self) { 0 } else { peer.lid.get() },
            global,
            max_rd_atomic: peer.max_dest_rd_atomic.min(local.max_rd_atomic),
            max_dest_rd_atomic: local.max_rd_atomic,
        })
    }
}

/// Returns the `enum ibv_mtu` of a size in bytes, or the smallest if the device reports none.
fn mtu_code(bytes: Option<u32>) -> u8 {
    match bytes {
        Some(4096..) => 5,
        Some(2048..) => 4,
        Some(1024..) => 3,
        Some(512..) => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    use super::*;
    use crate::provider::ibverbs::discovery::PortState;

    fn port(link_layer: LinkLayer, lid: u16, mtu: u32) -> PortInfo {
        PortInfo {
            number: 1,
            state: PortState::Active,
            link_layer,
            active_mtu: Some(mtu),
            max_msg_sz: 1 << 30,
            lid,
            gids: vec![],
        }
    }

    fn gid(last: u8, gid_type: GidType) -> GidEntry {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]);
        GidEntry { index: u32::from(last), gid, gid_type: Some(gid_type) }
    }

    fn local<'a>(port: &'a PortInfo, gid: Option<&'a GidEntry>, max_rd_atomic: u8) -> Local<'a> {
        Local { port, gid, gid_is_chosen: false, max_rd_atomic }
    }

    #[test]
    fn two_roce_ports_use_the_smaller_limits() {
        let (a_port, b_port) = (port(LinkLayer::Ethernet, 0, 4096), port(LinkLayer::Ethernet, 0, 1024));
        let (a_gid, b_gid) = (gid(7, GidType::RoceV2), gid(9, GidType::RoceV2));
        let (a, b) = (local(&a_port, Some(&a_gid), 16), local(&b_port, Some(&b_gid), 128));
        let to_b = Endpoint::new(&a, 17, 0xffff_ffff);
        let to_a = Endpoint::new(&b, 18, 5);
        let path = to_b.path_to(&a, &to_a).unwrap();
        assert_eq!(
            path,
            Path {
                remote_qp_num: 18,
                remote_psn: 5,
                local_psn: 0xff_ffff,
                mtu: 3,
                dlid: 0,
                global: Some((b_gid.gid.0, 7)),
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
            }
        );
        let back = to_a.path_to(&b, &to_b).unwrap();
        assert_eq!((back.remote_psn, back.local_psn, back.mtu), (path.local_psn, path.remote_psn, path.mtu));
        assert_eq!((back.max_rd_atomic, back.max_dest_rd_atomic), (16, 128));
    }

    #[test]
    fn a_subnet_needs_no_gid_but_a_selected_gid_is_used() {
        let port = port(LinkLayer::InfiniBand, 3, 4096);
        let entry = gid(2, GidType::IbOrRoceV1);
        let side = local(&port, Some(&entry), 16);
        let peer = Endpoint { lid: 8.into(), ..Endpoint::new(&side, 5, 1) };
        let path = Endpoint::new(&side, 4, 1).path_to(&side, &peer).unwrap();
        assert_eq!((path.dlid, path.global), (8, None));
        let chosen = Local { gid_is_chosen: true, ..side };
        assert_eq!(
            Endpoint::new(&chosen, 4, 1).path_to(&chosen, &peer).unwrap().global,
            Some((entry.gid.0, 2))
        );
    }

    #[test]
    fn a_mismatch_is_described() {
        let (ethernet, infiniband) =
            (port(LinkLayer::Ethernet, 0, 1024), port(LinkLayer::InfiniBand, 3, 4096));
        let (v2, v1) = (gid(7, GidType::RoceV2), gid(8, GidType::IbOrRoceV1));
        let side = local(&ethernet, Some(&v2), 16);
        let ours = Endpoint::new(&side, 4, 1);
        let error = |peer: Endpoint| ours.path_to(&side, &peer).unwrap_err();
        assert!(error(Endpoint { gid: [0; 16], ..ours }).contains("GID is zero"));
        assert!(error(Endpoint { qp_num: 0.into(), ..ours }).contains("number 0"));
        assert!(error(Endpoint { qp_num: (1 << 24).into(), ..ours }).contains("number 16777216"));
        assert!(error(Endpoint { mtu: 6, ..ours }).contains("MTU"));
        assert!(error(Endpoint::new(&local(&infiniband, None, 1), 4, 1)).contains("InfiniBand"));
        assert!(error(Endpoint::new(&local(&ethernet, Some(&v1), 1), 4, 1)).contains("RoCE v1"));
        let side = local(&infiniband, None, 16);
        let ours = Endpoint::new(&side, 4, 1);
        assert!(ours.path_to(&side, &Endpoint { lid: 0.into(), ..ours }).unwrap_err().contains("LID"));
    }

    #[test]
    fn only_this_protocol_is_accepted() {
        assert_eq!(Greeting::new().check(), Ok(()));
        assert!(Greeting::new_zeroed().check().unwrap_err().contains("no RDMA queue pair"));
        let newer = Greeting { version: 2.into(), ..Greeting::new() };
        assert_eq!(newer.check().unwrap_err(), "it has version 2, this side has 1");
        assert!(Greeting { length: 4.into(), ..Greeting::new() }.check().is_err());
    }

    proptest! {
        #[test]
        fn any_endpoint_of_a_peer_is_checked(bytes: [u8; size_of::<Endpoint>()]) {
            let peer = Endpoint::read_from_bytes(&bytes).unwrap();
            for port in [port(LinkLayer::Ethernet, 0, 1024), port(LinkLayer::InfiniBand, 3, 4096)] {
                let entry = gid(7, GidType::RoceV2);
                let side = local(&port, Some(&entry), 16);
                if let Ok(path) = Endpoint::new(&side, 4, 1).path_to(&side, &peer) {
                    prop_assert!(path.max_rd_atomic <= 16 && (1..=5).contains(&path.mtu));
                    prop_assert!(path.remote_qp_num >> 24 == 0 && path.remote_psn >> 24 == 0);
                }
            }
        }
    }
}
