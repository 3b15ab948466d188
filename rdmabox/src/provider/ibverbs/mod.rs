//! RDMA devices of this machine, hardware and Soft-RoCE, through the system's libibverbs.
//!
//! [`Library::open`] loads `libibverbs.so.1`, and [`Library::devices`] lists the devices.
//! [`IbvDevice::open`] opens one as a [`Device`](crate::verbs::Device) with reliable connected
//! queue pairs. The C library is loaded at run time, so a program with this feature starts on
//! machines without it and reports what is missing. Only types are used from `ibverbs-sys`.
//!
//! - Discovery: `api`, `library`, `sysfs`, `decode`, `info`; selection: `select`.
//! - Objects of the C library: `calls`, `handles`. Objects of the model: `device`, `pd`, `cq`,
//!   `qp`, built from `lists` (work requests), `ring` (queue slots), `status` (completions),
//!   `endpoint` and `handshake` (connecting), `watch` and `events` (failures).
//!
//! # Concurrency
//! Any thread may use any object. A hung device can block calls into the kernel, but not posts
//! and polls on hardware. Each open device has one thread that watches it.

mod api;
mod calls;
mod cq;
mod decode;
mod device;
mod endpoint;
mod error;
mod events;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod handles;
mod handshake;
mod info;
mod library;
mod lists;
mod pd;
mod qp;
mod ring;
mod select;

mod status;
mod sysfs;
#[cfg(test)]
mod tests;
mod watch;

pub use decode::{AtomicCap, Gid, GidType, Guid, LinkLayer, NodeType, PortState, Transport, mtu_bytes};
pub use device::IbvDevice;
pub use error::IbverbsError;
pub use info::{DeviceDetails, DeviceInfo, GidEntry, PortInfo};
pub use library::Library;

/// Makes reads of a descriptor non-blocking.
fn set_nonblocking(fd: std::os::fd::RawFd) -> std::io::Result<()> {
    // SAFETY: plain fcntl on a descriptor that the caller keeps open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: plain fcntl on a descriptor that the caller keeps open.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
