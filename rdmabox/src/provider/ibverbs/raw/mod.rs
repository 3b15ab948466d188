//! The C library, loaded at run time, and the objects that it creates.

mod api;
mod calls;
mod handles;
mod library;

#[cfg(test)]
pub(crate) use self::api::{Api, QUERY_PORT_WRITES};
pub(crate) use self::calls::{Calls, RawWc};
pub(crate) use self::handles::{Opened, RawCq, RawMr, RawPd, RawQp, Refused, Subject};
pub use self::library::Library;
pub(crate) use self::library::SONAME;

/// Makes reads of a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: std::os::fd::RawFd) -> std::io::Result<()> {
    // SAFETY: plain fcntl on a descriptor that the caller keeps open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: plain fcntl on a descriptor that the caller keeps open.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
