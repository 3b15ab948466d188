//! RDMA devices of this machine, hardware and Soft-RoCE, through the system's libibverbs.
//!
//! [`Library::open`] loads `libibverbs.so.1`; [`Library::devices`] tells what devices there are, with their
//! limits, their ports and the ports' GIDs.
//!
//! The C library is loaded when it is asked for, not linked: a program with this feature starts on a machine
//! without it, and is told then what is missing. The layout of the C structures comes from `ibverbs-sys`, of
//! which only types are used. That crate also asks the linker for libibverbs, which is why the library's
//! development package is needed to build; the linker drops the dependency again since no symbol is used.
//!
//! Threads: a [`Library`] may be used from any number of threads at once. Everything that it returns is plain
//! data. Its calls go to the kernel, and a device that hangs can hold them up.
//!
//! It finds and describes devices, and does nothing else: no memory is registered and no queue pair made, so
//! [`Device`](crate::verbs::Device) is not implemented here and no session runs over it.

mod api;
mod calls;
mod cq;
mod decode;
mod device;
mod endpoint;
mod error;
mod events;
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
