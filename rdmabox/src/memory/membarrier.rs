//! A memory barrier on every processor that runs a thread of this process, at the caller's expense (`membarrier(2)`).

use std::{io, sync::OnceLock};

/// True if the kernel makes such barriers for this process. The answer stays the same.
#[inline]
pub(super) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| match command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        Ok(()) => true,
        Err(e) => {
            log::debug!("no membarrier(2), so that locks for reading cost atomic changes: {e}");
            false
        }
    })
}

/// Makes one. What any thread did before it in program order is seen after it, and the other way round.
///
/// # Panics
/// If the kernel refuses what it has agreed to: there is no going on without.
pub(super) fn on_every_processor() {
    if let Err(e) = command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        panic!("membarrier(2) stopped working: {e}");
    }
}

fn command(command: libc::c_int) -> io::Result<()> {
    // SAFETY: takes three integers and touches no memory of the caller.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, command, 0 as libc::c_uint, 0 as libc::c_int) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
