//! Discovery of RDMA devices through libibverbs.

use std::{
    ffi::c_char,
    io,
    path::{Path, PathBuf},
};

use ibverbs_sys::{ibv_device_attr, ibv_port_attr};

use super::api::{Api, Context, RawDevice};
use crate::{
    provider::ibverbs::{
        discovery::{
            AtomicCap, DeviceDetails, DeviceInfo, GidEntry, LinkLayer, PortInfo, PortState, mtu_bytes, sysfs,
        },
        error::IbverbsError,
    },
    verbs::{AtomicOps, AtomicScope, DeviceAttr},
};

/// Name of the C library's current interface on Linux.
pub(crate) const SONAME: &str = "libibverbs.so.1";

/// The loaded libibverbs of the system. It stays loaded after the drop.
#[derive(Debug)]
pub struct Library {
    api: Api,
    class: PathBuf,
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// [`IbverbsError::LibraryMissing`] if it is not installed; [`IbverbsError::SymbolMissing`] if
    /// the file is not libibverbs.
    pub fn open() -> Result<Library, IbverbsError> {
        Library::open_named(SONAME)
    }

    pub(crate) fn open_named(name: &str) -> Result<Library, IbverbsError> {
        Ok(Library::with(Api::load(name)?, Path::new(sysfs::CLASS)))
    }

    /// Creates a library from its functions and the path of `/sys/class/infiniband`.
    pub(crate) fn with(api: Api, class: &Path) -> Library {
        Library { api, class: class.to_owned() }
    }

    /// Returns the devices of this machine in the library's order. Opens, queries and closes each
    /// device.
    ///
    /// The list is empty if the kernel supports devices but has none. A device that cannot be
    /// opened is in the list, with the reason in [`DeviceInfo::details`].
    ///
    /// # Errors
    /// [`IbverbsError::NoKernelSupport`]; [`IbverbsError::Unusable`] if the kernel has devices but
    /// libibverbs has none; [`IbverbsError::List`] otherwise.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, IbverbsError> {
        let list = self.api.device_list().map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSYS) => IbverbsError::NoKernelSupport,
            _ => IbverbsError::List(e),
        })?;
        let devices: Vec<DeviceInfo> = list.iter().map(|device| self.describe(&device)).collect();
        if devices.is_empty() {
            let known = sysfs::device_names(&self.class);
            if !known.is_empty() {
                return Err(IbverbsError::Unusable { devices: known });
            }
        }
        Ok(devices)
    }

    /// Opens the device `name` and returns its context and details.
    pub(crate) fn open_device(&self, name: &str) -> Result<(Context, DeviceDetails), IbverbsError> {
        let list = self.api.device_list().map_err(IbverbsError::List)?;
        let open = |source| IbverbsError::Open { device: name.to_owned(), source };
        let device = list.iter().find(|device| device.name() == name);
        let device = device.ok_or_else(|| open(io::Error::from_raw_os_error(libc::ENODEV)))?;
        let context = device.open().map_err(open)?;
        let details = self.ask(&context, name)?;
        Ok((context, details))
    }

    fn describe(&self, device: &RawDevice<'_>) -> DeviceInfo {
        let name = device.name();
        let (node_type, transport) = device.kind();
        let details = match device.open() {
            Ok(context) => self.ask(&context, &name),
            Err(source) => Err(IbverbsError::Open { device: name.clone(), source }),
        };
        DeviceInfo { name, guid: device.guid(), node_type, transport, details }
    }

    fn ask(&self, context: &Context, name: &str) -> Result<DeviceDetails, IbverbsError> {
        let device = context.query_device().map_err(failed(name, "ibv_query_device"))?;
        let ports = (1..=device.phys_port_cnt)
            .map(|number| self.ask_port(context, name, number))
            .collect::<Result<_, _>>()?;
        Ok(details(name, &device, ports))
    }

    /// Queries one port of the open device `name`.
    pub(crate) fn ask_port(
        &self,
        context: &Context,
        name: &str,
        number: u8,
    ) -> Result<PortInfo, IbverbsError> {
        let port = context.query_port(number).map_err(failed(name, "ibv_query_port"))?;
        let mut gids = Vec::new();
        for i in 0..port.gid_tbl_len {
            let gid = context.query_gid(number, i).map_err(failed(name, "ibv_query_gid"))?;
            // `i` counts up from 0.
            let index = i.unsigned_abs();
            if !gid.is_zero() {
                let gid_type = sysfs::gid_type(&self.class, name, number, index);
                gids.push(GidEntry { index, gid, gid_type });
            }
        }
        Ok(port_info(number, &port, gids))
    }
}

fn failed(name: &str, call: &'static str) -> impl Fn(io::Error) -> IbverbsError {
    move |source| IbverbsError::Query { device: name.to_owned(), call, source }
}

fn port_info(number: u8, port: &ibv_port_attr, gids: Vec<GidEntry>) -> PortInfo {
    PortInfo {
        number,
        state: PortState::from_raw(port.state),
        link_layer: LinkLayer::from_raw(port.link_layer),
        active_mtu: mtu_bytes(port.active_mtu),
        max_msg_sz: port.max_msg_sz,
        lid: port.lid,
        gids,
    }
}

fn details(name: &str, device: &ibv_device_attr, ports: Vec<PortInfo>) -> DeviceDetails {
    let attr = DeviceAttr {
        name: name.to_owned(),
        max_qp_wr: count(device.max_qp_wr),
        max_sge: count(device.max_sge),
        max_cqe: count(device.max_cqe),
        max_msg_sz: ports.iter().map(|port| u64::from(port.max_msg_sz)).min().unwrap_or(0),
        max_mr_size: device.max_mr_size,
        max_qp_rd_atom: count(device.max_qp_rd_atom),
        max_inline_data: 0,
        atomics: AtomicScope::None,
        // Verbs have none of them.
        atomic_ops: AtomicOps::empty(),
    };
    DeviceDetails {
        fw_version: text(&device.fw_ver),
        attr,
        max_qp: count(device.max_qp),
        max_mr: count(device.max_mr),
        atomics: AtomicCap::from_raw(device.atomic_cap),
        ports,
    }
}

/// Converts a limit from the C type `int`; a negative limit becomes 0.
fn count(limit: i32) -> u32 {
    u32::try_from(limit).unwrap_or(0)
}

/// Returns the text in a fixed array, up to the first NUL byte or the end.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c.to_ne_bytes()[0]).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}
