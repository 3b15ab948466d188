//! Lists the RDMA devices of this machine, or prints the reason why there are none.
//!
//! `cargo run -p rdmabox --features ibverbs --example rdma_devices`

use std::process::ExitCode;

use rdmabox::provider::ibverbs::{DeviceDetails, DeviceInfo, Library, PortInfo};

fn main() -> ExitCode {
    match Library::open().and_then(|library| library.devices()) {
        Ok(devices) if devices.is_empty() => println!("no RDMA device found"),
        Ok(devices) => devices.iter().for_each(print_device),
        Err(e) if e.is_absence() => println!("no RDMA device found: {e}"),
        Err(e) => {
            eprintln!("rdma_devices: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn print_device(device: &DeviceInfo) {
    println!("{}", device.name);
    row("GUID", device.guid);
    row("node, transport", format_args!("{}, {}", device.node_type, device.transport));
    match &device.details {
        Ok(details) => print_details(details),
        Err(e) => row("not readable", e),
    }
}

fn print_details(details: &DeviceDetails) {
    let attr = &details.attr;
    row("firmware", &details.fw_version);
    row("atomics", details.atomics);
    row("max_qp, max_qp_wr", format_args!("{}, {}", details.max_qp, attr.max_qp_wr));
    row("max_sge, max_cqe", format_args!("{}, {}", attr.max_sge, attr.max_cqe));
    row("max_mr, max_mr_size", format_args!("{}, {}", details.max_mr, attr.max_mr_size));
    row("max_qp_rd_atom", attr.max_qp_rd_atom);
    row("max_msg_sz", attr.max_msg_sz);
    details.ports.iter().for_each(print_port);
}

fn print_port(port: &PortInfo) {
    let mtu = port.active_mtu.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
    row(
        &format!("port {}", port.number),
        format_args!("{}, {}, active MTU {mtu}, LID {}", port.state, port.link_layer, port.lid),
    );
    for entry in &port.gids {
        let kind = entry.gid_type.as_ref().map_or_else(|| "type unknown".to_owned(), ToString::to_string);
        let ipv4 = entry.gid.ipv4().map(|address| format!(", {address}")).unwrap_or_default();
        let mark = if entry.is_ipv4_roce_v2() { " *" } else { "" };
        row(&format!("  GID {}", entry.index), format_args!("{}  {kind}{ipv4}{mark}", entry.gid));
    }
    if port.ipv4_roce_v2().is_some() {
        row("", "* IPv4 over RoCE v2");
    }
}

fn row(name: &str, value: impl std::fmt::Display) {
    println!("  {name:<20} {value}");
}
