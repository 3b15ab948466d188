//! Selects the device, port and GID.
//!
//! Takes the machine's devices and returns a choice or a message for users. No I/O, no locks, no
//! clock.

use std::net::{IpAddr, Ipv6Addr};

use super::{
    decode::{LinkLayer, PortState, Transport},
    gid::{Gid, GidType},
    info::{DeviceDetails, DeviceInfo, GidEntry, PortInfo},
};
use crate::provider::rdma_options::{RdmaError, RdmaOptions};

/// Returns the device and port that the options select.
pub(crate) fn device_and_port<'a>(
    devices: &'a [DeviceInfo],
    options: &RdmaOptions,
) -> Result<(&'a DeviceInfo, &'a DeviceDetails, &'a PortInfo), RdmaError> {
    let names = || {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        names.join(", ")
    };
    if devices.is_empty() {
        return Err(RdmaError::NotThere(
            "the machine has no RDMA device; Soft-RoCE makes one of any network interface: \
             modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE"
                .into(),
        ));
    }
    let candidates: Vec<&DeviceInfo> = match &options.device {
        None => devices.iter().collect(),
        Some(name) => devices.iter().filter(|device| device.name == *name).collect(),
    };
    if let (Some(name), []) = (&options.device, &candidates[..]) {
        return Err(RdmaError::NotUsable(format!("there is no RDMA device {name}; there is: {}", names())));
    }
    let mut reasons = Vec::new();
    for device in candidates {
        match port(device, options) {
            Ok((details, port)) => return Ok((device, details, port)),
            Err(reason) => reasons.push(format!("{}: {reason}", device.name)),
        }
    }
    Err(RdmaError::NotUsable(format!("no RDMA device can be used: {}", reasons.join("; "))))
}

fn port<'a>(
    device: &'a DeviceInfo,
    options: &RdmaOptions,
) -> Result<(&'a DeviceDetails, &'a PortInfo), String> {
    let details = device.details.as_ref().map_err(ToString::to_string)?;
    if device.transport != Transport::InfiniBand {
        let transport = device.transport;
        return Err(format!("it speaks {transport}; reliable connections need InfiniBand or RoCE"));
    }
    let port = match options.port {
        Some(number) => details.ports.iter().find(|port| port.number == number).ok_or_else(|| {
            let last = details.ports.len();
            format!("it has no port {number}; its ports are counted from 1 to {last}")
        })?,
        None => {
            let active = details.ports.iter().find(|port| port.state == PortState::Active);
            active.ok_or_else(|| {
                let states: Vec<String> = details
                    .ports
                    .iter()
                    .map(|port| format!("port {} is {}", port.number, port.state))
                    .collect();
                format!("no port is active ({})", states.join(", "))
            })?
        }
    };
    if port.state != PortState::Active {
        return Err(format!("port {} is {}, not active", port.number, port.state));
    }
    if let Some(index) = options.gid_index {
        entry_at(port, index)?;
    }
    Ok((details, port))
}

/// Returns the GID of a connection: the selected one, else that of the local address `near`, else
/// the best. Returns `None` on an InfiniBand port with an empty table, where LIDs suffice.
pub(crate) fn gid(
    port: &PortInfo,
    index: Option<u8>,
    near: Option<IpAddr>,
) -> Result<Option<&GidEntry>, String> {
    if let Some(index) = index {
        return entry_at(port, index).map(Some);
    }
    let usable = || port.gids.iter().filter(|entry| u8::try_from(entry.index).is_ok());
    let near = near.and_then(|ip| {
        let own = |entry: &&GidEntry| ip_of(&entry.gid) == Some(ip.to_canonical());
        usable().filter(own).min_by_key(|entry| rank(entry))
    });
    let best = near.or_else(|| usable().min_by_key(|entry| rank(entry)));
    if best.is_none() && port.link_layer == LinkLayer::Ethernet {
        let number = port.number;
        return Err(format!(
            "port {number} has no GID: its network interface has no address (add one with ip addr add)"
        ));
    }
    Ok(best)
}

fn entry_at(port: &PortInfo, index: u8) -> Result<&GidEntry, String> {
    port.gids.iter().find(|entry| entry.index == u32::from(index)).ok_or_else(|| {
        let known: Vec<String> =
            port.gids.iter().map(|entry| format!("{} ({})", entry.index, entry.gid)).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        format!("port {} has no GID at index {index}; those that are not zero: {known}", port.number)
    })
}

/// Ranks a GID; lower is better.
fn rank(entry: &GidEntry) -> u8 {
    let is_v2 = entry.gid_type == Some(GidType::RoceV2);
    let link_local = entry.gid.0[..2] == [0xfe, 0x80];
    match (is_v2, entry.gid.ipv4().is_some(), link_local) {
        (true, true, _) => 0,
        (true, false, false) => 1,
        (true, false, true) => 2,
        (false, _, _) => 3,
    }
}

