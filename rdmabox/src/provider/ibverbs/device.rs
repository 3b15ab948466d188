//! An open RDMA device.

use std::sync::{Arc, atomic::AtomicU32};

use ibverbs_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};

use super::{
    discovery::{AtomicCap, select},
    error::IbverbsError,
    objects::{Core, IbvCq, IbvPd, Watch, Watcher},
    raw::{Calls, Library, Opened, RawCq, RawPd, RawQp, SONAME},
};
use crate::{
    provider::rdma_options::{RdmaError, RdmaOptions},
    verbs::{AtomicScope, CompletionQueue, Device, DeviceAttr, ProtectionDomain, QpCaps, VerbsError},
};

/// An RDMA device of this machine, and the port that connections use.
#[derive(Debug)]
pub struct IbvDevice(Arc<Core>);

impl IbvDevice {
    #[cfg(test)]
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Opens the device that the options select.
    ///
    /// # Errors
    /// A message for users that names the missing part and how to install it, or the existing
    /// devices if the selected one does not exist.
    pub fn open(options: &RdmaOptions) -> Result<Arc<IbvDevice>, RdmaError> {
        let library = Library::open().map_err(explain)?;
        let calls = Calls::load(SONAME).map_err(explain)?;
        let devices = library.devices().map_err(explain)?;
        let (device, _, port) = select::device_and_port(&devices, options)?;
        let (name, number) = (device.name.clone(), port.number);
        let (context, details) = library.open_device(&name).map_err(explain)?;
        let port = details
            .ports
            .into_iter()
            .find(|port| port.number == number)
            .ok_or_else(|| RdmaError::NotUsable(format!("{name}: port {number} has gone")))?;
        let opened = Opened::new(calls, context);
        let failed = |e: VerbsError| RdmaError::NotUsable(format!("{name}: {e}"));
        let mut attr = details.attr;
        attr.max_msg_sz = port.max_msg_sz.into();
        // One slot of each queue is reserved for the marker that shows that the queue is drained.
        attr.max_qp_wr = attr.max_qp_wr.saturating_sub(1);
        attr.atomics = match details.atomics {
            AtomicCap::None => AtomicScope::None,
            AtomicCap::Global => AtomicScope::Global,
            AtomicCap::Hca | AtomicCap::Unknown(_) => AtomicScope::Device,
        };
        attr.max_inline_data = max_inline(&opened, &attr).map_err(failed)?;
        log::debug!(
            "{name} port {number}: {} with {} bytes of payload per packet, {} outstanding READs and atomics, \
             {} bytes inline",
            port.link_layer,
            port.active_mtu.unwrap_or(0),
            attr.max_qp_rd_atom,
            attr.max_inline_data
        );
        let watch = Watch::new(Arc::clone(&opened), library, name.clone(), port).map_err(failed)?;
        let watcher = Watcher::start(watch).map_err(failed)?;
        let gid_index = options.gid_index;
        let core = Core { attr, gid_index, next_qp: AtomicU32::new(1), watcher, opened };
        Ok(Arc::new(IbvDevice(Arc::new(core))))
    }
}

fn explain(error: IbverbsError) -> RdmaError {
    match error {
        e if e.is_absence() => RdmaError::NotThere(e.to_string()),
        e => RdmaError::NotUsable(e.to_string()),
    }
}

/// Returns the maximum number of inline bytes, found by trial because devices do not report it.
/// The trial includes the number of elements that sessions use, because both occupy the same work
/// request.
fn max_inline(opened: &Arc<Opened>, attr: &DeviceAttr) -> Result<u32, VerbsError> {
    let os = VerbsError::os;
    let pd = Arc::new(RawPd::new(opened).map_err(|e| os("ibv_alloc_pd", e))?);
    let cq = Arc::new(RawCq::new(opened, 1).map_err(|e| os("ibv_create_cq", e))?);
    let wanted = QpCaps::default();
    let mut last = std::io::Error::other("no size was tried");
    for max_inline_data in [1024, 512, 400, 256, wanted.max_inline_data, 128, 64, 32, 0] {
        let cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: wanted.max_send_sge.min(attr.max_sge),
            max_recv_sge: 1,
            max_inline_data,
        };
        let init = ibv_qp_init_attr { cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..ibv_qp_init_attr::default() };
        match RawQp::new(&pd, &cq, &cq, init) {
            Ok(_) => return Ok(max_inline_data),
            Err(e) => last = e,
        }
    }
    Err(os("ibv_create_qp", last))
}

impl crate::verbs::Sealed for IbvDevice {}

impl Device for IbvDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(IbvPd::new(&self.0)?)
    }

    fn create_cq(&self, depth: usize) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(IbvCq::new(&self.0, depth)?)
    }
}
