//! RDMA devices of this machine, hardware and Soft-RoCE, through the system's libibverbs.
//!
//! [`Library::open`] loads `libibverbs.so.1`; [`Library::devices`] tells what devices there are, with their limits, their
//! ports and the ports' GIDs. [`IbvDevice::open`] opens one as a [`Device`](crate::verbs::Device): reliable connected queue
//! pairs, on whose memory nobody's processor works.
//!
//! Finding devices: `api`, `library`, `sysfs`, `decode`, `info`; choosing one: `select`. Objects on an open device as the C
//! library has them: `calls`, `handles`. The model on top of them: `device`, `pd` (with memory regions), `cq`, `qp`, and what
//! these are made of: `lists` (work requests for the driver), `ring` (slots and names of requests), `status`
//! (completions), `endpoint` and `handshake` (how queue pairs find each other), `watch` and `events` (what happens
//! to the device and to peers).
//!
//! The C library is loaded when it is asked for, not linked: a program with this feature starts on a machine
//! without it, and is told then what is missing. The layout of the C structures comes from `ibverbs-sys`, of
//! which only types are used. That crate also asks the linker for libibverbs, which is why the library's
//! development package is needed to build; the linker drops the dependency again since no symbol is used.
//!
//! Threads: everything here may be used from any number of threads at once. Calls go to the kernel, and a device that hangs
//! can hold them up; posting and polling do not, on hardware. Each open device has a thread of its own that watches it.

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

/// Makes reads of a descriptor return at once.
fn set_nonblocking(fd: std::os::fd::RawFd) -> std::io::Result<()> {
    // SAFETY: plain fcntl on a descriptor that the caller knows to be open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
