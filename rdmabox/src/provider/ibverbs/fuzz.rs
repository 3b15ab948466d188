//! Fuzz targets for the data that two queue pairs on RDMA devices exchange.

use zerocopy::{FromBytes, IntoBytes};

use super::{
    connection::{Endpoint, Greeting, Local},
    discovery::{Gid, GidEntry, GidType, LinkLayer, PortInfo, PortState},
};

fn port(link_layer: LinkLayer) -> PortInfo {
    let (state, active_mtu, max_msg_sz) = (PortState::Active, Some(1024), 1 << 30);
    PortInfo { number: 1, state, link_layer, active_mtu, max_msg_sz, lid: 3, gids: Vec::new() }
}

fn gid() -> GidEntry {
    let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    GidEntry { index: 7, gid, gid_type: Some(GidType::RoceV2) }
}

/// Decodes `bytes` as a peer's greeting and endpoint. A resulting path must be valid for a
/// device.
///
/// # Panics
/// If the path is invalid.
pub fn endpoint(bytes: &[u8]) {
    let Ok((greeting, rest)) = Greeting::read_from_prefix(bytes) else { return };
    let Ok((peer, _)) = Endpoint::read_from_prefix(rest) else { return };
    if greeting.check().is_err() {
        return;
    }
    let gid = gid();
    for port in [LinkLayer::Ethernet, LinkLayer::InfiniBand].map(port) {
        for gid_is_chosen in [false, true] {
            let local = Local { port: &port, gid: Some(&gid), gid_is_chosen, max_rd_atomic: 16 };
            if let Ok(path) = Endpoint::new(&local, 4, 1).path_to(&local, &peer) {
                assert!(path.max_rd_atomic <= 16 && (1..=5).contains(&path.mtu));
                assert!(path.remote_qp_num >> 24 == 0 && path.remote_psn >> 24 == 0);
            }
        }
    }
}

/// Returns the greetings and endpoints of peers on both kinds of network.
pub fn endpoint_seeds() -> Vec<Vec<u8>> {
    let gid = gid();
    let said = |port: &PortInfo| {
        let local = Local { port, gid: Some(&gid), gid_is_chosen: false, max_rd_atomic: 16 };
        [Greeting::new().as_bytes(), Endpoint::new(&local, 17, 5).as_bytes()].concat()
    };
    [LinkLayer::Ethernet, LinkLayer::InfiniBand].map(|kind| said(&port(kind))).to_vec()
}