/// Returns the IP address that a GID contains, if any.
fn ip_of(gid: &Gid) -> Option<IpAddr> {
    (!gid.is_zero()).then(|| IpAddr::V6(Ipv6Addr::from(gid.0)).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::ibverbs::{
            discovery::{
                decode::{AtomicCap, NodeType},
                gid::Guid,
            },
            error::IbverbsError,
        },
        verbs::DeviceAttr,
    };

    fn entry(index: u32, gid: [u8; 16], gid_type: Option<GidType>) -> GidEntry {
        GidEntry { index, gid: Gid(gid), gid_type }
    }

    fn mapped(last: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
    }

    fn local(last: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xfe, 0x80, last);
        gid
    }

    fn roce(state: PortState, number: u8) -> PortInfo {
        let v2 = || Some(GidType::RoceV2);
        PortInfo {
            number,
            state,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Some(1024),
            max_msg_sz: 1 << 30,
            lid: 0,
            gids: vec![
                entry(0, local(1), Some(GidType::IbOrRoceV1)),
                entry(1, local(1), v2()),
                entry(2, mapped(7), Some(GidType::IbOrRoceV1)),
                entry(3, mapped(7), v2()),
                entry(5, mapped(8), v2()),
            ],
        }
    }

    fn device(name: &str, ports: Vec<PortInfo>) -> DeviceInfo {
        let attr = DeviceAttr {
            name: name.into(),
            max_qp_wr: 1,
            max_sge: 1,
            max_cqe: 1,
            max_msg_sz: 1,
            max_mr_size: 1,
            max_qp_rd_atom: 1,
            max_inline_data: 0,
            atomics: crate::verbs::AtomicScope::Device,
            atomic_ops: crate::verbs::AtomicOps::empty(),
        };
        let details = DeviceDetails {
            fw_version: String::new(),
            attr,
            max_qp: 1,
            max_mr: 1,
            atomics: AtomicCap::Hca,
            ports,
        };
        DeviceInfo {
            name: name.into(),
            guid: Guid(1),
            node_type: NodeType::ChannelAdapter,
            transport: Transport::InfiniBand,
            details: Ok(details),
        }
    }

    fn options(device: Option<&str>, port: Option<u8>, gid_index: Option<u8>) -> RdmaOptions {
        RdmaOptions { device: device.map(Into::into), port, gid_index }
    }

    fn chosen(devices: &[DeviceInfo], options: &RdmaOptions) -> Result<(String, u8), String> {
        device_and_port(devices, options)
            .map(|(device, _, port)| (device.name.clone(), port.number))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_first_active_port_is_used_unless_another_is_selected() {
        let devices = [
            device("down", vec![roce(PortState::Down, 1)]),
            device("a", vec![roce(PortState::Down, 1), roce(PortState::Active, 2)]),
            device("b", vec![roce(PortState::Active, 1), roce(PortState::Active, 2)]),
        ];
        assert_eq!(chosen(&devices, &options(None, None, None)), Ok(("a".into(), 2)));
        assert_eq!(chosen(&devices, &options(Some("b"), None, None)), Ok(("b".into(), 1)));
        assert_eq!(chosen(&devices, &options(Some("b"), Some(2), Some(3))), Ok(("b".into(), 2)));
    }

    #[test]
    fn an_error_names_the_missing_and_the_existing_objects() {
        let devices =
            [device("a", vec![roce(PortState::Down, 1)]), device("b", vec![roce(PortState::Active, 1)])];
        let no = |options: &RdmaOptions| chosen(&devices, options).unwrap_err();
        assert_eq!(no(&options(Some("x"), None, None)), "there is no RDMA device x; there is: a, b");
        assert_eq!(
            no(&options(Some("a"), None, None)),
            "no RDMA device can be used: a: no port is active (port 1 is down)"
        );
        assert!(no(&options(Some("b"), Some(3), None)).contains("counted from 1 to 1"));
        assert!(no(&options(Some("a"), Some(1), None)).contains("port 1 is down, not active"));
        let text = no(&options(Some("b"), None, Some(4)));
        assert!(text.contains("no GID at index 4") && text.contains("5 (0000:"), "{text}");
        assert!(chosen(&[], &options(None, None, None)).unwrap_err().contains("rdma link add"));
    }

    #[test]
    fn a_device_that_cannot_be_queried_reports_the_reason() {
        let failed = IbverbsError::Open {
            device: "a".into(),
            source: std::io::Error::from_raw_os_error(libc::EACCES),
        };
        let devices = [DeviceInfo { details: Err(failed), ..device("a", vec![]) }];
        let text = chosen(&devices, &options(None, None, None)).unwrap_err();
        assert!(text.contains("/dev/infiniband"), "{text}");
        let iwarp = [DeviceInfo { transport: Transport::Iwarp, ..device("w", vec![]) }];
        assert!(chosen(&iwarp, &options(None, None, None)).unwrap_err().contains("speaks iWARP"));
    }

    #[test]
    fn the_gid_of_the_local_address_is_preferred() {
        let port = roce(PortState::Active, 1);
        let index = |wanted, near: Option<&str>| {
            gid(&port, wanted, near.map(|ip| ip.parse().unwrap())).unwrap().unwrap().index
        };
        assert_eq!(index(None, None), 3);
        assert_eq!(index(None, Some("192.0.2.8")), 5);
        assert_eq!(index(None, Some("::ffff:192.0.2.8")), 5);
        assert_eq!(index(None, Some("fe80::1")), 1);
        assert_eq!(index(None, Some("127.0.0.1")), 3);
        assert_eq!(index(Some(0), Some("192.0.2.8")), 0);
    }

    #[test]
    fn a_port_without_a_gid_is_usable_on_infiniband_only() {
        let bare = PortInfo { gids: vec![], ..roce(PortState::Active, 1) };
        assert!(gid(&bare, None, None).unwrap_err().contains("no address"));
        let infiniband = PortInfo { link_layer: LinkLayer::InfiniBand, lid: 4, ..bare };
        assert_eq!(gid(&infiniband, None, None), Ok(None));
    }
}
